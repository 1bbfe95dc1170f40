"""Makes the calls of a sequence to PyTorch's own allocator, and records what it decided.

    python through_torch.py NAME FILE

FILE becomes a recording that `allotment conformance` reads. Blocks are tensors; everything a stream was given is done
before the next call is made, unless the stream is held or a capture is under way.
"""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from typing import Any

import torch
from sequences import STREAMS, Op, Sequence, all_sequences, calls

from allotment.backends.cuda import CudaDevice

ENTRY = ("action", "addr", "device_free", "size", "stream")


class TorchWorld:
    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        torch.cuda.init()
        torch.cuda.set_device(0)
        self.total = torch.cuda.mem_get_info()[1]
        if sequence.limit:
            torch.cuda.set_per_process_memory_fraction(sequence.limit / self.total)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]
        self.device = CudaDevice(0)  # for holding streams alone
        self.blocks: dict[int, Any] = {}
        self.pools: dict[int, Any] = {}
        self.routes: dict[int, Any] = {}
        self.graphs: dict[int, Any] = {}
        self.hold: Any = None
        self.held: int | None = None
        self.capture: tuple[int, Any] | None = None
        self.done: list[Op] = []

    def run(self) -> None:
        torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
        for op in calls(self.sequence):
            if "id" in op and op["op"] != "alloc" and op["id"] not in self.blocks:
                continue  # there was no room for it
            self.settle()
            done = dict(op)
            getattr(self, op["op"])(done)
            self.done.append(done)
        torch.cuda.synchronize()

    def settle(self) -> None:
        if self.capture is not None:
            return
        for index, stream in enumerate(self.streams):
            if index != self.held:
                stream.synchronize()

    def recording(self) -> dict[str, Any]:
        stats = torch.cuda.memory_stats()
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
            "stats": [{"at": len(self.done), "stats": stats}],
            "segments": [without_frames(segment) for segment in snapshot["segments"]],
            "allocator_settings": snapshot["allocator_settings"],
        }

    # The calls.

    def alloc(self, op: Op) -> None:
        try:
            with torch.cuda.stream(self.streams[op["stream"]]):
                block = torch.empty(op["size"], dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            op["oom"] = str(error)
            return
        self.blocks[op["id"]] = block
        op["addr"] = block.data_ptr()

    def free(self, op: Op) -> None:
        del self.blocks[op["id"]]

    def record_stream(self, op: Op) -> None:
        self.blocks[op["id"]].record_stream(self.streams[op["stream"]])

    def empty_cache(self, op: Op) -> None:
        torch.cuda.empty_cache()

    def sleep(self, op: Op) -> None:
        self.held = op["stream"]
        self.hold = self.device.hold(self.streams[self.held].cuda_stream)

    def sync(self, op: Op) -> None:
        self.hold.release()
        self.hold = self.held = None
        torch.cuda.synchronize()

    def pool_create(self, op: Op) -> None:
        self.pools[op["pool"]] = torch.cuda.MemPool()
        op["mempool_id"] = list(self.pools[op["pool"]].id)

    def pool_begin(self, op: Op) -> None:
        self.routes[op["pool"]] = torch.cuda.use_mem_pool(self.pools[op["pool"]])
        self.routes[op["pool"]].__enter__()

    def pool_end(self, op: Op) -> None:
        self.routes.pop(op["pool"]).__exit__(None, None, None)

    def pool_delete(self, op: Op) -> None:
        del self.pools[op["pool"]]

    def capture_begin(self, op: Op) -> None:
        graph = torch.cuda.CUDAGraph()
        shared = {} if op["shares"] is None else {"pool": self.graphs[op["shares"]].pool()}
        op["mempool_id"] = list(shared["pool"]) if shared else None
        scope = torch.cuda.stream(self.streams[op["stream"]])
        scope.__enter__()
        graph.capture_begin(**shared)
        self.capture = op["graph"], scope
        self.graphs[op["graph"]] = graph

    def capture_end(self, op: Op) -> None:
        assert self.capture is not None
        graph = self.graphs[op["graph"]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of graphs with nothing in them
            graph.capture_end()
        self.capture[1].__exit__(None, None, None)
        self.capture = None
        op["mempool_id"] = list(graph.pool())

    def graph_reset(self, op: Op) -> None:
        self.graphs.pop(op["graph"]).reset()

    def settings(self, op: Op) -> None:
        try:
            torch.cuda.memory._set_allocator_settings(op["text"])
        except (RuntimeError, ValueError) as error:
            op["error"] = str(error)


def without_frames(segment: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in segment.items() if key != "frames"}
    kept["blocks"] = [{key: value for key, value in block.items() if key != "frames"} for block in kept["blocks"]]
    return kept


def main(name: str, path: str) -> None:
    world = TorchWorld(next(sequence for sequence in all_sequences() if sequence.name == name))
    world.run()
    with gzip.open(path, "wt") as file:
        json.dump(world.recording(), file)


if __name__ == "__main__":
    main(*sys.argv[1:])
