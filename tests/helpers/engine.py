"""The allocator that every test of the engine starts with, and the invariants between any two steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

BUFFER = 2 * MIB
"""The size of a segment for small requests, and of the page of a small expandable segment."""
SEGMENT = 20 * MIB
"""The size of a segment for requests up to 10 MiB, and of the page of a large expandable segment."""


class FallingAddresses:
    """A script for a simulated device: addresses fall from segment to segment, as a driver's do."""

    def __init__(self) -> None:
        self.next = 1 << 40

    def segment(self, size: int, stream: int) -> int:
        self.next -= size
        return self.next


def on_device(capacity: int = GIB, settings: str = "", **options: Any) -> Allocator:
    """Return an allocator on its own simulated device, whatever the environment says."""
    return Allocator(SimulatedDevice(capacity), settings=settings, **options)


def check(alloc: Allocator) -> None:
    """Check the engine's own invariants, and that its counters agree with its segments."""
    alloc.inspection.check_invariants()
    stats = alloc.stats()
    expected = counters_of(alloc.history.segments())
    assert {key: stats[key] for key in expected} == expected


def counters_of(segments: list[dict[str, Any]]) -> dict[str, int]:
    """Return the current counters, recomputed from the segments of a snapshot."""
    counted: Counter[str] = Counter()
    for segment in segments:
        plain = not segment["is_expandable"]
        split = len(segment["blocks"]) > 1
        for scope in ("all", segment["segment_type"] + "_pool"):
            counted[f"segment.{scope}"] += plain
            counted[f"reserved_bytes.{scope}"] += segment["total_size"]
            for block in segment["blocks"]:
                allocated = block["state"] == "active_allocated"
                active = block["state"] != "inactive"
                left_over = plain and split and not active
                counted[f"allocation.{scope}"] += allocated
                counted[f"allocated_bytes.{scope}"] += allocated * block["size"]
                counted[f"active.{scope}"] += active
                counted[f"active_bytes.{scope}"] += active * block["size"]
                counted[f"requested_bytes.{scope}"] += active * block["requested_size"]
                counted[f"inactive_split.{scope}"] += left_over
                counted[f"inactive_split_bytes.{scope}"] += left_over * block["size"]
    counts = ("segment", "allocation", "active", "inactive_split")
    sizes = ("reserved_bytes", "allocated_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
    scopes = ("all", "small_pool", "large_pool")
    return {f"{name}.{scope}.current": counted[f"{name}.{scope}"] for name in counts + sizes for scope in scopes}


def reserved(alloc: Allocator) -> int:
    return alloc.stats()["reserved_bytes.all.current"]


def states(alloc: Allocator, pool: tuple[int, int] = (0, 0)) -> list[list[tuple[int, str]]]:
    """Return size and state of each block, segment by segment."""
    return [[(block["size"], block["state"]) for block in s["blocks"]] for s in alloc.history.segments(pool)]


def segment_of(alloc: Allocator, address: int) -> dict[str, Any]:
    """Return the segment that contains an address."""
    return next(s for s in alloc.history.segments() if s["address"] <= address < s["address"] + s["total_size"])


def actions(alloc: Allocator) -> list[str]:
    """Return the history, oldest first."""
    return [entry["action"] for entry in alloc.snapshot()["device_traces"][-1]]


def picture(alloc: Allocator) -> tuple[Any, ...]:
    """Return all visible state of an allocator and its device: if two are equal, nothing has happened in between."""
    device = alloc.device
    return (
        alloc.stats(),
        alloc.history.segments(),
        alloc.inspection.pending_events(),
        alloc.settings,
        alloc.limit,
        alloc.pools.caching,
        device.used,
        device.calls,
    )


@contextmanager
def unchanged(alloc: Allocator) -> Iterator[None]:
    """Check that the code inside leaves the allocator and its device unchanged."""
    before = picture(alloc)
    yield
    assert picture(alloc) == before
    check(alloc)


def empties(alloc: Allocator) -> None:
    """Check that everything returns to the device when nothing is in use."""
    alloc.device.finish()
    alloc.empty_cache()
    check(alloc)
    assert reserved(alloc) == 0
    assert alloc.device.used == 0
