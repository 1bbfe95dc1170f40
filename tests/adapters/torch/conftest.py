import pytest

from helpers.torch_on_host_memory import build_driver, run_on


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Return the folder of a CUDA driver made of host memory."""
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def run(driver):
    """Return what a Python program prints that runs on that driver."""
    return lambda *arguments, **settings: run_on(driver, *arguments, **settings)
