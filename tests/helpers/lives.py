"""Lives of an allocator: lists of steps, to be run undisturbed and on a device that fails. A life runs once undisturbed
to count its calls to the device; then once for each of these calls and each way of failing. After every step the
engine's invariants hold, and the blocks are those that the earlier steps have left. When the device works again,
everything returns to it, and the same life can run once more as if nothing had failed.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Any

import allotment
from allotment._allocators.caching.pool import Pool, PoolState
from allotment.errors import (
    CaptureError,
    CheckpointError,
    DeviceError,
    OutOfMemoryError,
    PausedError,
    SettingsError,
    StreamError,
)
from helpers.engine import MIB, check, on_device

CAPACITY = 200 * MIB
SIDE, MAIN = 7, 5

EXPANDABLE = "expandable_segments:True"

LIVES: dict[str, list[tuple[Any, ...]]] = {
    "plain": [
        ("malloc", "a", 512),
        ("malloc", "b", MIB),
        ("malloc", "c", 3 * MIB),
        ("malloc", "d", 30 * MIB),
        ("free", "b"),
        ("free", "d"),
        ("malloc", "e", 24 * MIB),
        ("empty_cache",),
        ("malloc", "f", 120 * MIB),
        ("free", "e"),
        ("malloc", "g", 60 * MIB),
        ("free", "c"),
        ("malloc", "too much", 190 * MIB),
        ("empty_cache",),
        ("malloc", "h", 11 * MIB),
        ("free", "f"),
        ("malloc", "i", 5 * MIB),
        ("malloc", "j", 5 * MIB),
        ("malloc", "k", 5 * MIB),
        ("free", "j"),
        ("malloc", "l", 40 * MIB, SIDE),
        ("free", "l"),
        ("malloc", "m", 90 * MIB),
        ("free", "i"),
        ("free", "k"),
        ("empty_cache",),
        ("malloc", "n", 30 * MIB, 9),
    ],
    "streams": [
        ("malloc", "a", MIB),
        ("malloc", "b", 3 * MIB, SIDE),
        ("read", "a", SIDE),
        ("read", "a", 9),
        ("read", "b", 0),
        ("free", "a"),
        ("free", "b"),
        ("malloc", "c", MIB),
        ("finish", SIDE),
        ("malloc", "d", MIB),
        ("read", "d", SIDE),
        ("free", "d"),
        ("malloc", "e", 150 * MIB),
        ("read", "e", SIDE),
        ("free", "e"),
        ("malloc", "f", 160 * MIB, SIDE),
        ("empty_cache",),
        ("malloc", "g", 512, 9),
    ],
    "expandable": [
        ("configure", EXPANDABLE),
        ("malloc", "a", 512),
        ("malloc", "b", 25 * MIB),
        ("malloc", "c", 10 * MIB),
        ("malloc", "d", 30 * MIB),
        ("free", "b"),
        ("empty_cache",),
        ("malloc", "e", 3 * MIB, SIDE),
        ("malloc", "f", 45 * MIB),
        ("free", "d"),
        ("free", "c"),
        ("malloc", "g", 100 * MIB),
        ("malloc", "too much", 150 * MIB),
        ("free", "e"),
        ("read", "f", SIDE),
        ("free", "f"),
        ("empty_cache",),
        ("malloc", "h", 70 * MIB, SIDE),
    ],
    "sharing": [
        ("malloc", "a", MIB),
        ("share", "a"),
        ("malloc", "b", 30 * MIB),
        ("share", "b"),
        ("free", "a"),
        ("configure", EXPANDABLE),
        ("malloc", "c", 50 * MIB),
        ("share", "c"),
        ("share", "b"),
        ("free", "b"),
        ("free", "c"),
        ("empty_cache",),
        ("malloc", "d", 5 * MIB),
        ("share", "d"),
    ],
    "pools": [
        ("new_pool", "p"),
        ("new_pool", "lender", {"use_on_oom": True}),
        ("enter", "p"),
        ("malloc", "a", MIB),
        ("malloc", "b", 30 * MIB),
        ("enter", "lender"),
        ("malloc", "c", 80 * MIB),
        ("read", "a", SIDE),
        ("free", "a"),
        ("leave", "lender"),
        ("leave", "p"),
        ("free", "c"),
        ("malloc", "d", 100 * MIB),
        ("malloc", "borrowed", 70 * MIB),
        ("free", "b"),
        ("close", "p"),
        ("free", "borrowed"),
        ("close", "lender"),
        ("configure", EXPANDABLE),
        ("new_pool", "q"),
        ("enter", "q"),
        ("malloc", "e", 30 * MIB),
        ("leave", "q"),
        ("free", "e"),
        ("close", "q"),
        ("empty_cache",),
    ],
    "captures": [
        ("configure", "graph_capture_record_stream_reuse:True"),
        ("malloc", "before", MIB, MAIN),
        ("read", "before", SIDE),
        ("free", "before"),
        ("begin_capture", MAIN),
        ("malloc", "a", MIB, MAIN),
        ("launch", MAIN),
        ("join", SIDE, MAIN),
        ("read", "a", SIDE),
        ("free", "a"),
        ("malloc", "b", MIB, MAIN),
        ("join", MAIN, SIDE),
        ("launch", MAIN),
        ("malloc", "c", MIB, MAIN),
        ("malloc", "outside", MIB),
        ("free", "b"),
        ("malloc", "d", 30 * MIB, MAIN),
        ("end_capture", MAIN),
        ("free", "c"),
        ("malloc", "e", MIB, MAIN),
        ("reset_graphs",),
        ("empty_cache",),
        ("begin_capture", MAIN),
        ("malloc", "f", 3 * MIB, MAIN),
        ("end_capture", MAIN),
    ],
    "checkpoints": [
        ("new_pool", "p"),
        ("enter", "p"),
        ("malloc", "a", MIB),
        ("malloc", "b", 512),
        ("malloc", "c", 3 * MIB),
        ("leave", "p"),
        ("free", "b"),
        ("checkpoint", "p"),
        ("free", "a"),
        ("enter", "p"),
        ("malloc", "d", 30 * MIB),
        ("malloc", "e", 40 * MIB),
        ("leave", "p"),
        ("read", "d", SIDE),
        ("read", "e", 9),
        ("restore", "p"),
        ("malloc", "f", 512),
        ("finish", None),
        ("malloc", "g", 512),
        ("restore", "p"),
        ("empty_cache",),
        ("close", "p"),
    ],
    "limits and garbage": [
        ("configure", "garbage_collection_threshold:0.4"),
        ("limit", 120 * MIB),
        ("malloc", "a", 20 * MIB),
        ("malloc", "b", 24 * MIB),
        ("free", "a"),
        ("malloc", "c", 12 * MIB, SIDE),
        ("free", "c"),
        ("free", "b"),
        ("malloc", "d", 30 * MIB),
        ("malloc", "e", 40 * MIB),
        ("malloc", "over", 60 * MIB),
        ("limit", None),
        ("malloc", "f", 60 * MIB),
        ("free", "d"),
        ("limit", 50 * MIB),
        ("malloc", "over too", 22 * MIB),
        ("limit", 150 * MIB),
        ("free", "e"),
        ("malloc", "g", 36 * MIB),
        ("free", "g"),
        ("malloc", "h", 14 * MIB, 9),
        ("free", "h"),
        ("malloc", "i", 44 * MIB, 9),
        ("configure", "garbage_collection_threshold:0.1,max_split_size_mb:40"),
        ("free", "i"),
        ("free", "f"),
        ("malloc", "j", 50 * MIB),
        ("malloc", "k", 22 * MIB, SIDE),
        ("free", "k"),
        ("malloc", "l", 24 * MIB, SIDE),
    ],
    "oversize": [
        ("configure", "max_split_size_mb:40"),
        ("malloc", "a", 60 * MIB),
        ("malloc", "b", 50 * MIB),
        ("malloc", "c", 44 * MIB),
        ("free", "a"),
        ("free", "b"),
        ("malloc", "d", 30 * MIB),
        ("free", "c"),
        ("malloc", "e", 120 * MIB),
        ("free", "d"),
        ("malloc", "f", 48 * MIB, SIDE),
        ("free", "f"),
        ("malloc", "g", 70 * MIB),
        ("malloc", "h", 60 * MIB, SIDE),
        ("free", "e"),
        ("free", "g"),
        ("malloc", "i", 41 * MIB),
        ("malloc", "j", 62 * MIB),
        ("free", "i"),
        ("free", "j"),
        ("malloc", "k", 130 * MIB),
        ("malloc", "l", 130 * MIB),
        ("new_pool", "p"),
        ("free", "k"),
        ("enter", "p"),
        ("malloc", "m", 50 * MIB),
        ("free", "m"),
        ("malloc", "n", 80 * MIB),
        ("leave", "p"),
    ],
    "settings": [
        ("malloc", "a", 30 * MIB),
        ("configure", EXPANDABLE),
        ("malloc", "b", 30 * MIB),
        ("free", "a"),
        ("malloc", "c", 29 * MIB),
        ("configure", "expandable_segments:False,roundup_power2_divisions:4"),
        ("malloc", "d", 33 * MIB),
        ("free", "b"),
        ("configure", EXPANDABLE + ",large_segment_size_mb:40"),
        ("malloc", "e", 50 * MIB),
        ("malloc", "f", 20 * MIB, SIDE),
        ("configure", "max_split_size_mb:40,expandable_segments:False"),
        ("free", "e"),
        ("malloc", "g", 60 * MIB),
        ("configure", "release_lock_on_cudamalloc:True"),
        ("malloc", "h", 90 * MIB),
        ("empty_cache",),
    ],
    "past the cache": [
        ("malloc", "a", 30 * MIB),
        ("caching", False),
        ("malloc", "b", 1000),
        ("malloc", "c", 100 * MIB),
        ("free", "a"),
        ("malloc", "too much", 150 * MIB),
        ("caching", True),
        ("free", "b"),
        ("malloc", "d", 40 * MIB),
        ("read", "c", SIDE),
        ("free", "c"),
        ("malloc", "e", 120 * MIB),
        ("caching", False),
        ("free", "e"),
        ("malloc", "f", 10),
        ("caching", True),
        ("malloc", "g", 3 * MIB),
        ("caching", False),
        ("malloc", "h", 3 * MIB, SIDE),
        ("malloc", "i", 7),
        ("free", "g"),
        ("free", "h"),
        ("empty_cache",),
        ("malloc", "j", 60 * MIB),
        ("caching", True),
        ("malloc", "k", 120 * MIB),
        ("free", "j"),
        ("malloc", "l", 70 * MIB),
        ("free", "f"),
    ],
    "crowded": [
        ("malloc", "a", 512),
        ("malloc", "b", 40 * MIB),
        ("malloc", "c", 30 * MIB),
        ("malloc", "d", 40 * MIB),
        ("malloc", "e", 30 * MIB),
        ("free", "b"),
        ("free", "d"),
        ("malloc", "stitched", 70 * MIB),
        ("free", "c"),
        ("malloc", "f", 33 * MIB),
        ("free", "stitched"),
        ("malloc", "g", 50 * MIB, SIDE),
        ("malloc", "too much", 190 * MIB),
        ("empty_cache",),
        ("free", "e"),
        ("malloc", "h", 61 * MIB),
        ("free", "g"),
        ("free", "f"),
        ("malloc", "i", 90 * MIB),
        ("empty_cache",),
        ("malloc", "j", 11 * MIB, 9),
    ],
    "crowded streams": [
        ("malloc", "a", 30 * MIB),
        ("malloc", "b", 30 * MIB, SIDE),
        ("malloc", "c", 30 * MIB),
        ("malloc", "d", 30 * MIB),
        ("read", "a", SIDE),
        ("read", "a", 9),
        ("read", "b", 0),
        ("read", "c", SIDE),
        ("free", "a"),
        ("free", "b"),
        ("free", "c"),
        ("malloc", "e", 60 * MIB, 9),
        ("finish", SIDE),
        ("malloc", "f", 40 * MIB),
        ("free", "e"),
        ("malloc", "g", 80 * MIB, SIDE),
        ("read", "g", 9),
        ("free", "g"),
        ("malloc", "h", 100 * MIB),
        ("free", "d"),
        ("empty_cache",),
    ],
    "crowded pools": [
        ("malloc", "a", 30 * MIB),
        ("new_pool", "p"),
        ("enter", "p"),
        ("malloc", "b", 20 * MIB),
        ("malloc", "c", 8 * MIB, SIDE),
        ("read", "b", SIDE),
        ("free", "b"),
        ("malloc", "d", 24 * MIB),
        ("leave", "p"),
        ("malloc", "e", 90 * MIB),
        ("free", "d"),
        ("free", "c"),
        ("close", "p"),
        ("free", "a"),
        ("malloc", "f", 60 * MIB),
        ("begin_capture", MAIN),
        ("malloc", "g", 20 * MIB, MAIN),
        ("launch", MAIN),
        ("free", "g"),
        ("malloc", "h", 10 * MIB, MAIN),
        ("end_capture", MAIN),
        ("free", "h"),
        ("reset_graphs",),
        ("free", "e"),
        ("malloc", "i", 120 * MIB),
    ],
    "tags": [
        ("malloc", "plain", 20 * MIB),
        ("tagged", "a", "weights", 30 * MIB),
        ("tagged", "b", "weights", 3 * MIB, SIDE),
        ("tagged", "c", "weights", 1000),
        ("tagged", "d", "cache", 50 * MIB),
        ("free", "a"),
        ("pause", "weights"),
        ("tagged", "refused", "weights", 512),
        ("malloc", "other", 60 * MIB),
        ("free", "b"),
        ("empty_cache",),
        ("pause", "cache"),
        ("resume", "weights"),
        ("tagged", "e", "weights", 8 * MIB),
        ("malloc", "taken", 60 * MIB),
        ("resume", "cache"),
        ("free", "taken"),
        ("resume", "cache"),
        ("free", "d"),
        ("pause", "cache"),
        ("set_limit", "weights", {"hard": 42 * MIB}),
        ("tagged", "over", "weights", 30 * MIB),
        ("set_limit", "weights", {"soft": 45 * MIB}),
        ("free", "e"),
        ("tagged", "f", "weights", 30 * MIB),
        ("set_limit", "weights", {}),
        ("pause", "weights"),
        ("free", "c"),
        ("resume", "weights"),
        ("empty_cache",),
    ],
}


class Life:
    """One allocator, and the objects that its steps have left."""

    def __init__(self, placement: str = "torch") -> None:
        self.alloc = on_device(CAPACITY, f"placement:{placement}")
        self.device = self.alloc.device
        self.blocks: dict[str, int] = {}
        self.direct: dict[int, int] = {}
        self.pools: dict[str, Pool] = {}
        self.entered: list[str] = []
        self.states: dict[str, tuple[PoolState, dict[str, int]]] = {}
        self.captures: dict[int, tuple[int, int]] = {}
        self.graphs: list[tuple[int, int]] = []
        self.graph_ids = count(1)

    def live(self, name: str) -> list[str]:
        """The outcome of each step."""
        return [self.take(*step) for step in LIVES[name]]

    def take(self, step: str, *arguments: Any) -> str:
        outcome = "done"
        try:
            self.act(step, *arguments)
        except (OutOfMemoryError, DeviceError, StreamError, CheckpointError, CaptureError, PausedError) as error:
            outcome = type(error).__name__
        self.alloc.inspection.check_invariants()
        shown = {
            block["address"]
            for segment in self.alloc.history.segments()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }
        assert shown == set(self.blocks.values()) - set(self.direct), f"after {step} {arguments}, which was {outcome}"
        assert self.device.used >= self.alloc.stats()["reserved_bytes.all.current"] + sum(self.direct.values())
        return outcome

    def act(self, step: str, *arguments: Any) -> None:
        getattr(self, step)(*arguments)

    # --- steps; one whose object does not exist, because of a failure, does nothing ---

    def malloc(self, name: str, size: int, stream: int = 0) -> None:
        self.blocks[name] = address = self.alloc.malloc(size, stream)
        if not self.alloc.pools.caching:
            self.direct[address] = size

    def tagged(self, name: str, tag: str, size: int, stream: int = 0) -> None:
        with allotment.tag(tag):
            self.malloc(name, size, stream)

    def pause(self, tag: str) -> None:
        if tag in self.alloc.sleep.tags():
            self.alloc.pause(tag, keep="nothing")

    def resume(self, tag: str) -> None:
        if tag in self.alloc.sleep.tags():
            self.alloc.resume(tag)

    def set_limit(self, tag: str, limits: dict[str, int]) -> None:
        self.alloc.set_limit(tag, **(limits or {"hard": None}))

    def free(self, name: str) -> None:
        if name in self.blocks:
            self.alloc.free(self.blocks[name])
            self.direct.pop(self.blocks.pop(name), None)

    def read(self, name: str, stream: int) -> None:
        self.device.launch(stream)
        if name in self.blocks:
            self.alloc.record_stream(self.blocks[name], stream)

    def share(self, name: str) -> None:
        if name in self.blocks:
            self.alloc.share_torch(self.blocks[name])

    def finish(self, stream: int | None) -> None:
        self.device.finish(stream)

    def launch(self, stream: int) -> None:
        self.device.launch(stream)

    def empty_cache(self) -> None:
        self.alloc.empty_cache()

    def configure(self, text: str) -> None:
        try:
            self.alloc.settings = text
        except SettingsError:  # a key that has no meaning to another placement; the rest of the text goes with it
            assert self.alloc.settings.placement != "torch"

    def limit(self, limit: int | None) -> None:
        self.alloc.limit = limit

    def caching(self, on: bool) -> None:
        self.alloc.pools.caching = on

    def new_pool(self, name: str, options: dict[str, bool] | None = None) -> None:
        self.pools[name] = self.alloc.pool(**(options or {}))

    def enter(self, name: str) -> None:
        if name in self.pools:
            self.pools[name].__enter__()
            self.entered.append(name)

    def leave(self, name: str) -> None:
        if name in self.entered:
            self.entered.remove(name)
            self.pools[name].__exit__(None, None, None)

    def close(self, name: str) -> None:
        if name in self.pools:
            self.pools.pop(name).close()

    def begin_capture(self, stream: int) -> None:
        if stream in self.captures:
            return
        capture = self.device.begin_capture(stream)
        pool = (next(self.graph_ids), 0)
        try:
            self.alloc.pools.begin_allocate_to_pool(pool, capture=capture)
        except BaseException:
            self.device.end_capture(stream)
            raise
        self.captures[stream] = pool

    def join(self, stream: int, on: int) -> None:
        self.device.wait(stream, on)

    def end_capture(self, stream: int) -> None:
        if stream not in self.captures:
            return
        try:
            self.device.end_capture(stream)
        finally:
            if not self.device.capture_of(stream):
                self.alloc.pools.end_allocate_to_pool(self.captures[stream])
                self.graphs.append(self.captures.pop(stream))

    def reset_graphs(self) -> None:
        while self.graphs:
            self.alloc.pools.release(self.graphs.pop())

    def checkpoint(self, name: str) -> None:
        if name not in self.pools:
            return
        state = self.pools[name].checkpoint()
        shown = {
            block["address"]
            for segment in self.alloc.history.segments(self.pools[name].id)
            for block in segment["blocks"]
        }
        self.states[name] = (state, {name: address for name, address in self.blocks.items() if address in shown})

    def restore(self, name: str) -> None:
        if name not in self.states:
            return
        state, then = self.states[name]
        freed, created = self.pools[name].restore(state)
        assert set(created) == set(then.values())
        self.blocks = {n: a for n, a in self.blocks.items() if a not in freed} | then

    # --- the end ---

    def end(self) -> None:
        """The device works again: end everything that was begun, and return all memory."""
        self.device.refuse_calls(times=0)
        for operation in self.device.calls:
            self.device.refuse(operation, times=0)
        for stream in list(self.captures):
            with suppress(DeviceError, StreamError):  # a stream was not joined back, or the capture has ended before
                self.device.end_capture(stream)
            self.alloc.pools.end_allocate_to_pool(self.captures[stream])
            self.graphs.append(self.captures.pop(stream))
        for name in reversed(self.entered):
            self.pools[name].__exit__(None, None, None)
        for address in self.blocks.values():
            self.alloc.free(address)
        self.reset_graphs()
        for pool in self.pools.values():
            pool.close()
        self.device.finish()
        self.alloc.empty_cache()
        for tag in self.alloc.sleep.tags():
            self.alloc.resume(tag)
            self.alloc.set_limit(tag, hard=None)
        check(self.alloc)
        assert self.alloc.inspection.pending_events() == []
        assert self.alloc.stats()["reserved_bytes.all.current"] == 0
        assert self.device.used == 0
        for left in (self.blocks, self.direct, self.pools, self.entered, self.states):
            left.clear()
        self.alloc.settings = (
            "graph_capture_record_stream_reuse:False,release_lock_on_cudamalloc:False,large_segment_size_mb:20"
        )
        self.configure("expandable_segments:False")
        self.alloc.limit = None
        self.alloc.pools.caching = True


def undisturbed(name: str, placement: str = "torch") -> tuple[list[str], dict[str, int]]:
    """Return how the steps of a life end when nothing fails, and how often they call each operation."""
    life = Life(placement)
    before = life.device.calls
    outcomes = life.live(name)
    calls = {operation: number - before[operation] for operation, number in life.device.calls.items()}
    life.end()
    return outcomes, calls


def lived_twice(name: str, life: Life) -> list[str]:
    """Run a life on a device that may fail, and again, with these expected outcomes, once the device works."""
    life.live(name)
    life.end()
    outcomes = life.live(name)
    life.end()
    return outcomes
