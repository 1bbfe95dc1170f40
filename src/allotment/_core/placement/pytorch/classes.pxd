"""Small and large: which half of a pool serves a request, and how much memory it costs on the device.

    rounded request --(<= SMALL_SIZE: small, else large)--> half of the pool
          |
          +--segment_size--> a plain segment for it           +--page_size--> the page of an expandable one
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Pool, Half
from allotment._core.model.sizes cimport SMALL_SIZE, Tuning
from allotment._core.records.stats cimport SMALL

cdef enum:
    SMALL_SEGMENT = 2097152         # segment for small requests; page of a small expandable segment
    MIN_LARGE_SEGMENT = 10485760    # smaller requests share segments of `large_segment`
    LARGE_ROUNDING = 2097152        # larger segments are multiples of this
    SYSTEM_PAGE = 4096


cdef inline Half* half_for_size(Pool* pool, bytes_t rounded) noexcept nogil:
    return &pool.small if rounded <= SMALL_SIZE else &pool.large


cdef inline bytes_t page_size(const Tuning* tuning, const Half* half) noexcept nogil:
    """A device maps whole chunks, which a segment size of 11 MiB would not fill."""
    if half.size_class == SMALL:
        return SMALL_SEGMENT
    return (tuning.large_segment + (LARGE_ROUNDING - 1)) & ~(<bytes_t> (LARGE_ROUNDING - 1))


cdef inline bytes_t segment_size(const Tuning* tuning, bytes_t rounded) noexcept nogil:
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded > tuning.exact_above:
        return (rounded + (SYSTEM_PAGE - 1)) & ~(<bytes_t> (SYSTEM_PAGE - 1))
    if rounded < MIN_LARGE_SEGMENT:
        return tuning.large_segment
    return (rounded + (LARGE_ROUNDING - 1)) & ~(<bytes_t> (LARGE_ROUNDING - 1))
