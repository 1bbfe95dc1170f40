"""The installed PyTorch, on a CUDA driver and runtime made of host memory."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import allotment

HELPERS = Path(__file__).parent
SOURCE = str(Path(allotment.__file__).parents[1])
CUDA_HEADERS = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
OUR_CUDA_HEADERS = Path(allotment.__file__).parent / "torch" / "_deep" / "cuda_headers"  # missing beside PyTorch's own

BUILDABLE = [
    pytest.mark.skipif(not (shutil.which("c++") and shutil.which("cc")), reason="no compiler on this machine"),
    pytest.mark.skipif(not (CUDA_HEADERS / "cuda_runtime_api.h").exists(), reason="no headers of CUDA on this machine"),
]
"""The marks of a test that uses the driver without PyTorch."""
NEEDED = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
    *BUILDABLE,
]
"""The marks of a test that uses it."""


def build_driver(folder):
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    headers = [f"-I{folder}" for folder in (CUDA_HEADERS, OUR_CUDA_HEADERS)]
    sources = [HELPERS / name for name in ("fake_libcuda.c", "fake_cudart.c", "fake_nvml.c")]
    subprocess.run(["cc", *flags, *headers, "-o", folder / "libcuda.so.1", *sources], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")
    return folder


def run_on(driver, *arguments, **settings):
    """Return what a Python program prints that runs there; `settings` are environment variables."""
    environment = os.environ | settings | {
        "LD_LIBRARY_PATH": str(driver), "LD_PRELOAD": str(driver / "libcuda.so.1"), "PYTHONPATH": SOURCE,
        "FAKE_CUDA_WITHOUT": "fabric,strictness",
    }  # fmt: skip
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
