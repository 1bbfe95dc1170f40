"""What holds for all tests."""

from collections.abc import Callable
from functools import cache
from types import ModuleType

import pytest

pytest.register_assert_rewrite("contracts", "helpers")


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """Gives a compiled module of the tests by its name; see helpers/extension.py."""
    from helpers.extension import build

    folder = tmp_path_factory.mktemp("extensions")
    return cache(lambda name: build(name, folder))
