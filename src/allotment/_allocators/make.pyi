# Made from make.pyx by `make stubs`: change it there.

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.stream_ordered.allocator import AsyncAllocator
from allotment._core.contract.table import Device
from allotment._settings.record import Settings

def make_allocator(
    device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
) -> Allocator | AsyncAllocator: ...
