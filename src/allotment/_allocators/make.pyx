"""Which class serves: the settings say.

Compiled, so that a warning that a class gives of its settings points at the caller.
"""

from allotment import _settings as config
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.stream_ordered.allocator import AsyncAllocator


def make_allocator(
    device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
) -> Allocator | AsyncAllocator:
    """An allocator of the class that the settings ask for: an `Allocator`, or an `AsyncAllocator`.

    "backend:cudaMallocAsync" asks for the second, everything else for the first.

    The arguments are those of the classes; without `settings` the environment variable ALLOTMENT_CONF is asked.
    Raises SettingsError, RequestError for a name that is not a device's, UnsupportedError if the device has no pool
    of its own, DeviceError.
    """
    settings = config.from_environment() if settings is None else config.settings_of(settings)
    kind = AsyncAllocator if settings.backend == "cudaMallocAsync" else Allocator
    return kind(device, settings=settings, limit=limit)
