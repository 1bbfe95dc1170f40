"""Random requests to an allocator on a GPU, with work on streams that reveals a block allocated too early."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allotment import Allocator, AllotmentError

SIZES = (512, 5_000, 100_000, 1_500_000, 3 << 20, 11 << 20, 21 << 20)
MARK = 8  # bytes written at either end of a block


@dataclass
class Block:
    size: int
    stream: int
    value: int  # of its marks


class GpuWorkload:
    """The same requests for the same seed.

    Blocks belong to the default stream or to a stream of their own; both are always free to run. A third, the
    side stream, may be held. A use of a block there writes the block's own mark, so it does no harm unless the block
    has another owner by then.
    """

    def __init__(self, device: Any, allocator: Allocator, seed: int) -> None:
        self.allocator = allocator
        self.errors: list[AllotmentError] = []
        self._device = device
        self._choose = random.Random(seed)
        self._own = [0, device.create_stream()]
        self._side = device.create_stream()
        self._hold: Any = None
        self._blocks: dict[int, Block] = {}
        self._marked = 0

    def run(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [
            *[self._request] * 5, *[self._free] * 4, *[self._use] * 3,
            self._hold_side, self._release, self._empty_cache,
        ]  # fmt: skip
        for _ in range(steps):
            try:
                self._choose.choice(actions)()
            except AllotmentError as error:
                self.errors.append(error)
            self.allocator.inspection.check_invariants()

    def wind_up(self) -> None:
        """Check and free everything; only for a device that works."""
        self._release()
        while self._blocks:
            self._free()
            self.allocator.inspection.check_invariants()
        self.allocator.empty_cache()
        self.allocator.inspection.check_invariants()
        for stream in (self._own[1], self._side):
            self._device.destroy_stream(stream)

    def _request(self) -> None:
        size, stream = self._choose.choice(SIZES), self._choose.choice(self._own)
        address = self.allocator.malloc(size, stream)
        self._marked = self._marked % 250 + 1
        self._blocks[address] = Block(size, stream, self._marked)
        self._mark(address, stream)

    def _free(self) -> None:
        if not self._blocks:
            return
        address = self._choose.choice(list(self._blocks))
        self._check(address)
        self.allocator.free(address)
        del self._blocks[address]

    def _use(self) -> None:
        if self._blocks:
            address = self._choose.choice(list(self._blocks))
            self.allocator.record_stream(address, self._side)
            self._mark(address, self._side)

    def _hold_side(self) -> None:
        if self._hold is None:
            self._hold = self._device.hold(self._side)

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()
            self._hold = None
            self._device.synchronize(self._side)

    def _empty_cache(self) -> None:
        self._release()  # which waits for the side stream
        self.allocator.empty_cache()

    def _mark(self, address: int, stream: int) -> None:
        block = self._blocks[address]
        for end in (address, address + block.size - MARK):
            self._device.memset_async(end, block.value, MARK, stream)

    def _check(self, address: int) -> None:
        block = self._blocks[address]
        self._device.synchronize(block.stream)
        for end in (address, address + block.size - MARK):
            assert self._device.copy_to_host(end, MARK) == bytes([block.value]) * MARK
