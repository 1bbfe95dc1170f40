# Made from buffer.pyx by `make stubs`: change it there.

import sys
from types import TracebackType
from typing import Any, TypeAlias

from allotment._allocators.host_cache.host_memory import HostMemory
from allotment._allocators.registry import DeviceAllocator
from allotment._devices.streams import Stream

# NumPy's stubs know the buffer protocol from Python 3.12 on; before, only a class with an unknown base will do.
if sys.version_info >= (3, 12):
    _HasBuffer: TypeAlias = object
else:
    _HasBuffer: TypeAlias = Any

class Buffer(_HasBuffer):  # type: ignore[misc]
    """A block of an allocator, freed when the last reference to it goes; `Allocator.empty` makes one.

    Other libraries see it without a copy, as bytes: through the buffer protocol and `numpy.asarray` (host memory),
    DLPack (host and CUDA), and `__cuda_array_interface__` (CUDA). Consumers that got it that way keep it alive. Its
    free is stream-ordered like any other. `with buffer:` closes it at the end of the block; `buffer[start:stop]` is a
    part of it that keeps it alive.
    """

    def __init__(
        self, allocator: DeviceAllocator | HostMemory, address: int, size: int, stream: Stream | int = 0
    ) -> None: ...
    def __enter__(self) -> Buffer: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Free the block now, in stream order, instead of with the last reference. A second call does nothing.

        A slice drops its reference to the buffer of which it is a part. Raises BufferError while arrays, DLPack
        capsules or slices use the memory (`__cuda_array_interface__` leaves no trace, so its consumers are not known).
        """
    @property
    def closed(self) -> bool:
        """Whether it was closed, and so has no memory."""
    def __getitem__(self, part: slice) -> Buffer:
        """Return the bytes from `start` to `stop` as a buffer that keeps this one's block alive.

        Raises TypeError for a single index (`memoryview(buffer)` reads bytes), ValueError for a step.
        """
    def __len__(self) -> int: ...
    @property
    def allocator(self) -> DeviceAllocator | HostMemory:
        """Allocator that owns the block, to which the block returns."""
    @property
    def address(self) -> int:
        """Start of the memory; 0 for a buffer of 0 bytes.

        Raises RequestError if the buffer is closed, or if its block has ended because its pool was restored to a state
        without that block.
        """
    @property
    def block(self) -> int:
        """Start of the block that contains the memory; for a slice, of the block of the buffer that it is a part of."""
    @property
    def size(self) -> int:
        """Number of bytes requested."""
    @property
    def stream(self) -> Stream | int:
        """Stream of the request, as the caller passed it."""
    def record_stream(self, stream: Stream | int) -> None:
        """Declare that work on `stream` uses this memory, so that its free waits for that work.

        Raises StreamError, UnsupportedError for memory of an allocator without streams.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack_device__(self) -> tuple[int, int]:
        """Return (kind, index) of the device in DLPack's numbering.

        Raises BufferError for a device unknown to DLPack.
        """
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the memory as a DLPack capsule, without a copy. Raises BufferError for a copy or another device."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory in the form that other CUDA libraries read. Raises AttributeError unless it is CUDA memory."""
