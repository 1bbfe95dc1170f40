"""Runs a few tests from a folder that no other user can read: as root, if root runs this, and as an ordinary user.

    .venv/bin/python tools/private.py [TEST...]          `make private`

Copies the built tree into a new folder of mode 0700. Tests that change the user or the folder, keep files in the user's
home or start other programs run there: first as root from root's folder, then as a user without a home and without
rights, after the folder's owner was changed to that user. Without root only the second half runs, as the current user.
Exit code 1 if a test fails or no test ran.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = (".git", ".venv", "build", "dist", ".*_cache", ".hypothesis")
TESTS = (
    "tests/sharing/test_faults.py::test_a_process_of_another_user_is_refused_by_both_sides",
    "tests/sharing/test_faults.py::test_an_importer_without_a_descriptor_to_spare",
    "tests/sharing/test_example.py",
    "tests/adapters/torch/test_building.py",
    "tests/adapters/torch/test_building_among_users.py",
    "tests/monitor/test_top.py::test_the_process_of_another_user_is_neither_shown_nor_an_error",
    "tests/monitor/test_top.py::test_another_user_who_takes_a_name_of_ours_is_not_believed",
)
OPTIONS = ("-q", "-rs", "-p", "no:cacheprovider")
NOBODY = 65534


def copy_or_link(source: str, target: str) -> None:
    """Link where the file system allows it: installed files are only read."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def left_out(folder: str, names: list[str]) -> set[str]:
    """Return the names not to copy: generated files; below `src` also the C that Cython wrote."""
    ignored = shutil.ignore_patterns(*LEFT_OUT, *(["*.c", "*.cpp"] if folder.startswith(str(ROOT / "src")) else []))
    return ignored(folder, names)


def python_for_all() -> str | None:
    """Return a Python of this version that an ordinary user can start, if any; this one may be in root's home."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = [sys._base_executable, *(f"{folder}/{name}" for folder in ("/usr/local/bin", "/usr/bin"))]
    for python in found:
        command = [python, "-c", "import encodings, ctypes"]
        try:
            if subprocess.run(command, user=NOBODY, group=NOBODY, cwd="/", capture_output=True).returncode == 0:
                return python
        except OSError:
            continue
    print(f"not run as an ordinary user, who cannot start {name}: tried {', '.join(found)}", flush=True)
    return None


def run(python: str, installed: Path, tree: Path, tests: list[str], user: int | None) -> int:
    """Run the tests in the copy, without the caller's environment variables that name places."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": f"{tree}/src:{installed}"}
    environment |= {name: os.environ[name] for name in ("LANG", "CC", "CXX") if name in os.environ}
    if user is None:
        identity = {}
        environment["HOME"] = os.environ.get("HOME", "/root")
    else:
        identity = {"user": user, "group": user, "extra_groups": []} if user != os.getuid() else {}
        environment["HOME"] = "/nonexistent"
    for command in (["pytest", *OPTIONS, *tests], ["allotment", "replay", "sample", "--json"]):
        done = subprocess.run([python, "-m", *command], cwd=tree, env=environment, umask=0o077, **identity)
        if done.returncode:
            return 1
    return 0


def main() -> int:
    tests = sys.argv[1:] or list(TESTS)
    is_root = os.getuid() == 0
    installed = Path(next(path for path in sys.path if path.endswith("site-packages")))
    with tempfile.TemporaryDirectory(prefix="allotment-private-") as made:  # of mode 0700
        folder = Path(made)
        tree = folder / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
        if not is_root:
            print("from a private folder, as this user without a home:", flush=True)
            return run(sys.executable, installed, tree, tests, os.getuid())
        print("from a private folder, as root:", flush=True)
        as_root = run(sys.executable, installed, tree, tests, None)
        python = python_for_all()
        if python is None:
            return as_root
        for path in [folder, tree, *tree.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        shutil.copytree(installed, folder / "installed", copy_function=copy_or_link)
        (folder / "installed").chmod(0o755)
        print("from a private folder, as an ordinary user without a home:", flush=True)
        return run(python, folder / "installed", tree, tests, NOBODY) or as_root


if __name__ == "__main__":
    sys.exit(main())
