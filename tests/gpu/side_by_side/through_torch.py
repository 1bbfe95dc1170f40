"""Makes the calls of a sequence to PyTorch's own allocator, and records its decisions.

    python tests/gpu/side_by_side/through_torch.py NAME FILE

FILE becomes a recording that `allotment conformance` reads. Blocks are tensors; everything a stream was given is done
before the next call is made, unless the stream is held or a capture is under way.
"""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from drawn_sequences import sequence_named
from sequences import STREAMS, Op, Sequence

from allotment._devices.cuda.device import CudaDevice

ENTRY = ("action", "addr", "device_free", "size", "stream")
BETWEEN_STATS = 150
"""Calls after which the counters are recorded."""


class TorchWorld:
    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        torch.cuda.init()
        torch.cuda.set_device(0)
        self.total = torch.cuda.mem_get_info()[1]
        if sequence.limit:
            torch.cuda.set_per_process_memory_fraction(sequence.limit / self.total)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]
        self.device = CudaDevice(0)  # only for holding streams
        self.blocks: dict[int, Any] = {}  # tensors; storages of those that a restore has brought back
        self.addresses: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.homes: dict[int, int | None] = {}  # the pools of blocks; only one pool at a time is routed to
        self.routed: int | None = None
        self.pools: dict[int, Any] = {}
        self.states: dict[int, tuple[Any, set[int]]] = {}  # with the blocks in use
        self.graphs: dict[int, Any] = {}
        self.captures: dict[int, int] = {}  # graph -> stream
        self.hold: Any = None
        self.held: int | None = None
        self.uses_recorded = False
        self.other_thread = ThreadPoolExecutor(1)
        self.done: list[Op] = []
        self.stats: list[dict[str, Any]] = []

    def run(self) -> None:
        torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
        for op in self.sequence.calls():
            if "id" in op and op["op"] != "alloc" and op["id"] not in self.blocks:
                continue  # no memory was available for it
            self.settle()
            done = dict(op)
            getattr(self, op["op"])(done)
            self.done.append(done)
            if len(self.done) % BETWEEN_STATS == 0:
                self.note_stats()
        torch.cuda.synchronize()

    def note_stats(self) -> None:
        self.stats.append({"at": len(self.done), "stats": torch.cuda.memory_stats()})

    def settle(self) -> None:
        """Let streams finish before a block is used on another; querying them takes long while others have work."""
        if self.captures or not self.uses_recorded:
            return
        for index, stream in enumerate(self.streams):
            if index != self.held:
                stream.synchronize()

    def recording(self) -> dict[str, Any]:
        self.note_stats()
        snapshot = torch.cuda.memory._snapshot()
        trace = [{key: entry[key] for key in ENTRY if key in entry} for entry in snapshot["device_traces"][0]]
        return {
            "profile": self.sequence.family,
            "seed": self.sequence.seed,
            "torch": torch.__version__,
            "conf": self.sequence.settings,
            "limit": self.sequence.limit,
            "total_memory": self.total,
            "streams": [stream.cuda_stream for stream in self.streams],
            "ops": self.done,
            "trace": trace,
            "stats": self.stats,
            "segments": [without_frames(segment) for segment in snapshot["segments"]],
            "allocator_settings": snapshot["allocator_settings"],
        }

    # The calls.

    def on_thread(self, number: int, call: Callable[[], Any]) -> Any:
        return call() if number == 0 else self.other_thread.submit(call).result()

    def alloc(self, op: Op) -> None:
        def empty() -> Any:
            with torch.cuda.stream(self.streams[op["stream"]]):
                return torch.empty(op["size"], dtype=torch.uint8, device="cuda")

        try:
            block = self.on_thread(op.get("thread", 0), empty)
        except torch.OutOfMemoryError as error:
            op["oom"] = str(error)
        except RuntimeError as error:  # a pool that should lend is routed to
            op["error"] = str(error)
        else:
            self.blocks[op["id"]] = block
            self.addresses[op["id"]] = op["addr"] = block.data_ptr()
            self.sizes[op["id"]], self.homes[op["id"]] = op["size"], self.routed

    def free(self, op: Op) -> None:
        del self.blocks[op["id"]]

    def record_stream(self, op: Op) -> None:
        self.uses_recorded = True
        self.blocks[op["id"]].record_stream(self.streams[op["stream"]])

    def empty_cache(self, op: Op) -> None:
        torch.cuda.empty_cache()

    def sleep(self, op: Op) -> None:
        self.held = op["stream"]
        self.hold = self.device.hold(self.streams[self.held].cuda_stream)

    def sync(self, op: Op) -> None:
        if self.hold is not None:
            self.hold.release()
        self.hold = self.held = None
        torch.cuda.synchronize()

    def kernel(self, op: Op) -> None:
        with torch.cuda.stream(self.streams[op["stream"]]):
            torch.cuda._sleep(1)

    def wait(self, op: Op) -> None:
        self.streams[op["stream"]].wait_stream(self.streams[op["on"]])

    def pool_create(self, op: Op) -> None:
        flags = {name: op[name] for name in ("use_on_oom", "no_split") if name in op}
        self.pools[op["pool"]] = torch.cuda.MemPool(**flags)
        op["mempool_id"] = list(self.pools[op["pool"]].id)

    def pool_begin(self, op: Op) -> None:
        pool = self.pools[op["pool"]].id
        self.routed = op["pool"]
        match op.get("filter"):
            case "stream":
                with torch.cuda.stream(self.streams[op["stream"]]):
                    torch._C._cuda_beginAllocateCurrentStreamToPool(0, pool)
            case "all":
                torch._C._cuda_beginAllocateToPool(0, pool)
            case _:  # what use_mem_pool does
                begin = torch._C._cuda_beginAllocateCurrentThreadToPool
                self.on_thread(op.get("thread", 0), lambda: begin(0, pool))

    def pool_end(self, op: Op) -> None:
        pool = self.pools[op["pool"]].id
        torch._C._cuda_endAllocateToPool(0, pool)
        torch._C._cuda_releasePool(0, pool)
        self.routed = None

    def pool_delete(self, op: Op) -> None:
        del self.pools[op["pool"]]

    def use_count(self, op: Op) -> None:
        op["value"] = self.pools[op["pool"]].use_count()

    def live_in(self, pool: int) -> set[int]:
        return {block for block in self.blocks if self.homes[block] == pool}

    def checkpoint(self, op: Op) -> None:
        live = self.live_in(op["pool"])
        self.states[op["state"]] = torch._C._cuda_getCheckpointState(0, self.pools[op["pool"]].id), live
        op["live"] = sorted(live)

    def restore(self, op: Op) -> None:
        state, then = self.states[op["state"]]
        now = self.live_in(op["pool"])
        op["stale"], op["revived"] = sorted(now - then), sorted(then - now)
        cuda = torch.device("cuda:0")
        owners = {
            block: torch._C._construct_storage_from_data_pointer(self.addresses[block], cuda, self.sizes[block])
            for block in op["revived"]
        }
        stale = [storage_of(self.blocks[block])._cdata for block in op["stale"]]
        torch._C._cuda_setCheckpointPoolState(0, state, stale, [owner._cdata for owner in owners.values()])
        for block in op["stale"]:
            del self.blocks[block]
        self.blocks |= owners

    def check_live(self, op: Op) -> None:
        live = sorted(self.live_in(op["pool"]))
        op["addresses"] = [self.addresses[block] for block in (live if op.pop("complete") else live[1:])]
        check = torch._C._cuda_checkPoolLiveAllocations
        op["value"] = bool(check(0, self.pools[op["pool"]].id, set(op["addresses"])))

    def capture_begin(self, op: Op) -> None:
        graph = torch.cuda.CUDAGraph()
        shared = {} if op["shares"] is None else {"pool": self.graphs[op["shares"]].pool()}
        op["mempool_id"] = list(shared["pool"]) if shared else None
        with torch.cuda.stream(self.streams[op["stream"]]):
            graph.capture_begin(capture_error_mode="relaxed", **shared)  # requests come from outside too
        self.captures[op["graph"]] = op["stream"]
        self.graphs[op["graph"]] = graph

    def capture_end(self, op: Op) -> None:
        graph = self.graphs[op["graph"]]
        with warnings.catch_warnings(), torch.cuda.stream(self.streams[self.captures.pop(op["graph"])]):
            warnings.simplefilter("ignore")  # of empty graphs
            graph.capture_end()
        op["mempool_id"] = list(graph.pool())

    def graph_reset(self, op: Op) -> None:
        self.graphs.pop(op["graph"]).reset()

    def settings(self, op: Op) -> None:
        try:
            torch.cuda.memory._set_allocator_settings(op["text"])
        except (RuntimeError, ValueError) as error:
            op["error"] = str(error)

    def fraction(self, op: Op) -> None:
        op["fraction"] = op.pop("limit") / self.total
        torch.cuda.set_per_process_memory_fraction(op["fraction"])
        op["read_back"] = torch.cuda.get_per_process_memory_fraction()

    def reset_peak(self, op: Op) -> None:
        torch.cuda.reset_peak_memory_stats()

    def reset_accumulated(self, op: Op) -> None:
        torch.cuda.reset_accumulated_memory_stats()

    def summary(self, op: Op) -> None:
        op["text"] = torch.cuda.memory_summary(abbreviated=op["abbreviated"])

    def snapshot(self, op: Op) -> None:
        pool = op.pop("pool")
        op["mempool_id"] = None if pool is None else list(self.pools[pool].id)
        segments = torch.cuda.memory_snapshot(None if pool is None else self.pools[pool].id)
        op["segments"] = [without_frames(segment) for segment in segments]


def storage_of(block: Any) -> Any:
    return block if isinstance(block, torch.UntypedStorage) else block.untyped_storage()


def without_frames(segment: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in segment.items() if key != "frames"}
    kept["blocks"] = [{key: value for key, value in block.items() if key != "frames"} for block in kept["blocks"]]
    return kept


def main(name: str, path: str) -> None:
    world = TorchWorld(sequence_named(name))
    world.run()
    with gzip.open(path, "wt") as file:
        json.dump(world.recording(), file)


if __name__ == "__main__":
    main(*sys.argv[1:])
