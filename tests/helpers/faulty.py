"""A device written in Python whose methods may raise at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allotment._core.contract.operations import OPERATIONS
from allotment._devices.python.backend import Backend

METHODS = [operation.python_name for operation in OPERATIONS if not operation.is_special]
Faults = Callable[[int, str], BaseException | None]


def no_faults(number: int, method: str) -> None:
    return None


def faulty(device_class: type[Backend]) -> type[Any]:
    """Return the class with methods that call `faults` first. `device.faults(number, method)` gets the number of the
    call, counted in `device.calls`, and returns the exception to raise, or None. Nothing has changed by then, as the
    contract demands of a method that raises.
    """
    defined = [name for name in METHODS if getattr(device_class, name, None) is not getattr(Backend, name, None)]
    return type(f"Faulty{device_class.__name__}", (device_class,), {
        "faults": staticmethod(no_faults),
        "calls": 0,
        **{name: ask_first(name, getattr(device_class, name)) for name in defined},
    })  # fmt: skip


def ask_first(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def asking(self: Any, *arguments: Any) -> Any:
        self.calls += 1
        fault = self.faults(self.calls, name)
        if fault is not None:
            raise fault
        return method(self, *arguments)

    return asking
