"""Seeded sequences of calls to an allocator, as plain data, which can be replayed on any allocator.

A call is {"op": name, ...} in the form that recordings have (`allotment conformance` reads them), with two exceptions:
"sleep" holds a stream until the next "sync", and "capture_begin" may name a graph whose pool it shares ("shares").
While a stream is held, no call would wait for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
STREAMS = 4
EXPANDABLE = "expandable_segments:True"
SETTINGS = (
    "max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[1:2,16:4,>:8]",
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:128,roundup_power2_divisions:4",
)

Op = dict[str, Any]


@dataclass(frozen=True)
class Sequence:
    """The calls and their settings. `limit` is in bytes, 0 for none."""

    family: str
    settings: str
    limit: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.family}-{self.seed}"

    def calls(self) -> list[Op]:
        return Writer(self).write(600)


def all_sequences() -> list[Sequence]:
    kinds = [
        ("mixed", "", 0),
        ("mixed", EXPANDABLE, 0),
        ("mixed", "roundup_power2_divisions:4", 0),
        ("small", "", 0),
        ("small", EXPANDABLE, 0),
        ("large", "", 512),
        ("large", "garbage_collection_threshold:0.6", 512),
        ("large", "max_split_size_mb:64", 512),
        ("large", "garbage_collection_threshold:0.7,max_split_size_mb:64", 512),
        ("large", EXPANDABLE, 512),
        ("streams", "", 0),
        ("streams", "", 0),
        ("streams", EXPANDABLE, 0),
        ("pools", "", 0),
        ("pools", "", 192),
        ("pools", EXPANDABLE, 0),
        ("captures", "", 0),
        ("captures", EXPANDABLE, 0),
        ("settings", "", 0),
        ("settings", EXPANDABLE, 0),
    ]
    return [Sequence(family, settings, limit * MIB, seed) for seed, (family, settings, limit) in enumerate(kinds, 1)]


class Writer:
    """Chooses one call after another, each valid after the previous ones."""

    def __init__(self, sequence: Sequence) -> None:
        self._family = sequence.family
        self._choose = random.Random(f"{sequence.family} {sequence.seed}")
        self._ops: list[Op] = []
        self._live: list[int] = []
        self._next = 0
        self._held = False
        self._routed: int | None = None
        self._pools: list[int] = []
        self._capturing: tuple[int, int] | None = None  # (graph, stream)
        self._graphs: list[int] = []

    def write(self, count: int) -> list[Op]:
        extra = self._extra()
        while len(self._ops) < count:
            if self._choose.random() < 0.8:
                self._request_or_free()
            else:
                self._choose.choice(extra)()
        self._finish()
        return self._ops

    def _extra(self) -> list[Callable[[], None]]:
        """Operations other than requests and frees, each as likely as it is often listed."""
        return {
            "streams": [*[self._record_stream] * 12, *[self._hold] * 2, *[self._release] * 2, self._empty_cache],
            "pools": [*[self._pool] * 6, *[self._record_stream] * 4, self._empty_cache],
            "captures": [*[self._capture] * 6, *[self._record_stream] * 6, self._empty_cache],
            "settings": [*[self._settings] * 3, self._empty_cache],
        }.get(self._family, [self._empty_cache])

    def _finish(self) -> None:
        self._release()
        if self._capturing is not None:
            self._end_capture()
        if self._routed is not None:
            self._end_pool()
        self._empty_cache()

    def _add(self, op: str, **fields: Any) -> None:
        self._ops.append({"op": op, **fields})

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _stream(self) -> int:
        if self._capturing is not None:
            return self._capturing[1]
        return self._choose.randrange(STREAMS) if self._family in ("streams", "pools", "captures") else 0

    def _size(self) -> int:
        largest = {"small": MIB, "large": 220 * MIB, "pools": 48 * MIB}.get(self._family, 64 * MIB)
        least = MIB if self._family == "large" else 1
        exponent = self._choose.uniform(least.bit_length() - 1, largest.bit_length() - 1)
        return min(largest, max(least, int(2**exponent)))

    def _request_or_free(self) -> None:
        most = {"large": 24, "small": 300}.get(self._family, 80)
        if self._live and self._choose.random() < 0.25 + 0.5 * len(self._live) / most:
            self._add("free", id=self._live.pop(self._choose.randrange(len(self._live))))
        else:
            self._request()

    def _request(self, **fields: Any) -> None:
        number = self._number()
        self._add("alloc", id=number, size=self._size(), stream=self._stream(), **fields)
        self._live.append(number)

    def _record_stream(self) -> None:
        # A use recorded outside of routing and freed inside gets its event in the middle of a later request, which
        # may or may not see it finished.
        is_routing = self._routed is not None or self._capturing is not None
        if self._live and (is_routing or self._family == "streams"):
            self._add("record_stream", id=self._choose.choice(self._live), stream=self._choose.randrange(STREAMS))

    def _empty_cache(self) -> None:
        if not self._held and self._capturing is None:
            self._add("empty_cache")

    def _hold(self) -> None:
        if not self._held:
            self._held = True
            self._add("sleep", stream=self._choose.randrange(1, STREAMS))

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._add("sync")

    def _pool(self) -> None:
        if self._routed is not None:
            self._end_pool()
        elif self._pools and self._choose.random() < 0.3:
            self._add("pool_delete", pool=self._pools.pop(self._choose.randrange(len(self._pools))))
        else:
            if not self._pools or self._choose.random() < 0.4:
                self._pools.append(self._number())
                self._add("pool_create", pool=self._pools[-1])
            self._routed = self._choose.choice(self._pools)
            self._add("pool_begin", pool=self._routed)

    def _end_pool(self) -> None:
        self._add("pool_end", pool=self._routed)
        self._routed = None

    def _capture(self) -> None:
        if self._capturing is not None:
            self._end_capture()
        elif self._graphs and self._choose.random() < 0.35:
            self._add("graph_reset", graph=self._graphs.pop(self._choose.randrange(len(self._graphs))))
        else:
            shares = self._choose.choice(self._graphs) if self._graphs and self._choose.random() < 0.4 else None
            graph, stream = self._number(), self._choose.randrange(1, STREAMS)
            self._add("capture_begin", graph=graph, stream=stream, shares=shares)
            self._capturing = graph, stream

    def _end_capture(self) -> None:
        assert self._capturing is not None
        self._add("capture_end", graph=self._capturing[0])
        self._graphs.append(self._capturing[0])
        self._capturing = None

    def _settings(self) -> None:
        self._add("settings", text=self._choose.choice(SETTINGS))
