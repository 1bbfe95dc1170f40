"""NumPy arrays that report to a sanitizer what they touch: universal functions, items, and NumPy's other functions.

A function that NumPy runs on such an array counts as work of the stream whose function calls it, else of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_WRITES_FIRST = {np.copyto, np.put, np.place, np.putmask, np.fill_diagonal}


class WatchedArray(np.ndarray[Any, Any]):
    """An array on a watched allocator's memory. Results of calculations are plain arrays."""

    _allotment_allocator: Any = None

    def __array_finalize__(self, other: Any) -> None:
        self._allotment_allocator = getattr(other, "_allotment_allocator", None)

    def _touch(self, *, writes: bool) -> None:
        if self._allotment_allocator is not None and self.size:
            self._allotment_allocator.inspection.touch(self.__array_interface__["data"][0], write=writes)

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", ())
        for given in inputs:
            _touch(given, writes=method == "at" and given is inputs[0])
        for given in out:
            _touch(given, writes=True)
        if out:
            options["out"] = tuple(_plain(given) for given in out)
        result = getattr(ufunc, method)(*(_plain(given) for given in inputs), **options)
        return out[0] if len(out) == 1 else result

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        for given in _watched([arguments, options]):
            is_target = function in _WRITES_FIRST and given is arguments[0]
            given._touch(writes=is_target or given is options.get("out"))
        return function(*_unwatched(arguments), **_unwatched(options))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._touch(writes=True)
        _touch(value, writes=False)
        self.view(np.ndarray)[key] = _plain(value)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, WatchedArray):
            self._touch(writes=False)
        return found


def _touch(given: Any, *, writes: bool) -> None:
    if isinstance(given, WatchedArray):
        given._touch(writes=writes)


def _plain(given: Any) -> Any:
    return given.view(np.ndarray) if isinstance(given, WatchedArray) else given


def _watched(given: Any) -> Iterator[WatchedArray]:
    if isinstance(given, WatchedArray):
        yield given
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _watched(part)
    elif isinstance(given, dict):
        yield from _watched(list(given.values()))


def _unwatched(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return type(given)(_unwatched(part) for part in given)
    if isinstance(given, dict):
        return {key: _unwatched(value) for key, value in given.items()}
    return _plain(given)


def watched(array: Any, allocator: Any) -> Any:
    """Return the same memory as an array that reports its use."""
    view = array.view(WatchedArray)
    view._allotment_allocator = allocator
    return view
