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

    Seen by others without a copy, as bytes: the buffer protocol and `numpy.asarray` (host memory), DLPack (host and
    CUDA), `__cuda_array_interface__` (CUDA). Who got it that way keeps it alive. Its free is stream-ordered like any
    other. `with buffer:` closes it at the end of the block; `buffer[start:stop]` is a part of it that keeps it alive.
    """

    def __init__(
        self, allocator: DeviceAllocator | HostMemory, address: int, size: int, stream: Stream | int = 0
    ) -> None: ...
    def __enter__(self) -> Buffer: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Give the block back now, in stream order, instead of with the last reference; a second time does nothing.

        A slice lets go of what it is a part of. Raises BufferError while arrays, DLPack capsules or slices see the
        memory (`__cuda_array_interface__` leaves no trace, so who got it that way is not known).
        """
    @property
    def closed(self) -> bool:
        """Whether it was closed, so that it has no memory any more."""
    def __getitem__(self, part: slice) -> Buffer:
        """The bytes from `start` to `stop`, as a buffer that keeps this one's block alive.

        Raises TypeError for a single index (`memoryview(buffer)` reads bytes), ValueError for a step.
        """
    def __len__(self) -> int: ...
    @property
    def allocator(self) -> DeviceAllocator | HostMemory:
        """The allocator that the block is of, and goes back to."""
    @property
    def address(self) -> int:
        """Where its memory starts; 0 for a buffer of 0 bytes.

        Raises RequestError if it is closed, or its block has ended: its pool was restored to a state that does not have
        it.
        """
    @property
    def block(self) -> int:
        """Where the block starts that its memory lies in: for a slice, that of the buffer it is a part of."""
    @property
    def size(self) -> int:
        """How many bytes were asked for."""
    @property
    def stream(self) -> Stream | int:
        """The stream that it was asked for on, as it was given."""
    def record_stream(self, stream: Stream | int) -> None:
        """Declare that work on `stream` uses this memory, so that its free waits for that work.

        Raises StreamError, UnsupportedError for memory of an allocator without streams.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack_device__(self) -> tuple[int, int]:
        """(kind, index) of the device, as DLPack numbers them. Raises BufferError for one that DLPack does not know."""
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The memory as a DLPack capsule, without a copy. Raises BufferError for a copy or another device."""
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as other CUDA libraries read it; AttributeError unless it is CUDA memory."""
