"""Random requests to an allocator on one of our devices, with invariants that hold whatever the device does."""

from __future__ import annotations

import ctypes
import random
from itertools import pairwise

from allotment import Allocator, AllotmentError
from allotment._core.contract.probe import Capability
from helpers.queue_device import QueueDevice, Work

SIZES = (512, 5_000, 100_000, 1_500_000, 3 << 20, 11 << 20, 21 << 20)
MARK = 8  # bytes written at either end of a block


class Workload:
    """The same requests for the same seed.

    After every step, whether it succeeded or not: the allocator's own rules hold; blocks in use overlap neither
    each other nor blocks that a busy stream still uses; written data is still there.
    """

    def __init__(self, device, settings: str, seed: int) -> None:
        self.device = device
        self.allocator = Allocator(device, settings=settings)
        self.errors: list[AllotmentError] = []
        self._choose = random.Random(seed)
        self._has_memory = Capability.HOST in Capability(device.capabilities)
        self._streams = [device.stream_create() for _ in range(2)] if isinstance(device, QueueDevice) else []
        self._held: list[Work] = []
        self._live: dict[int, int] = {}  # address -> size
        self._users: dict[int, set[int]] = {}  # address -> streams recorded for it
        self._in_flight: list[tuple[int, int, list[Work]]] = []  # (address, size, streams that still use it)

    def run(self, steps: int) -> None:
        actions = [self._request] * 4 + [self._free] * 3 + [self.allocator.empty_cache]
        if self._streams:
            actions += [self._hold, self._use, self._use, self._release]
        for _ in range(steps):
            try:
                self._choose.choice(actions)()
            except AllotmentError as error:
                self.errors.append(error)
            self._check()

    def wind_up(self) -> None:
        """Free everything; only for a device that works again."""
        for work in self._held:
            work.release()
        while self._live:
            self._free()
        self.allocator.empty_cache()
        self._check()

    def _request(self) -> None:
        size = self._choose.choice(SIZES)
        address = self.allocator.malloc(size, self._choose.choice([0, *self._streams[:1]]))
        self._live[address] = size
        self._users[address] = set()
        if self._has_memory:
            for end in (address, address + size - MARK):
                ctypes.memmove(end, mark_of(address), MARK)

    def _free(self) -> None:
        if not self._live:
            return
        address = self._choose.choice(list(self._live))
        using = [self.device.last_work(stream) for stream in self._users[address]]
        self.allocator.free(address)
        self._in_flight.append((address, self._live.pop(address), [work for work in using if work is not None]))

    def _hold(self) -> None:
        self._held.append(self.device.hold(self._choose.choice(self._streams)))

    def _release(self) -> None:
        if self._held:
            self._held.pop(0).release()

    def _use(self) -> None:
        if self._live:
            address = self._choose.choice(list(self._live))
            # The second stream has no blocks of its own: an allocator never waits for a block's own stream.
            self.allocator.record_stream(address, self._streams[1])
            self._users[address].add(self._streams[1])

    def _check(self) -> None:
        self.allocator.inspection.check_invariants()
        self._in_flight = [use for use in self._in_flight if not all(work.is_done for work in use[2])]
        spans = sorted([*self._live.items(), *((address, size) for address, size, _ in self._in_flight)])
        for (address, size), (following, _) in pairwise(spans):
            assert address + size <= following
        if self._has_memory:
            for address, size in self._live.items():
                for end in (address, address + size - MARK):
                    assert ctypes.string_at(end, MARK) == mark_of(address)


def mark_of(address: int) -> bytes:
    return address.to_bytes(MARK, "little")
