"""Compares two traces of the same calls whose addresses the driver chose separately.

A place is named by the segment that it is in, counted in the order in which segments were obtained, and the offset
from its start. An expandable segment counts as one from its first page to its last.

    segment_alloc 0x7f20000000          obtained as number 4            (4, 0)
    alloc         0x7f20000200          200 bytes into it               (4, 512)

Which of two equal free blocks in different segments is taken depends on which address is lower, and so does the order
of releases. `order` stores, for each segment obtained, which existing segments were below it. That shows whether the
driver caused a difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

RELEASES = ("segment_free", "segment_unmap")


class Entry(NamedTuple):
    action: str
    address: int
    size: int
    stream: int


class Decision(NamedTuple):
    action: str
    segment: int
    offset: int
    size: int
    stream: int

    def __str__(self) -> str:
        return f"{self.action} of {self.size} bytes at {self.segment}+{self.offset:#x}, stream {self.stream}"


@dataclass
class Segment:
    number: int
    base: int
    end: int
    mapped: int


@dataclass
class Decisions:
    """A trace with places instead of addresses."""

    entries: list[Decision] = field(default_factory=list)
    order: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """(index of the entry, numbers of the segments below) of each segment obtained."""


def decisions(trace: Iterable[Entry], streams: list[int], range_size: int) -> Decisions:
    """`range_size` is what an expandable segment reserves."""
    result = Decisions()
    held: list[Segment] = []
    count = 0
    for entry in trace:
        if entry.action == "snapshot":
            continue
        stream = streams.index(entry.stream)
        if entry.action == "oom":
            result.entries.append(Decision("oom", -1, 0, entry.size, stream))
            continue
        segment = next((each for each in held if each.base <= entry.address < each.end), None)
        if entry.action in ("segment_alloc", "segment_map") and segment is None:
            size = entry.size if entry.action == "segment_alloc" else range_size
            segment = Segment(count, entry.address, entry.address + size, 0)
            count += 1
            below = frozenset(each.number for each in held if each.base < segment.base)
            result.order.append((len(result.entries), below))
            held.append(segment)
        if segment is None:
            raise ValueError(f"{entry} is in no segment")
        if entry.action in ("segment_alloc", "segment_map"):
            segment.mapped += entry.size
        result.entries.append(Decision(entry.action, segment.number, entry.address - segment.base, entry.size, stream))
        if entry.action in RELEASES:
            segment.mapped -= entry.size
            if segment.mapped == 0:
                held.remove(segment)
    return result


@dataclass(frozen=True)
class Verdict:
    status: str
    """"equal", "different", or "addresses ordered differently" where a difference came after one of those."""
    index: int | None = None
    expected: str = ""
    got: str = ""


def compare(theirs: Decisions, ours: Decisions) -> Verdict:
    pairs = zip_longest(in_fixed_order(theirs.entries), in_fixed_order(ours.entries), fillvalue="nothing")
    for index, (expected, got) in enumerate(pairs):
        if expected != got:
            return explained(theirs, ours, index, str(expected), str(got))
    return Verdict("equal")


def explained(theirs: Decisions, ours: Decisions, index: int, expected: str, got: str) -> Verdict:
    orders_differ = any(
        theirs_at == ours_at <= index and theirs_below != ours_below
        for (theirs_at, theirs_below), (ours_at, ours_below) in zip(theirs.order, ours.order, strict=False)
    )
    return Verdict("addresses ordered differently" if orders_differ else "different", index, expected, got)


def in_fixed_order(entries: list[Decision]) -> Iterable[Decision]:
    """Completions in one run, and releases in one run, have no defined order."""

    def kind(entry: Decision) -> Any:
        return "release" if entry.action in RELEASES else entry.action

    for of_kind, group in groupby(entries, kind):
        run = list(group)
        yield from sorted(run) if of_kind in ("release", "free_completed") else run
