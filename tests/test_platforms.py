"""Modules that are built everywhere use nothing that only Linux has: checked on Linux, without another machine. It
shows what could be compiled and imported elsewhere, not that it was.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LINUX_ONLY = ast.literal_eval(
    re.search(r"^LINUX_ONLY = (\(.*?\))$", (ROOT / "setup.py").read_text(), re.MULTILINE | re.DOTALL)[1]
)

PORTABLE_HEADERS = {
    "Python.h",
    "<string.h>",
    "<stdlib.h>",
    "<stddef.h>",
    "<stdint.h>",
    "<time.h>",
    "errno.h",
    "pythread.h",
    "raise_in_torch.hpp",
    "pinned_points.h",
    "*",
}
CIMPORT = re.compile(r"^\s*from ([\w.]+) cimport (\([^)]*\)|.*)", re.MULTILINE)
EXTERN = re.compile(r"^cdef extern from (?:\"([^\"]*)\"|(\*))", re.MULTILINE)
GUARDED = {
    "emmintrin.h",
    "fcntl.h",
    "sys/mman.h",
    "sys/syscall.h",
    "io.h",
    "malloc.h",
    "pthread.h",
    "intrin.h",
    "sched.h",
    "unistd.h",
    "windows.h",
}  # in C that checks for the compiler or system first


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def is_linux_only(module: str) -> bool:
    return f"{module}.".startswith(LINUX_ONLY) or module.startswith(LINUX_ONLY)


PORTABLE = sorted(
    path
    for path in SOURCE.rglob("*.p[yx][xd]")
    if path.suffix in (".pyx", ".pxd") and not is_linux_only(module_of(path))
)


def cimported(path: Path) -> set[str]:
    found = set()
    for origin, names in CIMPORT.findall(path.read_text()):
        found.add(origin)
        found |= {f"{origin}.{name}" for name in re.findall(r"\w+", names)}
    return found


def test_the_list_of_linux_only_modules_is_that_of_the_build():
    assert "allotment._devices.host." in LINUX_ONLY
    assert PORTABLE


def test_what_is_built_everywhere_cimports_nothing_of_linux():
    for path in PORTABLE:
        of_linux = {name for name in cimported(path) if is_linux_only(name) or name.split(".")[0] == "posix"}
        assert not of_linux, module_of(path)


def test_what_is_built_everywhere_includes_headers_that_are_there():
    for path in PORTABLE:
        text = path.read_text()
        assert {name or star for name, star in EXTERN.findall(text)} <= PORTABLE_HEADERS, module_of(path)
        included = set(re.findall(r"#include [<\"]([^>\"]+)", text))
        assert included <= {header.strip("<>") for header in PORTABLE_HEADERS} | GUARDED, module_of(path)
        if included & GUARDED:
            unguarded = f"{module_of(path)}: a header of one system stands unguarded"
            assert re.search(r"#if.*(_MSC_VER|_WIN32|__linux__)", text), unguarded


def test_without_the_linux_only_modules_the_rest_can_be_imported_and_used():
    program = f"""
import sys
from importlib.abc import MetaPathFinder

LINUX_ONLY = {LINUX_ONLY!r}

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(LINUX_ONLY) and name.count(".") > 2:
            raise ImportError(f"{{name}} is absent here")

sys.meta_path.insert(0, Absent())
import allotment
from allotment.lab import replay

allocator = allotment.Allocator("sim:1GiB")
allocator.free(allocator.malloc(1000))
allocator.inspection.check_invariants()
try:
    allotment.Allocator("host")
except (allotment.AllotmentError, ImportError) as error:
    print("no host:", error)
assert not [name for name in sys.modules if name.startswith(LINUX_ONLY) and name.count(".") > 2]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no host:")
