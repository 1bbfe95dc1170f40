"""A walk through time over the lives of blocks, which keeps the highest moment of each interval.

A picture has a thousand columns and a history ten million moments, so a column stands for many of them. Their mean
would lose every peak. So each column shows one real moment, the one with the most memory in use: its parts add up, and
the peak is at its place. Waste is shown at the moment with the most waste.

Counting the blocks in each unit of memory shows what can be released. A unit is found by its *atoms*: the intervals
between all addresses at which a unit ever began or ended. The atoms of a block and of a unit never change, so both are
looked up once, before the walk.

At one moment, first blocks end, then memory is released, then memory is obtained, then a block begins.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum What:                 # what happens to the life of a moment
    NOTHING
    BEGINS
    ENDS
    WAITS                       # freed by the user; ends later

cdef enum:                      # of memory that is reserved and not in use; in the order of `Waste`
    ROUNDING
    PIECES
    OTHER_STREAMS
    PRIVATE_POOLS
    WAITING
    UNRELEASED
    CAUSES

cdef enum:                      # of a unit, for the request that the waste is computed for
    REACHABLE
    FOR_OTHER_STREAM
    IN_OTHER_POOL
    REACHES

cdef struct Totals:             # bytes, at the current moment
    int64_t requested           # by lives in use
    int64_t allocated           # their blocks
    int64_t active[REACHES]     # and those that wait
    int64_t reserved[REACHES]
    int64_t releasable          # of what is reachable: units without a block

cdef class Walk:
    cdef readonly int32_t now
    cdef readonly int32_t moments           # one more than the last
    cdef Totals totals
    cdef const int64_t[::1] size, requested
    cdef const int32_t[::1] freed, first_atom, last_atom        # by life
    cdef const int32_t[::1] life_at         # by moment
    cdef const uint8_t[::1] what_at
    cdef const int32_t[::1] late, late_at   # lives that waited, in order of their end, and that
    cdef const int64_t[::1] unit_size
    cdef const int32_t[::1] unit_first, unit_last               # atoms
    cdef const int32_t[::1] coming, coming_at, going, going_at  # units in order of their begin and of their end
    cdef const uint8_t[::1] reach           # by unit
    cdef const uint8_t[::1] band            # by life: its owner
    cdef int64_t[::1] held                  # by band
    cdef int32_t[::1] unit_at               # by atom; -1 for none
    cdef int32_t[::1] blocks                # by unit
    cdef uint8_t[::1] reach_of              # by life, while it exists
    cdef int32_t[::1] live                  # lives that exist, in no order
    cdef int32_t[::1] place                 # by life: where in `live`
    cdef int32_t live_count
    cdef int32_t next_late, next_coming, next_going

    cdef void begin_life(self, int32_t life) noexcept nogil
    cdef void begin_waiting(self, int32_t life) noexcept nogil
    cdef void end_life(self, int32_t life, bint waited) noexcept nogil
    cdef void obtain(self, int32_t unit) noexcept nogil
    cdef void release(self, int32_t unit) noexcept nogil
    cdef void step_to(self, int32_t moment) noexcept nogil
    cdef void count_in_units(self, int32_t life, int32_t change) noexcept nogil
    cdef void tell_waste(self, int64_t* out) noexcept nogil
