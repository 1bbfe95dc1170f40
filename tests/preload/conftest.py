import sys
from pathlib import Path

import pytest

from helpers.preloaded import build_driver

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a driver made of host memory."""
    return build_driver(tmp_path_factory.mktemp("driver"))
