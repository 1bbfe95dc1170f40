"""Blocks shared, opened and closed many times, and many at once.

    python tests/stress/sharing.py [DEVICE] [CYCLES] [OPEN]

Descriptors and addresses of both processes are counted before and after, and have to be equal.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from allotment import Allocator
from helpers.peer import Peer, address_space, descriptors, mappings, wait_until

SETTINGS = {"plain": "", "expandable": "expandable_segments:True", "dense": "placement:dense"}
COUNT = "result = mappings(), descriptors(), address_space()"
CYCLES = """
for _ in range(times):
    opened = open_shared(handle)
    opened.close()
"""


def settled(peer: Peer) -> Any:
    """Return what the importer has open when all blocks are closed; a thread closes them."""
    peer.run("wait_until(everything_is_closed)")
    return peer.run(COUNT)


def cycles(allocator: Allocator, peer: Peer, count: int) -> dict[str, Any]:
    """Share, open, close, and free every tenth time, so that blocks and handles change."""

    def some(number: int) -> None:
        address = allocator.malloc(3 << 20)
        done = 0
        while done < number:
            handle = allocator.share(address)
            peer.run(CYCLES, handle=handle, times=10)
            handle.close()
            allocator.free(address)
            done += 10
            address = allocator.malloc(3 << 20)
        allocator.free(address)

    def is_free() -> bool:
        return bool(allocator.stats()["active_bytes.all.current"] == 0)

    some(min(count, 500))  # until heaps and tables have grown
    wait_until(is_free)
    allocator.empty_cache()
    before, there_before = (mappings(), descriptors(), address_space()), settled(peer)
    some(count)
    wait_until(is_free)
    allocator.empty_cache()
    after, there_after = (mappings(), descriptors(), address_space()), settled(peer)
    allocator.inspection.check_invariants()
    return {"cycles": count, "owner": (before, after), "importer": (there_before, there_after)}


def many(allocator: Allocator, peer: Peer, count: int) -> dict[str, Any]:
    """Open this many handles at once; then free all of them."""
    addresses = [allocator.malloc(4096) for _ in range(count)]
    handles = [allocator.share(address) for address in addresses]
    before = settled(peer)
    peer.run("buffers = [open_shared(handle) for handle in handles]; handles = None", handles=handles)
    held = peer.run(COUNT)
    for handle, address in zip(handles, addresses, strict=True):
        handle.close()
        allocator.free(address)
    kept = allocator.stats()["active.all.current"]
    peer.run("buffers.clear()")
    wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)
    allocator.inspection.check_invariants()
    return {"open": kept, "before": before, "held": held, "after": settled(peer)}


def main(arguments: list[str]) -> int:
    device = arguments[0] if arguments else "host"
    count = int(arguments[1]) if len(arguments) > 1 else 10_000
    at_once = int(arguments[2]) if len(arguments) > 2 else 5_000
    wrong = 0
    for name, settings in SETTINGS.items():
        given = ",".join(filter(None, ["shareable:True" if device == "host" else "", settings]))
        allocator = Allocator(device, settings=given)
        with Peer() as peer:
            first = cycles(allocator, peer, count)
            many(allocator, peer, at_once)  # until heaps and tables have grown
            second = many(allocator, peer, at_once)
        print(f"{device} {name}: (mappings, descriptors, bytes of addresses) before and after {count} cycles")
        for side in ("owner", "importer"):
            before, after = first[side]
            wrong += before != after
            print(f"  {side:<9} {before} {after} {'equal' if before == after else 'DIFFERENT'}")
        before, after = second["before"], second["after"]
        wrong += second["open"] != at_once or before != after
        verdict = "equal" if before == after else "DIFFERENT"
        print(f"  {second['open']} open at once: {before} {second['held']} {after} {verdict}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
