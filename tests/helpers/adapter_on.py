"""Imports an adapter whose framework is not installed."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import pytest


@contextmanager
def adapter_on(stand_ins: Mapping[str, ModuleType], name: str) -> Iterator[ModuleType]:
    """Return the module `name`, imported anew, which finds the stand-ins instead of its framework."""
    with pytest.MonkeyPatch.context() as patch:
        for place, module in stand_ins.items():
            patch.setitem(sys.modules, place, module)
        patch.delitem(sys.modules, name, raising=False)
        yield importlib.import_module(name)
        sys.modules.pop(name)
