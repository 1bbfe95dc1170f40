# Made from _entry.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.pinned.allocator import PinnedAllocator

class CupySource:
    @property
    def tenants(self) -> Any: ...
    def __init__(self, tenants: Any, stream_of: Any) -> None: ...
    @property
    def address(self) -> int: ...

class PinnedBlock:
    @property
    def ptr(self) -> Any: ...
    @property
    def size(self) -> Any: ...
    def __init__(self, pinned: PinnedAllocator, size: int) -> None: ...
    def record_stream(self, stream: int) -> None: ...

ALLOCATE: int

RELEASE: int
