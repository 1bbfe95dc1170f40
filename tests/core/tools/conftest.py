"""The tools, callable from Python."""

import pytest


@pytest.fixture(scope="session")
def tools(extension):
    return extension("tools")
