"""Random programs run on an allocator of ours, recorded as snapshots in PyTorch's form."""

from __future__ import annotations

import pickle
import random
from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._devices.simulated.device import SimulatedDevice
from allotment._devices.streams import Stream
from allotment.errors import OutOfMemoryError

SIZES = (8, 512, 700, 4096, 100_000, 1 << 20, (1 << 20) + 1, 3 << 20, 9 << 20, 11 << 20, 25 << 20)


def recorded_program(
    seed: int,
    *,
    settings: str = "",
    capacity: int = 1 << 40,
    calls: int = 400,
    entries: int = 10**6,
    pools: bool = False,
) -> tuple[bytes, dict[str, int]]:
    """A snapshot, without pool ids in its entries as PyTorch 2.11 writes it, and the statistics at its end."""
    program = _Program(random.Random(seed), SimulatedDevice(capacity), settings, pools)
    program.allocator.record_history(max_entries=entries)
    for _ in range(calls):
        program.call()
    stats = program.allocator.stats()
    snapshot = program.allocator.snapshot()
    for entry in snapshot["device_traces"][0]:
        entry.pop("pool_id", None)
    program.finish()
    return pickle.dumps(snapshot), stats


def prefetching(layers: int = 60) -> Allocator:
    """Gather layer after layer on a separate stream, as FSDP does; the computing stream is late with all of them."""
    allocator = Allocator("sim:1GiB", settings="compat:2.11")
    allocator.record_history()
    gathering, computing = Stream(allocator), Stream(allocator)
    allocator.malloc(20 << 20)
    for _ in range(layers):
        layer = allocator.malloc(12 << 20, gathering)
        allocator.device.launch(computing.handle)
        allocator.record_stream(layer, computing)
        allocator.free(layer)
    allocator.device.finish(computing.handle)
    allocator.malloc(12 << 20, gathering)
    return allocator


class _Program:
    def __init__(self, choose: random.Random, device: SimulatedDevice, settings: str, pools: bool) -> None:
        self.allocator = Allocator(device, settings=settings)
        self._device = device
        self._choose = choose
        self._streams = [0, device.create_stream(), device.create_stream()]
        self._blocks: list[int] = []
        self._pool: Any = self.allocator.pool() if pools else None

    def call(self) -> None:
        what = self._choose.random()
        if what < 0.5:
            self._malloc()
        elif what < 0.9 and self._blocks:
            self._free()
        elif what < 0.97:
            self._device.finish(self._choose.choice(self._streams))
        elif what < 0.98:
            self.allocator.empty_cache()

    def _malloc(self) -> None:
        size, stream = self._choose.choice(SIZES), self._choose.choice(self._streams)
        try:
            if self._pool is not None and self._choose.random() < 0.3:
                with self._pool:
                    self._blocks.append(self.allocator.malloc(size, stream))
            else:
                self._blocks.append(self.allocator.malloc(size, stream))
        except OutOfMemoryError:
            pass

    def _free(self) -> None:
        block = self._blocks.pop(self._choose.randrange(len(self._blocks)))
        if self._choose.random() < 0.2:
            for stream in self._choose.sample(self._streams, 2):
                self.allocator.record_stream(block, stream)
                self._device.launch(stream)
        self.allocator.free(block)

    def finish(self) -> None:
        self._device.finish()
        for block in self._blocks:
            self.allocator.free(block)
