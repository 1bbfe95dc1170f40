# Made from sizes.pyx by `make stubs`: change it there.

from allotment._settings.record import Settings

def rounded_size(size: int, settings: Settings) -> int:
    """The block size that a request of `size` bytes gets."""

def segment_size_for(size: int, settings: Settings) -> int:
    """The segment size that is asked of the device when a request of `size` bytes misses the cache."""

def is_small(size: int, settings: Settings) -> bool:
    """Whether a request of `size` bytes is of the small class."""
