"""What holds for all tests."""

import os
from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest

pytest.register_assert_rewrite("contracts", "helpers")


def pytest_configure(config: pytest.Config) -> None:
    """What the user has calibrated prices no replay of the tests, and the tests leave nothing in the user's folders."""
    home = TemporaryDirectory(prefix="allotment-tests-")
    config.add_cleanup(home.cleanup)
    os.environ["XDG_CONFIG_HOME"] = home.name
    os.environ.pop("ALLOTMENT_COSTS", None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of `allotment.testing` that start threads say so without our marker, which its users do not have."""
    for item in items:
        if getattr(getattr(item, "function", None), "runs_threads", False):
            item.add_marker(pytest.mark.threads)


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Gives a compiled module of the tests by its name; see helpers/extension.py."""
    from helpers.extension import build

    folder = tmp_path_factory.mktemp("extensions")
    return cache(lambda name: build(name, folder))
