from typing import Any

from allotment._allocators.registry import DeviceAllocator
from allotment._devices.streams import Stream

class Buffer:
    """A block of an allocator, given back when nobody refers to it any more.

    Seen by others without a copy, as bytes: the buffer protocol and `numpy.asarray` (host memory), DLPack (host
    and CUDA), `__cuda_array_interface__` (CUDA). Who got it that way keeps it alive.
    """

    def __init__(self, allocator: DeviceAllocator, address: int, size: int, stream: Stream | int = 0) -> None: ...
    @property
    def allocator(self) -> DeviceAllocator: ...
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def stream(self) -> Stream | int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def record_stream(self, stream: Stream | int) -> None:
        """Declare that work on `stream` uses this memory, so that its free waits for that work."""
