"""Makes an allocator of the class that the settings ask for.

Compiled, so that a warning about a class's settings points at the caller.
"""

from allotment import _settings as config
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.stream_ordered.allocator import AsyncAllocator


def make_allocator(
    device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
) -> Allocator | AsyncAllocator:
    """Return an allocator of the class that the settings ask for: an `Allocator`, or an `AsyncAllocator`.

    "backend:cudaMallocAsync" asks for the second, everything else for the first.

    The arguments are those of the classes; the default of `settings` is the environment variable ALLOTMENT_CONF. Raises
    SettingsError, RequestError for an unknown device name, UnsupportedError if the device has no pool of its own, and
    DeviceError.
    """
    settings = config.from_environment() if settings is None else config.settings_of(settings)
    kind = AsyncAllocator if settings.backend == "cudaMallocAsync" else Allocator
    return kind(device, settings=settings, limit=limit)
