"""All public objects of the package: functions, classes, and their methods and properties."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any

import pytest

from helpers import stub_cuda_core
from helpers.adapter_on import adapter_on
from helpers.stub_cupy import StubCupy
from helpers.stub_numba import StubNumba
from helpers.torch_stand_in import adapter_on_stand_in

MODULES = [
    "allotment",
    "allotment.cpu",
    "allotment.devices",
    "allotment.entry",
    "allotment.errors",
    "allotment.testing",
]


@dataclass(frozen=True)
class PublicName:
    name: str  # "allotment.Stream.wait"
    value: Any  # a method is the class's attribute, not bound
    owner: type | None = None

    @property
    def is_field(self) -> bool:
        """A field of a record, which has no docstring in Python: the record's own describes it."""
        return self.owner is not None and self.name.rpartition(".")[2] in field_names(self.owner)

    @property
    def doc(self) -> str:
        if self.is_field:
            doc = inspect.getdoc(self.owner) or ""
            return doc if f"`{self.name.rpartition('.')[2]}`" in doc else ""
        doc = getattr(self.value, "__doc__", None) or ""
        return "" if doc == "None" else doc  # Cython's placeholder for no docstring, for some methods


def field_names(cls: type) -> set[str]:
    names = {one.name for one in fields(cls)} if is_dataclass(cls) else set()
    return names | set(getattr(cls, "_fields", ()))


@contextmanager
def public_modules() -> Iterator[list[ModuleType]]:
    """Return the public modules; adapters are imported over stand-ins of their frameworks."""
    with ExitStack() as stack:
        modules = [importlib.import_module(name) for name in MODULES]
        modules.append(stack.enter_context(adapter_on(StubCupy().modules, "allotment.cupy")))
        modules.append(stack.enter_context(adapter_on(StubNumba().modules, "allotment.numba")))
        modules.append(stack.enter_context(adapter_on(stub_cuda_core.modules(), "allotment.cuda_core")))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        modules.append(adapter_on_stand_in(patch).memory)
        yield modules


def public_names(module: ModuleType) -> Iterator[PublicName]:
    """Return the names in a module's `__all__`, and the members of its classes that we wrote."""
    for name in module.__all__:
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if getattr(value, "__module__", "allotment").partition(".")[0] != "allotment":
            continue  # passed on as it is
        yield PublicName(f"{module.__name__}.{name}", value)
        if inspect.isclass(value):
            for member in dir(value):
                owner = next((one for one in value.__mro__ if member in vars(one)), None)
                if not member.startswith("_") and owner is not None and is_ours(owner):
                    held = vars(owner)[member]
                    held = held.__func__ if isinstance(held, staticmethod | classmethod) else held
                    yield PublicName(f"{module.__name__}.{name}.{member}", held, owner)


def is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "allotment"
