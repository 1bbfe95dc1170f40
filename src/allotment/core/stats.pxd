"""Counters: current, peak, allocated so far, freed so far; by size class and over all.

Kept per metric are only the current value and the total of all increases per class, and three peaks.
Everything else follows: "all" is the sum of the classes, what was freed is what was added less what is
left, and a reset of the accumulated figures remembers where they stood. So a free costs one subtraction
a metric.
"""

from allotment.core.types cimport bytes_t, count_t

cdef enum:
    SMALL = 0
    LARGE = 1
    ALL = 2

cdef struct Tally:
    count_t current[2]
    count_t total[2]        # sum of all increases
    count_t peak[3]
    count_t total_mark[2]   # `total` at the last reset of accumulated figures
    count_t freed_mark[2]   # total - current, likewise

cdef struct Stats:
    Tally allocation, segment, active, inactive_split
    Tally allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes
    Tally oversize_allocations, oversize_segments   # not by class: counted under SMALL
    count_t alloc_retries, ooms, sync_all_streams, device_allocs, device_frees
    bytes_t max_split       # as it was when the allocator was made

cdef void stats_init(Stats* stats, bytes_t max_split) noexcept nogil
cdef void stats_reset_peak(Stats* stats) noexcept nogil
cdef void stats_reset_accumulated(Stats* stats) noexcept nogil
cdef dict stats_nested(const Stats* stats)
cdef dict stats_flat(dict nested)       # "allocated_bytes.all.current", ..., sorted by key


cdef inline void tally_up(Tally* tally, int size_class, count_t amount) noexcept nogil:
    cdef count_t now = tally.current[size_class] + amount
    cdef count_t everything
    tally.current[size_class] = now
    tally.total[size_class] += amount
    if now > tally.peak[size_class]:
        tally.peak[size_class] = now
    everything = tally.current[SMALL] + tally.current[LARGE]
    if everything > tally.peak[ALL]:
        tally.peak[ALL] = everything


cdef inline void tally_down(Tally* tally, int size_class, count_t amount) noexcept nogil:
    tally.current[size_class] -= amount


cdef inline void tally_move(Tally* tally, int size_class, count_t net) noexcept nogil:
    """A change of either sign, counted once by its net amount."""
    if net > 0:
        tally_up(tally, size_class, net)
    elif net < 0:
        tally_down(tally, size_class, -net)


cdef inline count_t tally_now(const Tally* tally) noexcept nogil:
    return tally.current[SMALL] + tally.current[LARGE]
