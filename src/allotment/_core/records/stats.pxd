"""Counters: current, peak, allocated so far, freed so far; by size class and over all.

The hot path cannot afford to compare every figure with its peaks. So each class has *room*: the amount by which it may
grow before it could exceed a peak, its own or the overall one. An increase reduces the room; a decrease adds to it.
Only when the room runs out does the code update the peaks and assign new room:

    current value of a class             = ceiling - room
    ceiling of a class                  <= its peak
    ceilings of both classes together   <= the overall peak

Everything else follows: "all" is the sum of the classes, and the amount freed is the total less the current value. A
reset of the accumulated figures remembers their values. A block is active from the moment it is allocated, so the
totals of `active` equal those of `allocation` and are copied from there before they are read (`copy_shared_totals`).
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t, count_t

cdef enum:
    SMALL = 0
    LARGE = 1
    ALL = 2

cdef struct Tally:
    count_t room[2]
    count_t total[2]        # sum of all increases
    count_t ceiling[2]
    count_t peak[3]
    count_t total_mark[2]   # `total` at the last reset of accumulated figures
    count_t freed_mark[2]   # total - current, likewise

cdef struct PoolTally:
    # Memory that one private pool has reserved over time. The record outlives the pool: the pool's id stays in the
    # statistics until many other pools have been deleted after it.
    uint64_t first, second      # the id
    bint used                   # the pool has had memory; before that, the statistics omit it
    bint spent                  # the pool is gone, and its id cannot be used again: see `pool`
    Tally reserved_bytes
    PoolTally* next

cdef struct Stats:
    Tally allocation, segment, active, inactive_split
    Tally allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes
    Tally oversize_allocations, oversize_segments   # not by class: counted under SMALL
    count_t alloc_retries, ooms, oom_rejections, sync_all_streams, device_allocs, device_frees
    PoolTally* pools        # in order of creation, newest first
    bytes_t max_split       # at the allocator's creation

cdef struct Totals:
    # What the counters must be, by size class; computed when invariants are checked.
    count_t allocation[2]
    count_t allocated_bytes[2]
    count_t active[2]
    count_t active_bytes[2]
    count_t requested_bytes[2]
    count_t inactive_split[2]
    count_t inactive_split_bytes[2]
    count_t segment[2]
    count_t reserved_bytes[2]

cdef void tally_raise(Tally* tally, int size_class) noexcept nogil
cdef void stats_init(Stats* stats, bytes_t max_split) noexcept nogil
cdef void stats_reset_peak(Stats* stats) noexcept nogil
cdef void stats_reset_accumulated(Stats* stats) noexcept nogil
cdef void stats_clear(Stats* stats) noexcept nogil
cdef dict stats_nested(Stats* stats)
cdef dict stats_by_rules(Stats* stats, object rules)      # with the figures that only some versions count
cdef dict stats_flat(dict nested)       # "allocated_bytes.all.current", ..., sorted by key


cdef inline count_t tally_of(const Tally* tally, int size_class) noexcept nogil:
    """Return the current value of a class."""
    return tally.ceiling[size_class] - tally.room[size_class]


cdef inline count_t tally_now(const Tally* tally) noexcept nogil:
    return tally_of(tally, SMALL) + tally_of(tally, LARGE)


cdef inline count_t frees_so_far(const Stats* stats) noexcept nogil:
    """Return a number that changes when a free completes or memory returns to the device."""
    return (stats.allocation.total[SMALL] + stats.allocation.total[LARGE] - tally_now(&stats.active)
            + stats.reserved_bytes.total[SMALL] + stats.reserved_bytes.total[LARGE] - tally_now(&stats.reserved_bytes))


cdef inline void tally_grow(Tally* tally, int size_class, count_t amount) noexcept nogil:
    """Count an increase; another tally counts the total."""
    tally.room[size_class] -= amount
    if tally.room[size_class] < 0:
        tally_raise(tally, size_class)


cdef inline void tally_up(Tally* tally, int size_class, count_t amount) noexcept nogil:
    tally.total[size_class] += amount
    tally_grow(tally, size_class, amount)


cdef inline void tally_down(Tally* tally, int size_class, count_t amount) noexcept nogil:
    tally.room[size_class] += amount


cdef inline void tally_move(Tally* tally, int size_class, count_t net) noexcept nogil:
    """Count a change of either sign by its net amount."""
    if net > 0:
        tally_up(tally, size_class, net)
    elif net < 0:
        tally_down(tally, size_class, -net)
