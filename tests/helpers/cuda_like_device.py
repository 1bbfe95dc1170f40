"""A device without memory that adapters accept as a GPU, and its pinned memory."""

from __future__ import annotations

from allotment._devices.python.backend import Backend
from allotment.errors import AddressError
from helpers.queue_device import Queue, QueueDevice


class CudaLikeDevice(QueueDevice):
    """`pinned` is the allocated pinned memory: size by address."""

    def __init__(self, capacity: int = 1 << 30, index: int = 0, pinned_capacity: int = 1 << 30) -> None:
        super().__init__(capacity)
        Backend.__init__(self, name=f"cuda:{index}", family="cuda", index=index)
        self.pinned: dict[int, int] = {}
        self._pinned_capacity = pinned_capacity
        self._next_pinned = 1 << 40
        for _ in range(2):
            self.stream_create()  # 1 and 2 are numbers of default streams

    def _stream(self, stream: int) -> Queue:
        if stream >> 56 == 0x6B:  # a thread's own default stream
            return self._streams.setdefault(stream, Queue())
        return super()._stream(stream)

    def pinned_allocate(self, size: int) -> int:
        if sum(self.pinned.values()) + size > self._pinned_capacity:
            raise MemoryError(f"no pinned memory for {size} bytes")
        address = self._next_pinned
        self._next_pinned += size
        self.pinned[address] = size
        return address

    def pinned_free(self, address: int) -> None:
        if self.pinned.pop(address, None) is None:
            raise AddressError(f"no pinned memory at {address:#x}", address)


class AskedDevice(CudaLikeDevice):
    """`asked` has the streams for which the device was asked whether they are being captured."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        super().__init__()

    def capture_status(self, stream: int) -> int:
        self.asked.append(stream)
        return super().capture_status(stream)
