"""Answers from a recording whatever a device decides and an allocator cannot.

The next entries of the recorded trace give addresses, refusals, finished events and free memory. If the recording has
no answer (because the allocator made another request, or the file is wrong), the script invents one: an address that
clashes with nothing, so that the allocator stays consistent and the comparison shows the difference.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from allotment.lab.conformance.file import ADDRESS_END, Op, TraceEntry, entry_of
from allotment.lab.conformance.trace import PoolId, Tape

ALIGNMENT = 512
PAGE = 2 << 20
LARGEST_SMALL = 1 << 20

REFUSALS = frozenset(["oom", "free_completed", "segment_free", "segment_unmap"])
"""Entries that follow when a device had no memory: the allocator released memory, or gave up."""


class EventQueues(Protocol):
    def pending_events(self) -> list[tuple[int, int, int]]:
        """Return (stream, event, block address) of every event waited for, in queue order."""


class GoldenScript:
    """The script of a simulated device, and the tracker of the allocator on it."""

    def __init__(self, trace: Sequence[TraceEntry], total_memory: int, waited: Collection[int] = ()) -> None:
        self.tape = Tape(trace)
        self.queues: EventQueues | None = None
        self.own_calls: list[list[int | str]] = []
        self._traced = bool(trace)
        self._total_memory = total_memory
        self._waited = waited
        self._op: Op = {}
        self._op_waits = False
        self._pool: PoolId = (0, 0)
        self._synchronized: set[int] = set()
        self._segments: dict[int, int] = {}
        self._ranges: dict[int, _Range] = {}
        self._made_up = ADDRESS_END

    def begin_op(self, op: Op, index: int = -1) -> None:
        self._op = op
        self._op_waits = index in self._waited
        self.own_calls = []
        if self._synchronized:  # an event that nothing waits for may be recorded again
            self._synchronized &= {event for _, event, _ in self._pending()}

    def synchronize(self) -> None:
        """Make the whole device idle: every event recorded so far has finished."""
        self._synchronized = {event for _, event, _ in self._pending()}

    def hear_entry(self, entry: dict[str, Any]) -> None:
        """The allocator's trace tracker that gets entries in the form of a snapshot."""
        self.tape.observe(entry_of(entry), self._pool)

    def observe(self, action: str, address: int, size: int, stream: int, pool: PoolId) -> None:
        """The allocator's trace tracker; called before `hear_entry`."""
        self._pool = pool
        if action == "segment_alloc":
            self._segments[address] = size
        elif action == "segment_free":
            self._segments.pop(address, None)
        elif action == "segment_map":
            self._mapped(address, size)
        elif action == "segment_unmap":
            self._mapped(address, -size)

    # Calls of the simulated device.

    def segment(self, size: int, stream: int) -> int | None:
        if size > self._total_memory:
            return None
        if not self._traced:  # a new segment serves its request from its start
            address = self._op.get("addr")
            return self._sound(address, size, ALIGNMENT) if address else None
        upcoming = self.tape.upcoming
        if upcoming is not None and upcoming.action == "segment_alloc":
            return self._sound(upcoming.address, size, ALIGNMENT)
        if upcoming is not None and upcoming.action in REFUSALS:
            return None
        return self._make_up(size)

    def reserve(self, size: int, stream: int) -> int | None:
        small = self._op.get("size", 0) <= LARGEST_SMALL

        def begins_a_new_range(entry: TraceEntry) -> bool:
            return (
                entry.action == "segment_map"
                and entry.stream == stream
                and (entry.size <= PAGE) == small
                and not any(known.holds(entry.address) for known in self._ranges.values())
            )

        first_map = self.tape.find(begins_a_new_range)
        base = self._sound(first_map.address, size, PAGE) if first_map else self._make_up(size)
        self._ranges[base] = _Range(base, size)
        return base

    def create(self, size: int) -> bool:
        upcoming = self.tape.upcoming
        return upcoming is None or upcoming.action not in REFUSALS

    def event_finished(self, event: int) -> bool:
        """Whether an event has finished: a `sync` followed it, or its block, or a later one, completes in this op."""
        if event in self._synchronized:
            return True
        completing = self.tape.completing_now()
        if not completing or self._op_waits:
            return False
        queue_of = None
        for stream, queued, block in self._pending():
            if queued == event:
                queue_of = stream
            if stream == queue_of and block in completing:
                return True
        return False

    def free_memory(self) -> int:
        if not self._traced:
            return _free_memory_told(self._op.get("oom", ""))
        oom = self.tape.find(lambda entry: entry.action == "oom")
        return oom.address if oom else 0

    # The custom allocator of private pools that have one.

    def own_allocate(self, size: int, stream: int) -> int:
        """Return the recorded address; 0 means no memory."""
        recorded = self._op.get("own", [])
        turn = len(self.own_calls)
        if size > self._total_memory:
            address = 0
        elif turn < len(recorded) and recorded[turn][0] == "alloc":
            address = self._sound(recorded[turn][1], size, ALIGNMENT) if recorded[turn][1] else 0
        else:
            address = self._make_up(size)
        self.own_calls.append(["alloc", address, size, stream])
        return address

    def own_free(self, address: int, size: int, stream: int) -> None:
        self.own_calls.append(["free", address, size, stream])

    def _pending(self) -> list[tuple[int, int, int]]:
        return self.queues.pending_events() if self.queues else []

    def _mapped(self, address: int, size: int) -> None:
        for known in self._ranges.values():
            if known.holds(address):
                known.mapped += size
                if not known.mapped:  # the engine releases a range with its last page
                    del self._ranges[known.base]
                return

    def _sound(self, address: int, size: int, alignment: int) -> int:
        """Return the recorded address, unless it would clash with existing memory."""
        end = address + size
        clashes = (
            address % alignment
            or not address
            or any(base < end and address < base + length for base, length in self._segments.items())
            or any(known.base < end and address < known.base + known.size for known in self._ranges.values())
        )
        return self._make_up(size) if clashes else address

    def _make_up(self, size: int) -> int:
        address = self._made_up
        self._made_up += -(-size // PAGE) * PAGE
        return address


_FREE_MEMORY = re.compile(r"of which (\d{1,9}(?:\.\d\d)?) (bytes|KiB|MiB|GiB) is free\. ")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _free_memory_told(text: str) -> int:
    """Return a number of bytes that reads like the one in the text of an out-of-memory error."""
    match = _FREE_MEMORY.search(text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else 0


class _Range:
    """Reserved addresses, and how much of them is currently mapped."""

    def __init__(self, base: int, size: int) -> None:
        self.base = base
        self.size = size
        self.mapped = 0

    def holds(self, address: int) -> bool:
        return self.base <= address < self.base + self.size
