"""Random sequences, with random families, settings and limits. They find cases that nobody expected.

Beside the families of sequences.py:

    routes      several pools routed to at once, by thread, by stream or for all, ended in any order; pools that lend on
                out of memory, that do not split; requests of two threads
    forks       captures that other streams join and leave, two at once, with requests from outside
    figures     limits that change, resets of counters, summaries
    states      checkpoints of two pools, taken and restored in any order

Two things are left out, in which PyTorch 2.11 is at fault. It keeps a stream that was recorded while routing, if the
block is freed afterwards, for a later block that happens to live in the same object: so blocks recorded while routing
are freed before the routing ends. And it counts what a pool of expandable segments has by mappings and unmapped blocks,
so a pool can be deleted under a block in use: these pools are not deleted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sequences import EXPANDABLE, MIB, STREAMS, Op, Sequence, Writer, all_sequences

FAMILIES = ("mixed", "small", "large", "streams", "settings", "figures", *["routes", "forks", "states"] * 3)
PREFIX = "drawn-"
THREADS = 2
DIVISIONS = ("2", "4", "8", "[1:2,16:4,>:8]", "[256:1,512:2,>:4]")
BOUNDARIES = (512, 1024, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 22 * MIB, 64 * MIB)


class DrawnSequence(Sequence):
    @property
    def name(self) -> str:
        return f"{PREFIX}{self.seed}"

    def calls(self) -> list[Op]:
        writer = _WRITERS.get(self.family, _Edges)
        return writer(self).write(900)


def drawn_sequence(seed: int) -> DrawnSequence:
    choose = random.Random(f"drawn {seed}")
    family = choose.choice(FAMILIES)
    limit = choose.choice((0, choose.randrange(96, 2048))) * MIB
    if family == "streams":
        limit = 0  # without memory the allocator waits for streams, and here one may be held
    settings = _settings(choose, limited=limit > 0)
    if family == "states":
        settings = settings.replace(EXPANDABLE, "expandable_segments:False")  # a pool that has grown cannot be restored
    return DrawnSequence(family, settings, limit, seed)


def sequence_named(name: str) -> Sequence:
    """Return one of these sequences, or one of sequences.py."""
    if name.startswith(PREFIX):
        return drawn_sequence(int(name.removeprefix(PREFIX)))
    return next(sequence for sequence in all_sequences() if sequence.name == name)


def _settings(choose: random.Random, *, limited: bool) -> str:
    parts = []
    if choose.random() < 0.4:
        parts.append(EXPANDABLE)
    if choose.random() < 0.1:
        parts.append(f"large_segment_size_mb:{choose.choice((24, 40, 64))}")
    elif choose.random() < 0.4:
        parts.append(f"max_split_size_mb:{choose.choice((24, 40, 64, 100, 200))}")
        if choose.random() < 0.4:
            parts.append(f"max_non_split_rounding_mb:{choose.choice((24, 64, 100))}")
    if choose.random() < 0.3:
        parts.append(f"roundup_power2_divisions:{choose.choice(DIVISIONS)}")
    if limited and choose.random() < 0.4:
        parts.append(f"garbage_collection_threshold:{choose.choice((0.4, 0.6, 0.8, 0.95))}")
    return ",".join(parts)


class _Edges(Writer):
    """A family of sequences.py, with sizes on and beside the boundaries of the rules."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence)
        self._keeps_pools = EXPANDABLE in sequence.settings

    def _extra(self) -> list[Callable[[], None]]:
        return [*super()._extra(), *[self._request_or_free] * 8]

    def _size(self) -> int:
        if self._choose.random() < 0.15:
            return self._choose.choice(BOUNDARIES) * self._choose.choice((1, 1, 2)) + self._choose.randrange(-2, 3)
        return super()._size()

    def _snapshot(self) -> None:
        """Take a snapshot of everything, or of one pool."""
        self._add("snapshot", pool=self._choose.choice([None, *self._pools]))


class _Routing(_Edges):
    """Make requests on all streams, sometimes for an exact address."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence)
        self._recorded: set[int] = set()  # while routing

    def _routings(self) -> int:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        while self._routings():
            self._end()
        self._empty_cache()

    def _stream(self) -> int:
        return self._choose.randrange(STREAMS)

    def _record_stream(self) -> None:
        if self._live:
            block = self._choose.choice(self._live)
            if self._routings():
                self._recorded.add(block)
            self._add("record_stream", id=block, stream=self._choose.randrange(STREAMS))

    def _free_recorded_before_the_last_end(self) -> None:
        if self._routings() == 1:
            for block in [block for block in self._live if block in self._recorded]:
                self._live.remove(block)
                self._add("free", id=block)


class _Routes(_Routing):
    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence)
        self._routes: list[int] = []
        self._lender: int | None = None

    def _extra(self) -> list[Callable[[], None]]:
        return [*[self._begin] * 4, *[self._end] * 3, *[self._record_stream] * 5, self._create, self._delete,
                self._use_count, self._snapshot, self._empty_cache, self._sync]  # fmt: skip

    def _routings(self) -> int:
        return len(self._routes)

    def _request(self, **fields: Any) -> None:
        super()._request(**({"thread": 1} if self._choose.random() < 0.3 else {}), **fields)

    def _sync(self) -> None:
        self._add("sync")

    def _create(self) -> None:
        self._pools.append(self._number())
        flags = {}
        if self._lender not in self._pools and self._choose.random() < 0.4:
            self._lender = self._pools[-1]  # one at a time: of several lenders, the first to lend is arbitrary
            flags["use_on_oom"] = True
        if self._choose.random() < 0.2:
            flags["no_split"] = True
        self._add("pool_create", pool=self._pools[-1], **flags)

    def _begin(self) -> None:
        free = [pool for pool in self._pools if pool not in self._routes]
        if free and len(self._routes) < 3:
            self._routes.append(self._choose.choice(free))
            accepted = self._choose.choice(("thread", "stream", "all"))
            numbers = {"thread": range(THREADS), "stream": range(1, STREAMS)}.get(accepted)
            named = {accepted: self._choose.choice(numbers)} if numbers else {}
            self._add("pool_begin", pool=self._routes[-1], filter=accepted, **named)

    def _end(self) -> None:
        self._free_recorded_before_the_last_end()
        if self._routes:
            self._add("pool_end", pool=self._routes.pop(self._choose.randrange(len(self._routes))))

    def _delete(self) -> None:
        if self._pools and not self._routes and not self._keeps_pools:
            self._add("pool_delete", pool=self._pools.pop(self._choose.randrange(len(self._pools))))

    def _use_count(self) -> None:
        if self._pools:
            self._add("use_count", pool=self._choose.choice(self._pools))


class _Forks(_Routing):
    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence)
        self._captures: dict[int, list[int]] = {}  # graph -> the streams in it, its own first

    def _extra(self) -> list[Callable[[], None]]:
        return [*[self._begin] * 3, *[self._end] * 2, *[self._fork] * 4, *[self._kernel] * 4,
                *[self._record_stream] * 6, self._reset, self._empty_cache]  # fmt: skip

    def _routings(self) -> int:
        return len(self._captures)

    def _captured(self) -> list[int]:
        return [stream for streams in self._captures.values() for stream in streams]

    def _others(self) -> list[int]:
        """Return the streams that can be captured: all except the default one."""
        return [stream for stream in range(1, STREAMS) if stream not in self._captured()]

    def _empty_cache(self) -> None:
        if not self._captures:
            self._add("empty_cache")

    def _begin(self) -> None:
        others = self._others()
        if others and len(self._captures) < 2:
            graph, stream = self._number(), self._choose.choice(others)
            may_share = self._graphs and not self._captures and self._choose.random() < 0.3
            shares = self._choose.choice(self._graphs) if may_share else None
            self._add("capture_begin", graph=graph, stream=stream, shares=shares)
            self._captures[graph] = [stream]
            self._add("kernel", stream=stream)

    def _fork(self) -> None:
        others = self._others()
        if others and self._captures:
            streams = self._choose.choice(list(self._captures.values()))
            stream = self._choose.choice(others)
            self._add("wait", stream=stream, on=self._choose.choice(streams))
            streams.append(stream)

    def _kernel(self) -> None:
        if self._captures:
            self._add("kernel", stream=self._choose.choice(self._captured()))

    def _end(self) -> None:
        if self._captures:
            graph = self._choose.choice(list(self._captures))
            own, *joined = self._captures[graph]
            for stream in joined:
                self._add("wait", stream=own, on=stream)
            self._free_recorded_before_the_last_end()
            self._add("capture_end", graph=graph)
            del self._captures[graph]
            self._graphs.append(graph)

    def _reset(self) -> None:
        if self._graphs and not self._captures:
            self._add("graph_reset", graph=self._graphs.pop(self._choose.randrange(len(self._graphs))))


class _Figures(_Edges):
    def _extra(self) -> list[Callable[[], None]]:
        pools = [] if self._keeps_pools else [self._pool] * 3
        return [*[self._fraction] * 2, self._reset_peak, self._reset_accumulated, self._summary, self._snapshot,
                *pools, self._empty_cache]  # fmt: skip

    def _fraction(self) -> None:
        self._add("fraction", limit=self._choose.randrange(64, 1024) * MIB)

    def _reset_peak(self) -> None:
        self._add("reset_peak")

    def _reset_accumulated(self) -> None:
        self._add("reset_accumulated")

    def _summary(self) -> None:
        self._add("summary", abbreviated=self._choose.random() < 0.5)


class _States(_Edges):
    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence)
        self._states: list[tuple[int, int]] = []  # (pool, state)
        for _ in range(2):
            self._pools.append(self._number())
            self._add("pool_create", pool=self._pools[-1])

    def _extra(self) -> list[Callable[[], None]]:
        return [*[self._route] * 6, *[self._checkpoint] * 2, *[self._restore] * 2, self._check_live, self._snapshot,
                self._empty_cache]  # fmt: skip

    def _stream(self) -> int:
        return self._choose.randrange(2)

    def _route(self) -> None:
        if self._routed is not None:
            self._end_pool()
        else:
            self._routed = self._choose.choice(self._pools)
            self._add("pool_begin", pool=self._routed, filter="thread", thread=0)

    def _checkpoint(self) -> None:
        if self._routed is None:
            self._states.append((self._choose.choice(self._pools), len(self._states)))
            pool, state = self._states[-1]
            self._add("checkpoint", pool=pool, state=state)

    def _restore(self) -> None:
        if self._routed is None and self._states:
            pool, state = self._choose.choice(self._states[-4:])
            self._add("restore", pool=pool, state=state)

    def _check_live(self) -> None:
        self._add("check_live", pool=self._choose.choice(self._pools), complete=self._choose.random() < 0.7)


_WRITERS: dict[str, type[Writer]] = {"routes": _Routes, "forks": _Forks, "figures": _Figures, "states": _States}
