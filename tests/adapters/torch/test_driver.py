"""The CUDA driver and runtime made of host memory that PyTorch runs on, also where PyTorch is not installed."""

import subprocess
import sys

from helpers.torch_on_host_memory import BUILDABLE

pytestmark = BUILDABLE

PROGRAM = """
import ctypes, sys
library, count = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
print(library.cuInit(0), library.cudaGetDeviceCount(ctypes.byref(count)), count.value)
"""


def test_the_driver_and_the_runtime_are_one_library(driver):
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM, driver / "libcuda.so.1"], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == ["0", "0", "1"]
