"""Replaces all allocators that a program makes by watched ones, and reports accesses without the program's help.

    with watching() as seen:
        ...                         # `allotment.Allocator(...)` is watched here
    assert seen.reports == []

An allocated block is used at once on its stream; a function that is submitted to a stream uses every block that one of
its arguments, an address or an array, points into. All of these accesses are writes, except for what `memmove` and
`string_at` read. So a program passes only if it orders all accesses of two streams.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import allotment
from allotment._allocators.caching.sanitizer import watch
from allotment._allocators.caching.sanitizer.reports import Report
from allotment._allocators.caching.sanitizer.watch import Sanitizer
from allotment.errors import SanitizerWarning

_PLAIN = allotment.Allocator
_TOLD = ("allocated", "submitting", "_note")


@dataclass
class Seen:
    """`allocators` made, `accesses` reported, and `reports`, each with the test that was `running`."""

    allocators: int = 0
    accesses: int = 0
    running: str = ""
    reports: list[tuple[str, Report]] = field(default_factory=list)


def _is_read(function: Any, place: int) -> bool:
    """Whether a function only reads that argument."""
    return function is ctypes.string_at or (function is ctypes.memmove and place == 1)


def _addresses(arguments: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """Return (position, address) of those arguments that may point into a block."""
    for place, given in enumerate(arguments):
        if isinstance(given, np.ndarray) and given.size:
            yield place, given.__array_interface__["data"][0]
        elif isinstance(given, int) and not isinstance(given, bool) and given > 0:
            yield place, given
        elif isinstance(given, allotment.Buffer):
            yield place, given.address


class _InPlaceOf(type):
    """Return a class that makes watched allocators, and otherwise behaves like the allocators' class."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = _PLAIN(*arguments, **{"sanitize": True, **options})
        if "sanitize" not in options:
            made._sanitizer.seen = cls.seen
            cls.seen.allocators += 1
        return made

    def __instancecheck__(cls, given: Any) -> bool:
        return isinstance(given, _PLAIN)

    def __getattr__(cls, name: str) -> Any:
        return getattr(_PLAIN, name)


def _tell_of_owner(sanitizer: Sanitizer, address: int) -> None:
    """Report that the stream that a block is for uses it."""
    block = sanitizer._blocks.at(address)
    if hasattr(sanitizer, "seen") and block is not None and block.address == address and block.ended is None:
        sanitizer.seen.accesses += 1
        sanitizer.touched(address, block.stream, writes=True)


def _tell_of_caller(sanitizer: Sanitizer, address: int, *, writes: bool) -> None:
    """Report that the running function uses the block that contains this address."""
    if hasattr(sanitizer, "seen") and sanitizer._blocks.at(address) is not None:
        sanitizer.seen.accesses += 1
        sanitizer.touched(address, None, writes=writes)


def _is_made_up(report: Report) -> bool:
    """Whether the finding is only that the host did not wait for its own array, which no stream has really used."""
    names = {name for _, _, name in report.first.stack}
    return _tell_of_owner.__name__ in names and report.second.stream is None


@contextmanager
def watching(*, keeps_back: bool = True) -> Iterator[Seen]:
    """Watch every `allotment.Allocator` that is made inside, unless its arguments say whether to watch it.

    Without `keeps_back` there is no quarantine, so that memory is reused at once, as it is without a sanitizer.
    """
    seen = Seen()
    allocated, submitting, noted = (getattr(Sanitizer, name) for name in _TOLD)

    def used_when_allocated(self: Sanitizer, address: int, size: int, stream: int) -> None:
        allocated(self, address, size, stream)
        _tell_of_owner(self, address)

    def used_by_functions(self: Sanitizer, stream: Any, function: Callable[..., Any]) -> Any:
        def tells(*arguments: Any) -> Any:
            for place, address in _addresses(arguments):
                _tell_of_caller(self, address, writes=not _is_read(function, place))
            return function(*arguments)

        return submitting(self, stream, tells)

    def note(self: Sanitizer, report: Report) -> None:
        if hasattr(self, "seen") and not _is_made_up(report):
            seen.reports.append((seen.running, report))
        noted(self, report)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", SanitizerWarning)
        patch.setattr(allotment, "Allocator", _InPlaceOf("Allocator", (), {"seen": seen, "__doc__": _PLAIN.__doc__}))
        for name, told in zip(_TOLD, (used_when_allocated, used_by_functions, note), strict=True):
            patch.setattr(Sanitizer, name, told)
        if not keeps_back:
            patch.setattr(watch, "_QUARANTINE_BYTES", 0)
            patch.setattr(watch, "_QUARANTINE_BLOCKS", 0)
        yield seen
