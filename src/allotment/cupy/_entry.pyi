# Made from _entry.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.pinned.allocator import PinnedAllocator

class CupySource:
    """The source of CuPy's memory; both functions get its `address` as first argument.

    `stream_of` is a capsule with CuPy's own function that returns the calling thread's current stream on a device;
    ValueError if its signature differs. CuPy's memory knows the source only by that address, so the source lives as
    long as memory from it.
    """

    @property
    def tenants(self) -> Any: ...
    def __init__(self, tenants: Any, stream_of: Any) -> None: ...
    @property
    def address(self) -> int: ...

class PinnedBlock:
    """A block of pinned memory as CuPy's pointers hold one; it is freed with them."""

    @property
    def ptr(self) -> Any: ...
    @property
    def size(self) -> Any: ...
    def __init__(self, pinned: PinnedAllocator, size: int) -> None: ...
    def record_stream(self, stream: int) -> None:
        """Wait for the work of a stream before the block is reused."""

ALLOCATE: int
"""Address of `void* allocate(void* source, size_t size, int device)`. Raises as the allocator does."""

RELEASE: int
"""Address of `void release(void* source, void* address, int device)`."""
