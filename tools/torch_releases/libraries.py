"""Compile the torch allocators for the package's own wheels, against the headers in PyTorch's wheels.

    python tools/torch_releases/libraries.py [RELEASE ...]

The libraries go to `src/allotment/torch/_deep/compiled`, under the names that `building.packaged_name` gives them, and
replace those of older sources. PyTorch is not installed: only the headers are unpacked, and empty libraries with
PyTorch's names satisfy the linker. A library depends on PyTorch's C++ interface, not on Python's.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from wheels import PLACE, RELEASES, ROOT, unpack, unpack_cuda, version_facts, wheel_of

SOURCE = ROOT / "src"
LINKED = ("c10", "c10_cuda", "torch_cpu")
NEEDED = r"torch/include/|torch/version\.py|torch-[^/]*/METADATA"
MOST_BYTES = 2 << 20
"""Of all libraries together."""


def building() -> Any:
    """Return the module `building`, without its packages, which would import PyTorch."""
    sys.path.insert(0, str(SOURCE))
    folder = SOURCE / "allotment" / "torch"
    for name, path in (("allotment.torch", folder), ("allotment.torch._deep", folder / "_deep")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    return importlib.import_module("allotment.torch._deep.building")


def headers_of(release: str) -> Path:
    site = PLACE / release / "headers"
    done = site / "complete"
    if not done.exists():
        unpack(wheel_of(release), site, only=NEEDED)
        unpack_cuda(site, "runtime")
        done.touch()
    return site


def compile_for(release: str, module: Any, program: Any, compiled: Path) -> Path:
    site = headers_of(release)
    facts = version_facts(site)
    torch = module.TorchFacts(
        version=facts["__version__"], cuda=facts["cuda"], folder=site / "torch", git_version=facts["git_version"]
    )
    path = compiled / module.packaged_name(torch, program)
    if path.exists():
        return path
    print(f"compiling {program.name} for PyTorch {torch.version} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in LINKED:
            library = f"{folder}/lib{name}.so"
            empty = ["-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,lib{name}.so", "-o", library]
            subprocess.run(["cc", *empty], check=True)
        # The symbol table stays: without it, C++ stacks of a history show wrong names for the functions in here.
        linked = [f"-L{folder}", "-Wl,--no-as-needed", *(f"-l{name}" for name in LINKED), "-Wl,--strip-debug"]
        made = f"{folder}/{path.name}"
        subprocess.run([*module.command_for(torch, program), *linked, "-o", made], check=True)
        compiled.mkdir(exist_ok=True)
        shutil.move(made, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    options = parser.parse_args()
    module = building()
    compiled = module.PACKAGED
    for release in options.releases:
        for program in (module.TORCH_ALLOCATOR, module.TORCH_PINNED_ALLOCATOR):
            made = compile_for(release, module, program, compiled)
            for older in set(compiled.glob(f"{program.name}-{release}+*")) - {made}:
                older.unlink()
    libraries = sorted(compiled.glob("*.so"))
    total = sum(path.stat().st_size for path in libraries)
    print(f"{len(libraries)} libraries, {total / 1024:.0f} KiB, in {compiled}")
    if total > MOST_BYTES:
        sys.exit(f"the libraries have {total} bytes together, more than {MOST_BYTES}")


if __name__ == "__main__":
    main()
