"""Dense placement with everything else at once: lives of drawn steps on host memory, every byte compared.

    python tests/stress/dense_combinations.py [--seconds 600] [--steps 400] [--seed 1]

A life has two allocators with drawn settings and several streams each. Its steps are those of `dense_host.py` and:
graphs captured, replayed while other streams allocate, and reset; private pools, with PyTorch's placement or dense; a
pool's arrangement saved and restored; tags paused and resumed; blocks shared and opened; limits set and lifted; blocks
that many streams use at once. Streams fill and compare asynchronously; the program rarely waits for them. A life
ends with everything freed, all invariants checked and nothing reserved. Exits with 0 if no byte was wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import allotment
from helpers.peer import wait_until
from stress.dense_host import DenseStress

MIB = 1 << 20
TAGS = ("weights", "cache")
SETTINGS = ("", ",dense_grain:24", ",dense_grain:256", ",dense_grain:256,dense_views:3", ",dense_views:1",
            ",dense_wait_reuse:off", ",dense_wait_reuse:0", ",dense_share_streams:False",
            ",garbage_collection_threshold:0.5", ",dense_slack:0")  # fmt: skip
SIZES = (700, 40_000, MIB, 3 * MIB, 5 * MIB, 7 * MIB)


class CapturedWork:
    """A graph, its blocks that stay allocated, and the value that each replay writes to them."""

    def __init__(self, graph: allotment.Graph, stream: Any, blocks: list[tuple[int, int, int]]) -> None:
        self.graph, self.stream, self.blocks = graph, stream, blocks


class Combined(DenseStress):
    """One allocator of a life, and the state that the steps need."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        shareable = choose.random() < 0.5
        text = f"placement:dense{choose.choice(SETTINGS)}" + (",shareable:True" if shareable else "")
        super().__init__(text, choose.choice((1, 2, 4)), seed)
        self.shareable = shareable
        self.graphs: list[CapturedWork] = []
        self.pools: list[tuple[allotment.Pool, list[tuple[int, int, Any, int]]]] = []
        self.tagged: dict[str, list[tuple[int, int, Any, int]]] = {tag: [] for tag in TAGS}
        self.asleep: set[str] = set()
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        if self.choose.random() < 0.8:
            super().step()
            return
        name = self.choose.choice([name for name, may in STEPS if may(self)])
        try:
            getattr(self, name)()
            self.counts[name] += 1
        except allotment.OutOfMemoryError:
            self.refused += 1
            self.free(len(self.blocks) // 2)

    def filled_block(self, stream: Any) -> tuple[int, int, Any, int]:
        size, value = self.choose.choice(SIZES), self.choose.randrange(1, 256)
        address = self.allocator.malloc(size, stream)
        stream.submit(self.fill, address, size, value)
        self.filled += 1
        return address, size, stream, value

    def give(self, block: tuple[int, int, Any, int]) -> None:
        address, size, stream, value = block
        stream.submit(self.compare, address, size, value)
        self.compared += 1
        self.allocator.free(address)

    def capture(self) -> None:
        """Capture work whose temporaries share memory in the pool, and whose results stay."""
        stream = self.choose.choice(self.streams)
        results: list[tuple[int, int, int]] = []
        held: list[int] = []
        try:
            with allotment.capture(stream, allocator=self.allocator) as graph:
                for _ in range(self.choose.randrange(1, 4)):
                    size, value = self.choose.choice(SIZES), self.choose.randrange(1, 256)
                    held.append(self.allocator.malloc(size, stream))
                    stream.submit(self.fill, held[-1], size, value)
                    stream.submit(self.compare, held[-1], size, value)
                    address = self.allocator.malloc(size, stream)
                    self.allocator.free(held.pop())
                    stream.submit(self.fill, address, size, value)
                    results.append((address, size, value))
        except allotment.OutOfMemoryError:
            for address in (*held, *(address for address, _, _ in results)):
                self.allocator.free(address)
            raise
        self.graphs.append(CapturedWork(graph, stream, results))

    def replay(self) -> None:
        work = self.choose.choice(self.graphs)
        work.graph.replay()
        for address, size, value in work.blocks:
            work.stream.submit(self.compare, address, size, value)
            self.compared += 1

    def reset(self) -> None:
        work = self.graphs.pop(self.choose.randrange(len(self.graphs)))
        for address, _, _ in work.blocks:
            self.allocator.free(address)
        work.graph.reset()

    def use_pool(self) -> None:
        if len(self.pools) < 3:
            self.pools.append((self.allocator.pool(placement=self.choose.choice((None, "dense", "torch"))), []))
        pool, blocks = self.choose.choice(self.pools)
        with pool:
            blocks.append(self.filled_block(self.choose.choice(self.streams)))

    def close_pool(self) -> None:
        pool, blocks = self.pools.pop(self.choose.randrange(len(self.pools)))
        for block in blocks:
            self.give(block)
        pool.close()

    def restore_pool(self) -> None:
        """Save a pool's arrangement, allocate more there, and restore it: earlier blocks keep their contents."""
        self.synchronize()
        pool = self.allocator.pool(placement="dense")
        stream = self.streams[0]
        before: list[tuple[int, int, Any, int]] = []
        added: list[int] = []
        try:
            with pool:
                for _ in range(self.choose.randrange(1, 4)):
                    before.append(self.filled_block(stream))
                stream.synchronize()
                state = pool.checkpoint()
                for _ in range(self.choose.randrange(3)):
                    added.append(self.filled_block(stream)[0])
            stream.synchronize()
            freed, created = pool.restore(state)
            assert set(added) <= set(freed)
            assert set(created) == {address for address, _, _, _ in before}
            added.clear()
        finally:
            for address in added:
                self.allocator.free(address)
            for block in before:
                self.give(block)
            pool.close()

    def use_tag(self) -> None:
        tag = self.choose.choice(self.awake())
        with allotment.tag(tag):
            self.tagged[tag].append(self.filled_block(self.choose.choice(self.streams)))

    def awake(self) -> list[str]:
        return [tag for tag in TAGS if tag not in self.asleep]

    def pause(self) -> None:
        tag = self.choose.choice([tag for tag in self.awake() if self.tagged[tag]])
        self.synchronize()
        self.allocator.pause(tag, keep="host")
        self.asleep.add(tag)

    def resume(self) -> None:
        for tag in sorted(self.asleep):
            self.allocator.resume(tag)
            self.asleep.discard(tag)
            for block in self.tagged[tag]:
                self.give(block)
            self.tagged[tag].clear()

    def share(self) -> None:
        address, size, stream, value = self.choose.choice(self.blocks)
        stream.synchronize()
        handle = self.allocator.share(address)
        opened = allotment.open_shared(handle)
        self.compare(opened.address, size, value)
        opened.close()
        handle.close()
        self.compared += 1

    def set_limits(self) -> None:
        if self.choose.random() < 0.5:
            self.allocator.limit = self.choose.choice((96, 128, 192)) * MIB
        else:
            self.allocator.limit = 192 * MIB
            self.allocator.set_limit(self.choose.choice(TAGS), hard=self.choose.choice((None, "12MiB", "30MiB")))

    def storm(self) -> None:
        """Blocks that every stream reads, freed at once."""
        for _ in range(self.choose.randrange(2, 12)):
            address, size, stream, value = self.filled_block(self.choose.choice(self.streams))
            for other in self.streams:
                if other is not stream:
                    other.wait(stream.record())
                    other.submit(self.compare, address, size, value)
                    self.allocator.record_stream(address, other)
                    self.compared += 1
            self.allocator.free(address)

    def trim(self) -> None:
        self.choose.choice((self.allocator.empty_cache, lambda: self.allocator.trim_to(32 * MIB)))()

    def reserved_when_empty(self) -> int:
        self.allocator.empty_cache()
        return self.allocator.stats()["reserved_bytes.all.current"]

    def end(self) -> None:
        self.allocator.limit = None
        for tag in TAGS:
            self.allocator.set_limit(tag, hard=None)
        self.resume()
        while self.graphs:
            self.reset()
        while self.pools:
            self.close_pool()
        for blocks in self.tagged.values():
            for block in blocks:
                self.give(block)
        self.free(len(self.blocks))
        self.synchronize()
        self.allocator.inspection.check_invariants()
        # The last blocks that were shared are given back by the thread that serves them.
        wait_until(lambda: self.reserved_when_empty() == 0)
        self.allocator.close()


def always(one: Combined) -> bool:
    return True


STEPS: tuple[tuple[str, Callable[[Combined], Any]], ...] = (
    ("capture", lambda one: len(one.graphs) < 3),
    ("replay", lambda one: one.graphs),
    ("reset", lambda one: one.graphs),
    ("use_pool", always),
    ("close_pool", lambda one: one.pools),
    ("restore_pool", always),
    ("use_tag", lambda one: one.awake()),
    ("pause", lambda one: any(one.tagged[tag] for tag in one.awake())),
    ("resume", lambda one: one.asleep),
    ("share", lambda one: one.shareable and one.blocks),
    ("set_limits", always),
    ("storm", always),
    ("trim", always),
)
"""Steps besides those of one block, and when each is possible."""


def life(seed: int, steps: int) -> Counter[str]:
    """Run one life. Returns how often each step was taken; raises if a byte was wrong."""
    choose = random.Random(seed)
    devices = [Combined(10 * seed + index) for index in range(2)]
    for number in range(steps):
        one = choose.choice(devices)
        one.step()
        if number % 40 == 0:
            one.synchronize()
        if number % 50 == 0:
            one.allocator.inspection.check_invariants()
    found: Counter[str] = Counter(steps=steps)
    for one in devices:
        one.end()
        if one.wrong:
            raise AssertionError(f"life {seed}: {one.wrong[0]}")
        found += one.counts
        found.update(filled=one.filled, compared=one.compared, refused=one.refused)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Dense placement with everything else at once, every byte compared.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    lives, seed = 0, options.seed
    total: Counter[str] = Counter()
    while time.monotonic() < end:
        total += life(seed, options.steps)
        lives, seed = lives + 1, seed + 1
        if lives % 20 == 0:
            print(json.dumps({"lives": lives, **total}), flush=True)
    print(json.dumps({"lives": lives, **total}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
