"""Rounding and size classes, and the settings as numbers: arithmetic, no state.

    request --round_size--> rounded --(<= SMALL_SIZE: small, else large)--> class, by which everything is counted
"""

from libc.stdint cimport int64_t, uint64_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.tools.bits cimport highest_bit

cdef enum:
    MIN_BLOCK = 512                 # every block is a multiple of this
    SMALL_SIZE = 1048576            # largest rounded request of the small class
    DIVISION_SLOTS = 16             # one per power of two from 1 MiB up

cdef struct Tuning:
    # The settings that decide, as numbers. Read anew at every decision, so a change acts at once.
    bytes_t max_split               # blocks of this size and up are oversize: never split; 2**64-1 = none are
    bytes_t max_non_split_rounding  # how much an oversize block may exceed the request it serves
    bytes_t large_segment
    double gc_threshold             # part of the limit above which unused segments are collected; 0 = never
    uint64_t divisions[DIVISION_SLOTS]  # steps per power of two that requests are rounded to; 0, 1 = off
    bint divided                    # any of them is on
    bint expandable
    bint stream_reuse               # reuse multi-stream blocks inside a capture where the graph proves it safe
    bint release_lock               # let other threads in while the device allocates
    uint64_t dense_grain            # dense placement: chunks are about this fraction of what is held
    uint64_t dense_slack            # how much it grows before it stitches, in millionths of the most in use
    int64_t dense_wait_reuse        # blocks of a stream that wait for others and are left alone; -1: all of them
    bint dense_share_streams        # a stream may wait for another to have what it freed
    bytes_t dense_start             # made at the first request
    uint64_t dense_views            # of a chunk at most; 1: nothing is stitched
    bint rejects                    # do not ask the device for more than its `share`
    double share                    # part of the device's memory
    bytes_t range_bytes             # what an expandable range reserves; 0 = an eighth more than the device has


cdef inline int division_slot(bytes_t size) noexcept nogil:
    cdef int power = highest_bit(size)
    if power < 20:
        return 0
    return min(power - 20, DIVISION_SLOTS - 1)


cdef inline bytes_t round_to_division(bytes_t size, uint64_t divisions) noexcept nogil:
    """The next of `divisions` equal steps between two powers of two. pre: size > 512 * divisions, divisions > 1"""
    if (size & (size - 1)) == 0:
        return size
    cdef bytes_t power = (<bytes_t> 1) << highest_bit(size)
    cdef bytes_t step = power >> highest_bit(divisions)
    cdef bytes_t base = size & ~(step - 1)
    return size if base == size else base + step


cdef inline bytes_t round_size(const Tuning* tuning, bytes_t size) noexcept nogil:
    """pre: size > 0"""
    cdef uint64_t divisions
    if tuning.divided:
        divisions = tuning.divisions[division_slot(size)]
        # size > MIN_BLOCK * divisions, where the product need not fit in 64 bits
        if divisions > 1 and (size - 1) // MIN_BLOCK >= divisions:
            return round_to_division(size, divisions)
    return (size + (MIN_BLOCK - 1)) & ~(<bytes_t> (MIN_BLOCK - 1))
