"""Run the tests of the PyTorch adapter under other releases of PyTorch, without a GPU.

    python tools/torch_releases/run_tests.py [RELEASE ...] [-- PYTEST ARGUMENT ...]

Each release is installed in `build/releases`, with its requirements on a machine without a GPU: PyTorch's own wheel,
its pure Python requirements, CUDA's runtime and CUPTI. The tests bring a CUDA driver made of host memory. PyTorch links
to libraries that no test here calls, such as cuDNN and cuBLAS, which take 3 GB a release; empty libraries with the same
names and symbols take their place. Exits with 1 if tests fail under any release.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from wheels import PLACE, RELEASES, ROOT, requirements, unpack, unpack_cuda, wheel_of

TESTS = "tests/adapters/torch"
LEFT_OUT = r"torch/(bin/(?!torch_shm)|test/)"
NEEDS_A_GPU = re.compile(r"nvidia-|cuda-|triton")
OF_THE_SYSTEM = re.compile(r"(lib(c|m|dl|rt|gcc_s|stdc\+\+|pthread|cuda|gomp)|ld-linux[\w-]*)\.so")
PREFIXES = {"libnvshmem_host": "nvshmem"}  # of a library's symbols, where its name does not show it


def install(release: str) -> Path:
    """Install a release unless it is there; return a Python that has it."""
    place = PLACE / release
    python, site, done = place / "venv" / "bin" / "python", place / "site", place / "installed"
    if done.exists():
        return python
    print(f"installing PyTorch {release} in {place} ...", flush=True)
    unpack(wheel_of(release), site, without=LEFT_OUT)
    (site / "torch" / "bin" / "torch_shm_manager").chmod(0o755)
    plain = [name for name in requirements(site) if not NEEDS_A_GPU.match(name)]
    into_site = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(site)]
    subprocess.run([*into_site, *plain], check=True)
    unpack_cuda(site, "runtime", "cupti")
    write_empty_libraries(site)
    venv.create(place / "venv", symlinks=True, with_pip=False)
    packages = next((place / "venv" / "lib").glob("python*/site-packages"))
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "release.pth").write_text(f"{site}\n{ours}\n")
    done.touch()
    return python


def symbols(library: Path, kind: str) -> set[str]:
    listed = subprocess.run(["nm", "-D", kind, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines()}


def needed_by(library: Path) -> list[str]:
    listed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", listed)


def versions_needed_by(library: Path) -> dict[str, set[str]]:
    """The names of symbol versions, by the library that has them."""
    listed = subprocess.run(["readelf", "-VW", str(library)], capture_output=True, text=True, check=True).stdout
    versions: dict[str, set[str]] = {}
    for line in listed.partition("Version needs section")[2].splitlines():
        if found := re.search(r"File: (\S+)", line):
            names = versions.setdefault(found[1], set())
        elif found := re.search(r"Name: (\S+)", line):
            names.add(found[1])
    return versions


def write_empty_libraries(site: Path) -> None:
    """Write a stand-in for each library that PyTorch needs and that is missing."""
    folder = site / "torch" / "lib"
    present = {path.name for path in [*folder.iterdir(), *(site / "nvidia").rglob("*.so*")]}
    torch = list(folder.glob("*.so"))
    wanted = {symbol for library in torch for symbol in symbols(library, "--undefined-only")}
    versions: dict[str, set[str]] = {}
    for library in torch:
        for name, found in versions_needed_by(library).items():
            versions.setdefault(name, set()).update(found)
    for name in sorted({need for library in torch for need in needed_by(library)} - present):
        if not OF_THE_SYSTEM.match(name):
            write_empty_library(folder / name, wanted, versions.get(name, set()))


def write_empty_library(path: Path, wanted: set[str], versions: set[str]) -> None:
    stem = path.name.split(".so")[0]
    prefix = PREFIXES.get(stem, stem.removeprefix("lib")).lower()
    plain = {symbol for symbol in wanted if "@" not in symbol and symbol.lower().startswith(prefix)}
    nodes = {
        version: {symbol.split("@")[0] for symbol in wanted if symbol.endswith(f"@{version}")} for version in versions
    }
    names = plain.union(*nodes.values())
    code = "".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(names))
    flags = ["-w", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", str(path)]
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        for version, of_it in nodes.items():
            script.write(f"{version} {{ {' '.join(f'{name};' for name in sorted(of_it))} }};\n")
        script.flush()
        if nodes:
            flags.append(f"-Wl,--version-script={script.name}")
        subprocess.run(["cc", *flags, "-x", "c", "-"], input=code, text=True, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, tests = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :] or [TESTS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    verdicts = {}
    for release in options.releases:
        done = subprocess.run([install(release), "-m", "pytest", *tests], cwd=ROOT, env=environment, check=False)
        verdicts[release] = "passed" if done.returncode == 0 else f"pytest ended with {done.returncode}"
    for release, verdict in verdicts.items():
        print(f"PyTorch {release}: {verdict}")
    return any(verdict != "passed" for verdict in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
