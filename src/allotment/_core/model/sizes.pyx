"""The size arithmetic for Python: what a request becomes, without an allocator."""

from allotment._core.model.sizes cimport Tuning, round_size, segment_size, SMALL_SIZE
from allotment._core.model.tuning cimport fill_tuning


def rounded_size(size: int, settings: Settings) -> int:
    """The block size that a request of `size` bytes gets."""
    cdef Tuning tuning
    fill_tuning(&tuning, settings)
    return round_size(&tuning, size)


def segment_size_for(size: int, settings: Settings) -> int:
    """The segment size that is asked of the device when a request of `size` bytes misses the cache."""
    cdef Tuning tuning
    fill_tuning(&tuning, settings)
    return segment_size(&tuning, round_size(&tuning, size))


def is_small(size: int, settings: Settings) -> bool:
    """Whether a request of `size` bytes is of the small class."""
    return rounded_size(size, settings) <= SMALL_SIZE
