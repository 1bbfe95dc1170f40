"""How fast blocks are opened by another process: `python benchmarks/sharing.py [DEVICE]` (host, cuda:0, sim:80GiB).

first     a handle whose memory is not mapped yet in the process that opens it
again     a handle that is open there already
cycle     opened and closed, nothing else open: link, mapping and all
share     a handle made, by the owner
1 GiB     shared, opened and closed again: the time until the other process has the memory
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from typing import Any

import allotment

MIB = 1 << 20
BLOCKS = 100
BLOCK_SIZE = 12 * MIB  # from this size on, a plain block is a separate segment
AGAIN = 2000
CYCLES = 500
HANDED_OVER = 1 << 30
SETTINGS = {"plain": "", "expandable": "expandable_segments:True", "dense": "placement:dense"}


def importer(link: Any) -> None:
    """The process that opens: runs commands, and reports their duration."""
    opened = []
    while (request := link.recv()) is not None:
        kind, handles = request
        if kind == "open":
            start = time.perf_counter()
            opened = [allotment.open_shared(handle) for handle in handles]
            link.send(time.perf_counter() - start)
        elif kind == "again":
            start = time.perf_counter()
            for _ in range(AGAIN):
                allotment.open_shared(handles[0]).close()
            link.send(time.perf_counter() - start)
        elif kind == "cycle":
            start = time.perf_counter()
            for _ in range(CYCLES):
                allotment.open_shared(handles[0]).close()
            link.send(time.perf_counter() - start)
        elif kind == "close":
            opened.clear()
            link.send(None)


def measure(device: str, settings: str) -> dict[str, float]:
    allocator = allotment.Allocator(device, settings=settings)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=importer, args=(there,), daemon=True)
    process.start()

    def ask(kind: str, handles: list[allotment.SharedHandle]) -> Any:
        here.send((kind, handles))
        return here.recv()

    buffers = [allocator.empty(BLOCK_SIZE) for _ in range(BLOCKS)]
    ask("open", [allocator.share(buffers[0])])  # imports, context and thread are not measured
    ask("close", [])
    start = time.perf_counter()
    handles = [allocator.share(buffer) for buffer in buffers]
    figures = {"share_per_second": BLOCKS / (time.perf_counter() - start)}
    figures["first_per_second"] = BLOCKS / ask("open", handles)
    figures["again_per_second"] = AGAIN / ask("again", handles)
    ask("close", [])
    figures["cycle_per_second"] = CYCLES / ask("cycle", handles)
    for handle in handles:
        handle.close()
    del buffers
    allocator.empty_cache()
    whole = allocator.empty(HANDED_OVER)
    start = time.perf_counter()
    handle = allocator.share(whole)
    ask("open", [handle])
    figures["gib_handed_over_ms"] = 1000 * (time.perf_counter() - start)
    ask("close", [])
    handle.close()
    here.send(None)
    process.join(30)
    return figures


def main(arguments: list[str]) -> None:
    device = next((one for one in arguments if not one.startswith("-")), "host")
    results = {}
    for name, settings in SETTINGS.items():
        given = ",".join(filter(None, ["shareable:True" if device == "host" else "", settings]))
        results[name] = measure(device, given)
        if "--json" not in arguments:
            figures = ", ".join(f"{key} {value:,.1f}" for key, value in results[name].items())
            print(f"{device} {name:<11} {figures}", flush=True)
    if "--json" in arguments:
        print(json.dumps({"device": device, **results}))


if __name__ == "__main__":
    main(sys.argv[1:])
