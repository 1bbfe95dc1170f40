"""Wheels of PyTorch's releases: downloaded once to `build/releases`, and unpacked in part. Nothing is installed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "releases"
WHEELS = PLACE / "wheels"
RELEASES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
THIS_PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def download(folder: Path, name: str) -> None:
    """Download a wheel. `===` in the name excludes builds with a suffix, such as +cpu."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), name], check=True)


def wheel_of(release: str) -> Path:
    """Return PyTorch's wheel for this Python."""
    pattern = f"torch-{release}-{THIS_PYTHON}-*.whl"
    if not any(WHEELS.glob(pattern)):
        print(f"downloading PyTorch {release} ...", flush=True)
        download(WHEELS, f"torch==={release}")
    return next(WHEELS.glob(pattern))


def unpack(wheel: Path, place: Path, *, only: str = "", without: str = "$^") -> None:
    """Unpack the files of a wheel whose names match `only` and do not match `without`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.match(only, name) and not re.match(without, name)]
        archive.extractall(place, names)


def requirements(site: Path) -> Iterator[str]:
    """Yield what an unpacked PyTorch requires on Linux, without its extras."""
    metadata = next(site.glob("torch-*.dist-info/METADATA")).read_text()
    for name, condition in re.findall(r"^Requires-Dist: ([^;\n]+)(?:; *(.*))?$", metadata, re.M):
        if "extra" not in condition:
            yield name.strip()


def unpack_cuda(site: Path, *parts: str) -> None:
    """Unpack parts of CUDA with their headers ("runtime", "cupti"), of the version that PyTorch was built with."""
    version = version_facts(site)["cuda"]
    for part in parts:
        folder = WHEELS / f"cuda-{part}-{version}"
        if not any(folder.glob("*.whl")):
            download(folder, f"nvidia-cuda-{part}=={version}.*")
        unpack(next(folder.glob("*.whl")), site, only="nvidia/")


def version_facts(site: Path) -> dict[str, str]:
    """Return the names in an unpacked PyTorch's `version.py`."""
    return runpy.run_path(str(site / "torch" / "version.py"))
