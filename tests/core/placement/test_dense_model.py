"""Dense placement decides as its model in plain Python does, address for address, on random sequences of calls."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import DeviceError, OutOfMemoryError
from core.placement import dense_model as model
from helpers.effort import some

MIB = model.MIB
STREAMS = (0, 1, 2, 3)
SIZES = (512, 3000, 65536, MIB, 2 * MIB, 5 * MIB, 5 * MIB, 16 * MIB, 24 * MIB, 40 * MIB, 40 * MIB, 96 * MIB)


@dataclass
class Settings:
    """The parameters of a sequence."""

    total: int
    limit: int | None
    text: str
    options: model.Options
    streams: int
    pools: int
    shares: float  # the fraction of blocks that another stream uses
    refuses: float  # the fraction of calls before which the device is told to refuse the next chunk or mapping
    captures: bool  # requests routed to a pool count as captured ones, as by the older rules


def drawn_settings(rng: random.Random) -> Settings:
    options = model.Options(
        grain=rng.choice((12, 24, 24, 64, 256)),
        wait_reuse=rng.choice((0, 2, 2, None)),
        share_streams=rng.random() < 0.9,
        views=rng.choice((1, 2, 3, 8, 8)),
        gc_threshold=rng.choice((0.0, 0.0, 0.3, 0.6)),
        slack=rng.choice((0.0, 0.01, 0.01, 0.25)),
    )
    captures = rng.random() < 0.5
    text = (
        f"compat:{'2.11' if captures else 'newest'},placement:dense"
        f",dense_grain:{options.grain},dense_slack:{options.slack},dense_views:{options.views}"
        f",dense_wait_reuse:{'off' if options.wait_reuse is None else options.wait_reuse}"
        f",dense_share_streams:{options.share_streams}"
    )
    if options.gc_threshold:
        text += f",garbage_collection_threshold:{options.gc_threshold}"
    total = rng.choice((768, 2048, 8192)) * MIB
    return Settings(
        total=total,
        limit=rng.choice((None, None, 500 * MIB, total // 2)),
        text=text,
        options=options,
        streams=rng.choice((1, 2, 4, 9)),
        pools=rng.choice((0, 0, 2, 4)),
        shares=rng.choice((0.0, 0.2, 0.6)),
        refuses=rng.choice((0.0, 0.0, 0.02, 0.1)),
        captures=captures,
    )


class Pair:
    """An allocator and its model, which get the same calls."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = SimulatedDevice(settings.total)
        self.allocator = Allocator(self.device, settings=settings.text, limit=settings.limit)
        self.model = model.Memory(settings.total, settings.limit, settings.options)
        self.pools = {(1 + i, 0): self.model.pool() for i in range(settings.pools)}
        for pool in self.pools:
            self.allocator.pools.create_or_incref(pool)
        self.open = list(self.pools)
        self.live: list[tuple[int, model.Tile]] = []
        self.bases: dict[tuple[int, int], int] = {}

    def malloc(self, size: int, stream: int, pool: tuple[int, int] | None) -> None:
        arena = self.model.arena if pool is None else self.pools[pool]
        expected = outcome = "served"
        try:
            tile = self.model.malloc(size, stream, arena, pool is not None and self.settings.captures)
        except (model.OutOfMemory, model.MappingRefused) as error:
            expected = type(error).__name__
        try:
            address = self.allocate(size, stream, pool)
        except OutOfMemoryError:
            outcome = "OutOfMemory"
        except DeviceError:
            outcome = "MappingRefused"
        assert outcome == expected, f"{outcome}, but {expected} by the model"
        if outcome != "served":
            return
        if not arena.private and not any(block.region in arena.regions for _, block in self.live):
            # Everything was released, addresses too: the device chooses the next ones.
            self.bases = {key: base for key, base in self.bases.items() if key[0] != id(arena)}
        base = self.bases.setdefault((id(arena), tile.region.number), address - tile.offset)
        assert address == base + tile.offset, f"region {tile.region.number}, offset {tile.offset}"
        self.live.append((address, tile))

    def allocate(self, size: int, stream: int, pool: tuple[int, int] | None) -> int:
        if pool is None:
            return self.allocator.malloc(size, stream)
        self.allocator.pools.begin_allocate_to_pool(pool)
        try:
            return self.allocator.malloc(size, stream)
        finally:
            self.allocator.pools.end_allocate_to_pool(pool)
            self.allocator.pools.release(pool)

    def close(self, pool: tuple[int, int]) -> None:
        self.open.remove(pool)
        self.allocator.pools.release(pool)
        self.model.close(self.pools[pool])

    def free(self, index: int, users: list[int]) -> None:
        address, tile = self.live.pop(index)
        for user in users:
            self.device.launch(user)
            self.model.launch(user)
            self.allocator.record_stream(address, user)
            self.model.record_stream(tile, user)
        self.allocator.free(address)
        self.model.free(tile)

    def check(self, everything: bool) -> None:
        if everything:  # not always: it makes the engine put the block freed last where free memory is searched
            self.allocator.inspection.check_invariants()
        stats = self.allocator.stats()
        assert stats["reserved_bytes.all.current"] == self.model.reserved == self.device.used
        assert stats["active_bytes.all.current"] == self.model.active
        chunks = len(self.model.arena.chunks) + sum(len(arena.chunks) for arena in self.model.private)
        assert stats["segment.all.current"] == chunks
        views = sum(len(chunk.views) for chunk in self.model.arena.chunks)
        assert stats["dense.views.current"] == views
        assert stats["dense.views_dropped"] == self.model.dropped


def run_sequence(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    settings = drawn_settings(rng)
    pair = Pair(settings)
    favourites = [rng.choice(SIZES) for _ in range(rng.choice((2, 4)))]
    for _ in range(steps):
        draw = rng.random()
        stream = rng.randrange(settings.streams)
        if draw < 0.52:
            size = rng.choice(favourites) if rng.random() < 0.6 else rng.randrange(1, 64 * MIB)
            pool = rng.choice(pair.open) if pair.open and rng.random() < 0.3 else None
            if rng.random() < settings.refuses:
                pair.device.refuse("chunk_create")
                pair.model.refusals = [True]
            elif rng.random() < settings.refuses:
                pair.device.refuse("map", out_of_memory=False)
                pair.model.refuses_map = True
            pair.malloc(size, stream, pool)
            pair.device.refuse("chunk_create", times=0)  # a refusal that this call did not use must not affect the next
            pair.device.refuse("map", times=0)
            pair.model.refusals, pair.model.refuses_map = [], False
        elif draw < 0.94 and pair.live:
            others = [other for other in range(settings.streams) if rng.random() < settings.shares]
            pair.free(rng.randrange(len(pair.live)), [other for other in others if other != stream])
        elif draw < 0.985:
            pair.device.finish(stream)
            pair.model.finish(stream)
        elif draw < 0.995:
            pair.allocator.empty_cache()
            pair.model.empty_cache()
        elif pair.open:
            pair.close(rng.choice(pair.open))
        pair.check(everything=rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(some(24)))
def test_the_engine_decides_as_its_model_does(seed: int) -> None:
    run_sequence(seed, 160)


@pytest.mark.slow
def test_a_thousand_sequences_are_decided_alike() -> None:
    for seed in range(1000, 1000 + some(1000)):
        run_sequence(seed, 120)
