"""Calls each function of a device's contract table from Python: for contract tests and for tools.

Arguments are passed on unchecked, so a test can also pass values that the engine never passes. Each call runs without
the interpreter lock, as the engine's own calls do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from allotment._core.contract.operations import OPERATIONS, Capability, Operation, Share, Status, Value
from allotment._core.contract.table import Device, functions
from allotment.errors import UnsupportedError

__all__ = ["Capability", "Probe", "Share", "Status", "StatusError"]

_HANDLE_CAPACITY = 256
_TEXT_CAPACITY = 1024
_UNWRITTEN = 0xA110_CA7E_DEAD_BEEF
"""Content of an out-parameter before a call; no device returns this value."""
_NARROW = {"device": ctypes.c_int, "share": ctypes.c_int, "flag": ctypes.c_int}


class StatusError(Exception):
    """A contract call did not return OK; has `status`, `operation`, and the device's own text in `text`."""

    def __init__(self, status: Status, operation: str, text: str) -> None:
        super().__init__(f"{operation}: {status.name}" + (f" ({text})" if text else ""))
        self.status = status
        self.operation = operation
        self.text = text


class Probe:
    """One method for each operation of a device's contract table, with the operation's parameters.

    A method returns the operation's result. It raises StatusError if the operation did not return OK, and
    UnsupportedError if the device lacks it. The two queries return False for NOT_READY. A method raises AssertionError
    if a failed operation wrote its result nevertheless. A trailing stream argument may be omitted: it is then the
    default stream.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._self, *addresses = functions(device)
        self._addresses = dict(zip((operation.name for operation in OPERATIONS), addresses, strict=True))
        self._functions: dict[str, Callable[..., int]] = {}

    def __repr__(self) -> str:
        return f"Probe({self.device!r})"

    @property
    def operations(self) -> frozenset[str]:
        """Operations that this device has."""
        return frozenset(name for name, address in self._addresses.items() if address)

    @property
    def capabilities(self) -> Capability:
        """Capabilities that the device claims."""
        return Capability(self.device.capabilities)

    def describe(self) -> str:
        """Return the device's text for this thread's last failure."""
        text = ctypes.create_string_buffer(_TEXT_CAPACITY)
        length = self._function("describe", ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_size_t])(text, _TEXT_CAPACITY)
        return text.raw[: min(length, _TEXT_CAPACITY)].decode("utf-8", "replace")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        for operation in OPERATIONS:
            if operation.name == name:
                return lambda *arguments: self._call(operation, arguments)
        raise AttributeError(f"the contract has no operation {name!r}")

    def _function(self, name: str, result: Any, parameters: list[Any]) -> Callable[..., int]:
        if not self._addresses[name]:
            raise UnsupportedError(
                f"{self.device.name} does not support {name}", operation=name, status=Status.UNSUPPORTED
            )
        if name not in self._functions:
            prototype = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *parameters)
            self._functions[name] = partial(prototype(self._addresses[name]), self._self)
        return self._functions[name]

    def _call(self, operation: Operation, given: tuple[Any, ...], capacity: int = 0) -> Any:
        parameters = operation.parameters
        if len(given) == len(parameters) - 1 and parameters[-1].role == "stream":
            given = (*given, 0)
        if len(given) != len(parameters):
            raise TypeError(f"{operation.name} takes {operation.takes or 'nothing'}, not {given!r}")
        taken = zip(parameters, given, strict=True)
        arguments = [part for value, argument in taken for part in passed(value, argument)]
        results = [Result(value, capacity) for value in operation.results]
        arguments += [part for result in results for part in result.parts]
        function = self._function(operation.name, ctypes.c_int, [type_of(argument) for argument in arguments])
        status = Status(function(*arguments))
        if status is Status.NOT_READY and operation.gives.startswith("ready"):
            return False
        if status is not Status.OK:
            if any(result.is_written for result in results):
                raise AssertionError(f"{operation.name} returned {status.name} but wrote its result")
            raise StatusError(status, operation.name, self.describe() if self._addresses["describe"] else "")
        if any(result.lacks_room for result in results):
            # By contract a device counts also the nodes that it had no room to write.
            return self._call(operation, given, results[0].number.value)
        values = tuple(result.value for result in results)
        return values if len(values) > 1 else values[0] if values else None


def passed(value: Value, argument: Any) -> list[Any]:
    """Return the C arguments for one Python argument."""
    if value.role == "data":
        return [ctypes.c_char_p(argument), ctypes.c_size_t(len(argument))]
    number = _NARROW.get(value.role, ctypes.c_uint64)(argument)
    if number.value != argument:
        raise OverflowError(f"{argument} is not {value.name}")
    return [number]


def type_of(argument: Any) -> Any:
    return ctypes.c_void_p if isinstance(argument, ctypes.Array) else type(argument)


class Result:
    """Space for one result of a call, which holds the value afterwards."""

    def __init__(self, value: Value, capacity: int) -> None:
        self.role = value.role
        self.number = ctypes.c_uint64(_UNWRITTEN)
        self.capacity = _HANDLE_CAPACITY if self.role == "data" else capacity
        self.room = (ctypes.c_uint64 if self.role == "nodes" else ctypes.c_ubyte) * self.capacity
        self.items = self.room()

    @property
    def parts(self) -> list[Any]:
        if self.role == "ready":
            return []
        number = ctypes.pointer(self.number)
        return [self.items, ctypes.c_size_t(self.capacity), number] if self.role in ("data", "nodes") else [number]

    @property
    def is_written(self) -> bool:
        return self.number.value != _UNWRITTEN

    @property
    def lacks_room(self) -> bool:
        return self.role == "nodes" and self.number.value > self.capacity

    @property
    def value(self) -> Any:
        match self.role:
            case "ready":
                return True
            case "nodes":
                return tuple(self.items[: self.number.value])
            case "data":
                return bytes(self.items[: self.number.value])
        return self.number.value
