"""Dense placement decides as its model in plain Python does, address for address, on drawn sequences of calls."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import OutOfMemoryError
from core.placement import dense_model as model
from helpers.effort import some

MIB = model.MIB
STREAMS = (0, 1, 2, 3)
SIZES = (512, 3000, 65536, MIB, 2 * MIB, 5 * MIB, 5 * MIB, 16 * MIB, 24 * MIB, 40 * MIB, 40 * MIB, 96 * MIB)


@dataclass
class Settings:
    """What differs from one sequence to the next."""

    total: int
    limit: int | None
    text: str
    options: model.Options
    streams: int
    pools: int
    shares: float  # of blocks that another stream uses
    refuses: float  # of calls before which the device is told to refuse the next chunk


def drawn_settings(rng: random.Random) -> Settings:
    options = model.Options(
        grain=rng.choice((12, 24, 24, 64, 256)),
        wait_reuse=rng.choice((0, 2, 2, None)),
        share_streams=rng.random() < 0.9,
        views=rng.choice((1, 8, 8, 8)),
        slack=rng.choice((0.0, 0.01, 0.01, 0.25)),
    )
    text = (
        f"compat:2.11,placement:dense,dense_grain:{options.grain},dense_slack:{options.slack},dense_views:{options.views}"
        f",dense_wait_reuse:{'off' if options.wait_reuse is None else options.wait_reuse}"
        f",dense_share_streams:{options.share_streams}"
    )
    total = rng.choice((768, 2048, 8192)) * MIB
    return Settings(
        total=total,
        limit=rng.choice((None, None, 500 * MIB, total // 2)),
        text=text,
        options=options,
        streams=rng.choice((1, 2, 4)),
        pools=rng.choice((0, 0, 2)),
        shares=rng.choice((0.0, 0.2, 0.6)),
        refuses=rng.choice((0.0, 0.0, 0.02)),
    )


class Pair:
    """An allocator and its model, given the same calls."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = SimulatedDevice(settings.total)
        self.allocator = Allocator(self.device, settings=settings.text, limit=settings.limit)
        self.model = model.Memory(settings.total, settings.limit, settings.options)
        self.pools = [(self.allocator.pool(), model.Arena(self.model, private=True)) for _ in range(settings.pools)]
        self.live: list[tuple[int, model.Tile]] = []
        self.bases: dict[tuple[int, int], int] = {}

    def malloc(self, size: int, stream: int, pool: int | None) -> None:
        arena = self.model.arena if pool is None else self.pools[pool][1]
        try:
            tile = self.model.malloc(size, stream, arena)
        except model.OutOfMemory:
            tile = None
        try:
            if pool is None:
                address = self.allocator.malloc(size, stream)
            else:
                with self.pools[pool][0]:
                    address = self.allocator.malloc(size, stream)
        except OutOfMemoryError:
            address = 0
        assert (tile is None) == (address == 0)
        if tile is None:
            return
        if not arena.private and not any(block.region in arena.regions for _, block in self.live):
            # Everything was given back, addresses too: where the next ones are is the device's choice.
            self.bases = {key: base for key, base in self.bases.items() if key[0] != id(arena)}
        base = self.bases.setdefault((id(arena), tile.region.number), address - tile.offset)
        assert address == base + tile.offset, f"region {tile.region.number}, offset {tile.offset}"
        self.live.append((address, tile))

    def free(self, index: int, users: list[int]) -> None:
        address, tile = self.live.pop(index)
        for user in users:
            self.device.launch(user)
            self.allocator.record_stream(address, user)
            self.model.record_stream(tile, user)
        self.allocator.free(address)
        self.model.free(tile)

    def check(self) -> None:
        self.allocator.check_invariants()
        stats = self.allocator.stats()
        assert stats["reserved_bytes.all.current"] == self.model.reserved == self.device.used
        assert stats["active_bytes.all.current"] == self.model.active
        chunks = len(self.model.arena.chunks) + sum(len(arena.chunks) for _, arena in self.pools)
        assert stats["segment.all.current"] == chunks


def run_sequence(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    settings = drawn_settings(rng)
    pair = Pair(settings)
    favourites = [rng.choice(SIZES) for _ in range(4)]
    for _ in range(steps):
        draw = rng.random()
        stream = rng.randrange(settings.streams)
        if draw < 0.52:
            size = rng.choice(favourites) if rng.random() < 0.6 else rng.randrange(1, 64 * MIB)
            pool = rng.randrange(settings.pools) if settings.pools and rng.random() < 0.2 else None
            if rng.random() < settings.refuses:
                pair.device.refuse("chunk_create")
                pair.model.refusals = [True]
            pair.malloc(size, stream, pool)
            pair.device.refuse("chunk_create", times=0)  # one that this call did not need is not kept for another
            pair.model.refusals = []
        elif draw < 0.94 and pair.live:
            others = [other for other in range(settings.streams) if rng.random() < settings.shares]
            pair.free(rng.randrange(len(pair.live)), [other for other in others if other != stream])
        elif draw < 0.985:
            pair.device.finish(stream)
            pair.model.finish(stream)
        elif draw < 0.995:
            pair.allocator.empty_cache()
            pair.model.empty_cache()
        pair.check()


@pytest.mark.parametrize("seed", range(some(24)))
def test_the_engine_decides_as_its_model_does(seed: int) -> None:
    run_sequence(seed, 160)


@pytest.mark.slow
def test_a_thousand_sequences_are_decided_alike() -> None:
    for seed in range(1000, 1000 + some(1000)):
        run_sequence(seed, 120)
