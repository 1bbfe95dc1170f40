"""Replays the calls of a recording on our allocator on the same kind of device, and records its decisions.

python tests/gpu/side_by_side/through_allotment.py RECORDING FILE
"""

from __future__ import annotations

import gzip
import json
import sys
from contextlib import suppress
from typing import Any

from sequences import Op

from allotment import Allocator, OutOfMemoryError, Pool, Settings, SettingsError
from allotment._allocators.caching.pool import next_graph_pool_id
from allotment._devices.cuda.device import CudaDevice
from allotment._rules import nearest_version

HIDDEN = 8  # bytes of each of two blocks that PyTorch's random generator takes while any graph is live


class OurWorld:
    def __init__(self, recording: dict[str, Any]) -> None:
        self.device = CudaDevice(0)
        settings = Settings.parse(recording["conf"], compat=nearest_version(recording["torch"]))
        self.allocator = Allocator(self.device, settings=settings)
        if recording["limit"]:
            self.allocator.limits.memory_fraction = recording["limit"] / recording["total_memory"]
        self.streams = streams_in_order(self.device, recording["streams"])
        self.trace: list[list[Any]] = []
        self.allocator.history.attach_trace_tracker(self.note)
        self.blocks: dict[int, int] = {}
        self.pools: dict[int, Pool] = {}
        self.graphs: dict[int, tuple[int, int]] = {}  # number -> pool id
        self.hidden: list[int] = []
        self.hold: Any = None
        self.held: int | None = None
        self.capture: tuple[int, int] | None = None  # (graph, stream)

    def note(self, action: str, address: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        self.trace.append([action, address, size, stream])

    def run(self, ops: list[Op]) -> None:
        for op in ops:
            if "id" in op and op["op"] != "alloc" and op["id"] not in self.blocks:
                continue  # refused only here: a difference that the trace shows
            self.settle()
            getattr(self, op["op"])(op)
            self.allocator.inspection.check_invariants()
        self.device.synchronize()

    def settle(self) -> None:
        if self.capture is not None:
            return
        for index, stream in enumerate(self.streams):
            if index != self.held:
                self.device.synchronize(stream)

    # The calls.

    def alloc(self, op: Op) -> None:
        with suppress(OutOfMemoryError):  # the trace shows this
            self.blocks[op["id"]] = self.allocator.malloc(op["size"], self.streams[op["stream"]])

    def free(self, op: Op) -> None:
        self.allocator.free(self.blocks.pop(op["id"]))

    def record_stream(self, op: Op) -> None:
        self.allocator.record_stream(self.blocks[op["id"]], self.streams[op["stream"]])

    def empty_cache(self, op: Op) -> None:
        self.allocator.empty_cache()

    def sleep(self, op: Op) -> None:
        self.held = op["stream"]
        self.hold = self.device.hold(self.streams[self.held])

    def sync(self, op: Op) -> None:
        self.hold.release()
        self.hold = self.held = None
        self.device.synchronize()

    def pool_create(self, op: Op) -> None:
        self.pools[op["pool"]] = self.allocator.pool()

    def pool_begin(self, op: Op) -> None:
        self.pools[op["pool"]].__enter__()

    def pool_end(self, op: Op) -> None:
        self.pools[op["pool"]].__exit__(None, None, None)

    def pool_delete(self, op: Op) -> None:
        self.pools.pop(op["pool"]).close()

    def capture_begin(self, op: Op) -> None:
        stream = self.streams[op["stream"]]
        if not self.graphs:
            self.hidden = [self.allocator.malloc(HIDDEN, stream) for _ in range(2)]
        pool = next_graph_pool_id() if op["shares"] is None else self.graphs[op["shares"]]
        self.allocator.pools.begin_allocate_to_pool(pool, capture=self.device.begin_capture(stream))
        self.capture = op["graph"], stream
        self.graphs[op["graph"]] = pool

    def capture_end(self, op: Op) -> None:
        assert self.capture is not None
        self.device.end_capture(self.capture[1])
        self.allocator.pools.end_allocate_to_pool(self.graphs[op["graph"]])
        self.capture = None

    def graph_reset(self, op: Op) -> None:
        self.allocator.pools.release(self.graphs.pop(op["graph"]))
        if not self.graphs:
            while self.hidden:
                self.allocator.free(self.hidden.pop(0))

    def settings(self, op: Op) -> None:
        try:
            self.allocator._configure_leniently(op["text"])
        except SettingsError:
            if "error" not in op:
                raise


def streams_in_order(device: CudaDevice, handles: list[int]) -> list[int]:
    """Create as many streams, with handles in the same order, because the order of releases depends on it."""
    made = sorted(device.create_stream() for _ in handles[1:])
    ranks = sorted(handles[1:])
    return [0, *(made[ranks.index(handle)] for handle in handles[1:])]


def main(source: str, target: str) -> None:
    with gzip.open(source) as file:
        recording = json.load(file)
    world = OurWorld(recording)
    world.run(recording["ops"])
    with gzip.open(target, "wt") as file:
        json.dump({"streams": world.streams, "trace": world.trace}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
