"""Ordered keys and disjoint intervals for histories of any length: no operation visits all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Intervals", "SortedKeys"]

Value = TypeVar("Value")

_LONGEST = 1024


class SortedKeys:
    """Distinct keys in order, in runs that are short enough to insert into."""

    def __init__(self) -> None:
        self._runs: list[list[Any]] = []
        self._last: list[Any] = []
        """The last key of each run."""

    def add(self, key: Any) -> None:
        """pre: it is not there"""
        if not self._runs:
            self._runs.append([key])
            self._last.append(key)
            return
        place = min(bisect_left(self._last, key), len(self._runs) - 1)
        run = self._runs[place]
        insort(run, key)
        if len(run) > _LONGEST:
            half = run[: _LONGEST // 2]
            del run[: _LONGEST // 2]
            self._runs.insert(place, half)
            self._last.insert(place, half[-1])
            place += 1
        self._last[place] = run[-1]

    def remove(self, key: Any) -> None:
        """pre: it is there"""
        place = bisect_left(self._last, key)
        run = self._runs[place]
        del run[bisect_left(run, key)]
        if run:
            self._last[place] = run[-1]
        else:
            del self._runs[place], self._last[place]

    def at_or_before(self, key: Any) -> Any:
        """Return the greatest key up to this one, or None."""
        place = bisect_left(self._last, key)
        if place < len(self._runs):
            run = self._runs[place]
            within = bisect_right(run, key)
            if within > 0:
                return run[within - 1]
        return self._last[place - 1] if place > 0 else None

    def after(self, key: Any) -> Any:
        """Return the least key above this one, or None."""
        place = bisect_right(self._last, key)
        if place == len(self._runs):
            return None
        run = self._runs[place]
        return run[bisect_right(run, key)]

    def __iter__(self) -> Iterator[Any]:
        for run in self._runs:
            yield from run


class Intervals(Generic[Value]):
    """Disjoint intervals of integers, each with a value."""

    def __init__(self) -> None:
        self._starts = SortedKeys()
        self._found: dict[int, tuple[int, Value]] = {}
        """By start: the end, and the value."""

    def at(self, point: int) -> Value | None:
        """Return the value of the interval that contains a point, or None."""
        start = self._starts.at_or_before(point)
        if start is None:
            return None
        end, value = self._found[start]
        return value if point < end else None

    def end_of_kind(self, point: int, end: int) -> int:
        """Return how far from a point on, at most to the end, all points have a value or none has."""
        start = self._starts.at_or_before(point)
        if start is None or self._found[start][0] <= point:
            following = self._starts.after(point)
            return end if following is None else min(following, end)
        last = self._found[start][0]
        while last < end and last in self._found:
            last = self._found[last][0]
        return min(last, end)

    def first_in(self, start: int, end: int) -> Value | None:
        """Return the value of the first interval that overlaps this one; None for none."""
        if start >= end:
            return None
        if (value := self.at(start)) is not None:
            return value
        following = self._starts.after(start)
        return self._found[following][1] if following is not None and following < end else None

    def put(self, start: int, end: int, value: Value) -> int:
        """Give an interval a value, whatever it had before; return how much of it had none."""
        if start >= end:
            return 0
        had = sum(piece_end - piece_start for piece_start, piece_end, _ in self.clear(start, end))
        self._add(start, end, value)
        return end - start - had

    def clear(self, start: int, end: int) -> list[tuple[int, int, Value]]:
        """Remove the values of an interval; return its parts that had one."""
        taken: list[tuple[int, int, Value]] = []
        if start >= end:
            return taken
        first = self._starts.at_or_before(start)
        if first is None:
            first = self._starts.after(start)
        while first is not None and first < end:
            last, value = self._found[first]
            following = self._starts.after(first)
            if last > start:
                self._starts.remove(first)
                del self._found[first]
                if first < start:
                    self._add(first, start, value)
                if last > end:
                    self._add(end, last, value)
                taken.append((max(first, start), min(last, end), value))
            first = following
        return taken

    def _add(self, start: int, end: int, value: Value) -> None:
        self._starts.add(start)
        self._found[start] = (end, value)

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        """Yield start, end and value of all intervals, in order."""
        for start in self._starts:
            end, value = self._found[start]
            yield start, end, value

    def __bool__(self) -> bool:
        return bool(self._found)
