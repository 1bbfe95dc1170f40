"""Tests that need an NVIDIA GPU; without one they are skipped with the reason."""

import faulthandler
import os

import numpy
import pytest

from allotment import Allocator, Stream
from allotment.errors import DeviceError

# Streams share hardware queues beyond this many, and then one that is held can hold others. Read by the driver
# when it is initialized.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# numba-cuda 0.30 compiles nothing without this name, which NumPy 2.5 has given up.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack


@pytest.fixture(scope="session")
def cuda_device():
    cuda = pytest.importorskip("allotment._devices.cuda.device", reason="the CUDA backend is built only on Linux")
    try:
        return cuda.CudaDevice(0)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def device(cuda_device):
    return cuda_device


@pytest.fixture
def streams(device):
    """Return the stream that memory is for, and another."""
    made = [Stream(device) for _ in range(2)]
    yield made
    for stream in made:
        stream.destroy()


@pytest.fixture
def allocator(device):
    made = Allocator(device)
    yield made
    device.synchronize()
    made.inspection.check_invariants()


@pytest.fixture(autouse=True)
def watchdog(pytestconfig):
    """A wait for a stream that is never released ends the run, after pytest's faulthandler_timeout if set."""
    faulthandler.dump_traceback_later(float(pytestconfig.getini("faulthandler_timeout")) or 120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
