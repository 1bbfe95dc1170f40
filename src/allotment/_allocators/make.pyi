# Made from make.pyx by `make stubs`: change it there.

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.stream_ordered.allocator import AsyncAllocator
from allotment._core.contract.table import Device
from allotment._settings.record import Settings

def make_allocator(
    device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
) -> Allocator | AsyncAllocator:
    """An allocator of the class that the settings ask for: an `Allocator`, or an `AsyncAllocator`.

    "backend:cudaMallocAsync" asks for the second, everything else for the first.

    The arguments are those of the classes; without `settings` the environment variable ALLOTMENT_CONF is asked.
    Raises SettingsError, RequestError for a name that is not a device's, UnsupportedError if the device has no pool
    of its own, DeviceError.
    """
