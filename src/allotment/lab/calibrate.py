"""Measures the driver calls of a device, for the table of costs that replays use."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from allotment._core.contract.probe import Probe
from allotment._devices import open_device
from allotment.errors import DeviceError
from allotment.lab.replay.driver_costs import CALLS, driver_costs

__all__ = ["measure_costs"]

MIB = 1 << 20
SIZES = (2, 64, 512, 4096)
"""Sizes, in MiB, for the calls whose cost grows with size."""
BY_SIZE = ("create", "release", "malloc", "free")
ROUNDS = 30
MOST_OF_FREE = 0.5
"""The largest size, as a fraction of the free memory."""


def measure_costs(
    device: str, rounds: int = ROUNDS, progress: Callable[[str], None] = lambda what: None
) -> tuple[str, dict[str, list[list[float]]]]:
    """Return the device's name, and the cost of each kind of call as points (MiB, microseconds): medians of `rounds`.

    A call that the device does not support keeps its current cost. Raises RequestError for a name that is not a device,
    DeviceError.
    """
    probe = Probe(open_device(device))
    sizes = _sizes_for(probe)
    taken: dict[tuple[str, int], list[float]] = defaultdict(list)

    def timed(kind: str, mebibytes: int, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter_ns()
        result = call(*arguments)
        taken[kind, mebibytes].append((time.perf_counter_ns() - start) / 1e3)
        return result

    index = probe.device.index if hasattr(probe.device, "index") else 0
    stream, event = probe.stream_create(), probe.event_create()
    for mebibytes in sizes:
        progress(f"measuring calls about {mebibytes} MiB")
        size = mebibytes * MIB
        for _ in range(rounds):
            base = timed("reserve", 0, probe.range_reserve, 8 * size)
            chunk = timed("create", mebibytes, probe.chunk_create, size)
            timed("map", 0, probe.map, base, size, chunk)
            timed("access", 0, probe.set_access, base, size, index)
            timed("unmap", 0, probe.unmap, base, size)
            timed("release", mebibytes, probe.chunk_release, chunk, size)
            probe.range_release(base, 8 * size)
            segment = timed("malloc", mebibytes, probe.segment_allocate, size)
            timed("free", mebibytes, probe.segment_free, segment, size)
            timed("record", 0, probe.event_record, event, 0)
            timed("wait", 0, probe.stream_wait, stream, event)
    probe.event_destroy(event)
    probe.stream_destroy(stream)
    costs: dict[str, list[list[float]]] = {}
    for kind in CALLS:
        points = [(size, taken[kind, size]) for size in (sizes if kind in BY_SIZE else (0,)) if taken[kind, size]]
        costs[kind] = [[size, round(statistics.median(times), 2)] for size, times in points] or [
            list(point) for point in driver_costs()[kind]
        ]
    return probe.device.name, costs


def _sizes_for(probe: Probe) -> tuple[int, ...]:
    try:
        left = probe.memory_info()[0]
    except DeviceError:
        return SIZES[:2]
    return tuple(size for size in SIZES if size * MIB <= MOST_OF_FREE * left) or SIZES[:1]
