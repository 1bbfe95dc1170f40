"""Rounding and size classes, and the settings as numbers: pure arithmetic.

    request --round_size--> rounded --(<= SMALL_SIZE: small, else large)--> class, used by all counters
"""

from libc.stdint cimport int64_t, uint64_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.tools.bits cimport highest_bit

cdef enum:
    MIN_BLOCK = 512                 # every block is a multiple of this
    SMALL_SIZE = 1048576            # largest rounded request of the small class
    DIVISION_SLOTS = 16             # one per power of two from 1 MiB on

cdef struct Tuning:
    # The settings that influence decisions, as numbers. Each decision reads them, so a change takes effect at once.
    bytes_t max_split               # blocks of at least this size are oversize and never split; 2**64-1 = none
    bytes_t max_non_split_rounding  # how much an oversize block may exceed its request
    bytes_t large_segment
    bytes_t exact_above             # larger requests get segments of whole pages, no more; 2**64-1 = none
    double gc_threshold             # fraction of the limit above which unused segments are collected; 0 = never
    uint64_t divisions[DIVISION_SLOTS]  # rounding steps per power of two; 0, 1 = off
    bint divided                    # whether any division is on
    bint expandable
    bint stream_reuse               # reuse multi-stream blocks inside a capture where the graph proves it safe
    bint release_lock               # release the lock while the device allocates
    uint64_t dense_grain            # dense placement: chunks are about this fraction of the memory held
    uint64_t dense_slack            # how much it grows before it stitches, in millionths of peak use
    int64_t dense_wait_reuse        # how many of a stream's waiting blocks it leaves alone; -1: all of them
    bint dense_share_streams        # a stream may wait for another stream, to reuse what the other freed
    bytes_t dense_start             # allocated at the first request
    uint64_t dense_views            # most views per chunk; 1: no stitching
    bint rejects                    # never ask the device for more than its `share`
    double share                    # fraction of the device's memory
    bytes_t range_bytes             # size of an expandable range; 0 = an eighth more than the device has


cdef inline int division_slot(bytes_t size) noexcept nogil:
    cdef int power = highest_bit(size)
    if power < 20:
        return 0
    return min(power - 20, DIVISION_SLOTS - 1)


cdef inline bytes_t round_to_division(bytes_t size, uint64_t divisions) noexcept nogil:
    """Round up to one of `divisions` steps between two powers of two. pre: size > 512 * divisions, divisions > 1"""
    if (size & (size - 1)) == 0:
        return size
    cdef bytes_t power = (<bytes_t> 1) << highest_bit(size)
    cdef bytes_t step = power >> highest_bit(divisions)
    cdef bytes_t base = size & ~(step - 1)
    return size if base == size else base + step


cdef inline bytes_t whole_blocks(bytes_t size) noexcept nogil:
    """Round up to a multiple of the smallest block."""
    return (size + (MIN_BLOCK - 1)) & ~(<bytes_t> (MIN_BLOCK - 1))


cdef inline bytes_t round_size(const Tuning* tuning, bytes_t size) noexcept nogil:
    """pre: size > 0"""
    cdef uint64_t divisions
    if tuning.divided:
        divisions = tuning.divisions[division_slot(size)]
        # size > MIN_BLOCK * divisions, without computing the product, which may overflow
        if divisions > 1 and (size - 1) // MIN_BLOCK >= divisions:
            return round_to_division(size, divisions)
    return whole_blocks(size)
