"""Programs of real frameworks under `allotment.preload`: how each finds and calls the driver, and what it gets."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "ways_to_the_driver.py"

# For each framework: its module; a function of the driver that it calls for memory; how it finds that function, and
# which library does. The CUDA runtime is a part of CuPy and of JAX, and a library of its own beside PyTorch.
WAYS = {
    "torch": ("torch", "cuMemAlloc_v2", {"cuGetProcAddress": "cudart"}),
    "cupy": ("cupy", "cuMemAllocAsync", {"cuGetProcAddress": "cupy"}),
    "numba": ("numba.cuda", "cuMemAlloc_v2", {"cuGetProcAddress": "cuda-python"}),
    "cuda_core": ("cuda.core", "cuMemAllocFromPoolAsync", {"cuGetProcAddress": "cuda-python"}),
    "jax": ("jax", "cuMemCreate", {"dlsym": "jax"}),
}


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def run(name: str, *options: str) -> dict:
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "allotment.preload", *options, str(PROGRAM), name],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("name", WAYS)
def test_the_way_that_a_framework_takes_to_the_driver_is_intercepted(cuda_device, name):
    module, function, found_by = WAYS[name]
    if not has(module):
        pytest.skip(f"{module} is not installed")
    way = run(name)["ways"][function]
    assert way["calls"] > 0
    assert found_by.items() <= way["found_by"].items()


@pytest.mark.gpu
def test_arrays_of_jax_are_served_from_the_stream_ordered_pool(cuda_device):
    if not has("jax"):
        pytest.skip("jax is not installed")
    facts = run("jax", "--depth", "serve", "--jax")
    assert facts["ways"]["cuMemAllocFromPoolAsync"]["calls"] > 0
    assert facts["held"]["jax"] > 0
    assert facts["held"].get("driver pool", 0) == 0
