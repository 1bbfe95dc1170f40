"""Programs started with `allotment.preload`, or with its variables, on the driver that is made of host memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from allotment import preload
from helpers.c_library import compiled

NAME = "libcuda.so.1"
FAKE = Path(__file__).parent / "fake_libcuda.c"

# The beginning of each test program: a context, and the driver's functions by ctypes.
BEGIN = """
import ctypes, json, os, sys
import allotment
from allotment import preload
from allotment._process.library import preloaded

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)

def allocate(size, name="cuMemAlloc_v2", *more, library=cuda):
    address = ctypes.c_uint64()
    result = getattr(library, name)(ctypes.byref(address), ctypes.c_size_t(size), *more)
    return address.value if result == 0 else -result

def free(address, name="cuMemFree_v2", *more, library=cuda):
    return getattr(library, name)(ctypes.c_uint64(address), *more)

def stream():
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made

def info():
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total)) == 0
    return free_bytes.value, total.value

def used_on_device():
    cuda.fake_used.restype = ctypes.c_size_t
    return cuda.fake_used()

def held():
    return {name: own.driver for name, own in preloaded().libraries(0).items() if own.driver}

def served():
    return {name: own.served for name, own in preloaded().libraries(0).items() if own.served}
"""

# The same without our package.
OPEN = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)

def allocate(size):
    address = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    return address.value if result == 0 else -result
"""


def build_driver(folder: Path, *options: str) -> Path:
    """Return the folder with the driver."""
    return compiled(folder / NAME, "-pthread", f"-Wl,-soname,{NAME}", *options, FAKE).parent


def run(driver: Path | None, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and this driver."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    if driver is not None:
        environment["LD_LIBRARY_PATH"] = str(driver)
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=120
    )


def run_beside(part: str, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a C program that includes a part of the library, to call functions that are static there."""
    source = Path(preload.__file__).parent / "library"
    (folder / "main.c").write_text(program)
    others = [other for other in source.glob("*.c") if other.name != part]
    options = ["-std=gnu11", f"-I{source}", "-lpthread", "-ldl"]
    subprocess.run(["cc", "-o", folder / "main", folder / "main.c", *others, *options], check=True)
    return subprocess.run(
        [folder / "main"], env={"ALLOTMENT_PRELOAD": "count"}, capture_output=True, text=True, timeout=120
    )


def output_of(driver: Path, folder: Path, program: str, *options: str, **variables: str) -> list[str]:
    """Return what a program prints under `python -m allotment.preload`; it must exit with 0 and write nothing else."""
    script = folder / "program.py"
    script.write_text(BEGIN + textwrap.dedent(program))
    done = run(driver, "-m", "allotment.preload", *options, script, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()
