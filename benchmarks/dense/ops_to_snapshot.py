"""Request streams as snapshots that `allotment replay` reads.

    python benchmarks/dense/ops_to_snapshot.py FILE.ops... --out FOLDER

An `.ops` file is int64 records: kind (0 allocate, 1 free requested and waiting for other streams, 2 free completed,
3 a stream's private pool is released, 4 empty_cache), block, size, stream index, microseconds. It has no addresses.
So each block gets addresses that no other block has at the time, in one large segment for each stream: a replay under
other settings than the recorded ones requests the same sizes in the same order and uses nothing else. No replay uses
the settings that the snapshot states. The files do not contain private pools: their blocks become blocks of their
stream. Callers of `snapshot_of` can pass the stream and pool of each stream index.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
from bisect import bisect_right, insort
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

ALLOCATE, ASK, DONE, RELEASE_POOL, EMPTY_CACHE = range(5)
UNIT = 512
SEGMENT_SPACE = 1 << 44
"""Addresses between the segments of two streams."""
DUMMY = 2 << 20
"""Segments that are released to show where the cache was emptied."""
ROUND = 256 << 30
"""Addresses of a stream after which its blocks start again from the beginning, where they fit."""
SETTINGS = "garbage_collection_threshold:0.99"
DEFAULT_POOL = (0, 0)
Lane = tuple[int, tuple[int, int]]
"""A stream and the id of a pool."""


def rounded(size: int) -> int:
    return max(UNIT, -(-size // UNIT) * UNIT)


class Places:
    """The addresses of one stream's blocks: each follows the previous one, past blocks that still exist."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._at = 0
        self.size = 0

    def take(self, size: int) -> int:
        at, wrapped = self._at, False
        while True:
            if at + size > ROUND and not wrapped:
                at, wrapped = 0, True
            behind = bisect_right(self._starts, at)
            if behind > 0 and self._ends[self._starts[behind - 1]] > at:
                at = self._ends[self._starts[behind - 1]]
            elif behind < len(self._starts) and self._starts[behind] < at + size:
                at = self._ends[self._starts[behind]]
            else:
                break
        insort(self._starts, at)
        self._ends[at] = self._at = at + size
        self.size = max(self.size, self._at)
        return at

    def give(self, at: int) -> None:
        del self._starts[bisect_right(self._starts, at) - 1]
        del self._ends[at]


def snapshot_of(ops: np.ndarray[Any, np.dtype[np.int64]], lanes: dict[int, Lane] | None = None) -> dict[str, Any]:
    """Return a snapshot with the history of `ops`, one row each.

    `lanes`: what the stream indices mean, if not streams.
    """
    places: dict[int, Places] = defaultdict(Places)
    address: dict[int, tuple[int, int, int]] = {}
    entries: list[dict[str, Any]] = []
    dummies = 0
    asked: set[int] = set()

    def lane_of(index: int) -> Lane:
        return lanes[index] if lanes is not None else (index, DEFAULT_POOL)

    def entry(action: str, place: int, size: int, index: int, time: int) -> dict[str, Any]:
        stream = lane_of(index)[0]
        return {"action": action, "addr": place, "size": size, "stream": stream, "time_us": time, "frames": []}

    def note(action: str, place: int, size: int, index: int, time: int) -> None:
        entries.append(entry(action, place, size, index, time))

    for kind, block, size, stream, time in ops.tolist():
        if kind == ALLOCATE:
            place = (stream + 1) * SEGMENT_SPACE + places[stream].take(rounded(size))
            address[block] = place, size, stream
            note("alloc", place, size, stream, time)
        elif kind == ASK:
            place, size, stream = address[block]
            note("free_requested", place, size, stream, time)
            asked.add(block)
        elif kind == DONE:
            place, size, stream = address.pop(block)
            places[stream].give(place - (stream + 1) * SEGMENT_SPACE)
            if block not in asked:
                note("free_requested", place, size, stream, time)
            asked.discard(block)
            note("free_completed", place, size, stream, time)
        elif kind == EMPTY_CACHE:
            note("segment_free", DUMMY * (1 + dummies), DUMMY, 0, time)
            dummies += 1
    used = {stream: places[stream].size for stream in sorted(places)}
    first = int(ops[0, 4]) if len(ops) else 0
    segments = [(DUMMY * (1 + i), DUMMY, 0) for i in range(dummies)]
    segments += [((stream + 1) * SEGMENT_SPACE, size, stream) for stream, size in used.items()]
    begin = [entry("segment_alloc", place, size, stream, first) for place, size, stream in segments]
    left: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for block, (place, size, stream) in address.items():
        left[stream].append((place, size, block in asked))
    return {
        "segments": [segment_of(index, lane_of(index), size, sorted(left[index])) for index, size in used.items()],
        "device_traces": [begin + entries],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": SETTINGS, "garbage_collection_threshold": 0.99},
        "external_annotations": [],
    }


def segment_of(index: int, lane: Lane, size: int, live: list[tuple[int, int, bool]]) -> dict[str, Any]:
    """Return the segment of a stream index as it is at the end."""
    base = at = (index + 1) * SEGMENT_SPACE
    blocks = []

    def append(place: int, size: int, requested: int, state: str) -> None:
        blocks.append({"address": place, "size": size, "requested_size": requested, "state": state, "frames": []})

    for place, requested, waits in live:
        if place > at:
            append(at, place - at, 0, "inactive")
        append(place, rounded(requested), requested, "active_pending_free" if waits else "active_allocated")
        at = place + rounded(requested)
    if at < base + size:
        append(at, base + size - at, 0, "inactive")
    in_use = sum(block["size"] for block in blocks if block["state"] != "inactive")
    return {
        "device": 0, "address": base, "total_size": size, "allocated_size": in_use, "active_size": in_use,
        "requested_size": sum(block["requested_size"] for block in blocks), "stream": lane[0], "segment_type": "large",
        "segment_pool_id": lane[1], "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Request streams as snapshots that `allotment replay` reads.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for file in arguments.files:
        ops = np.fromfile(file, np.int64).reshape(-1, 5)
        target = arguments.out / f"{file.name.removesuffix('.ops')}.pickle.gz"
        with gzip.open(target, "wb", compresslevel=1) as out:
            pickle.dump(snapshot_of(ops), out, protocol=4)
        print(target)


if __name__ == "__main__":
    main()
