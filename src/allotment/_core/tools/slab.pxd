"""Recycled records of one size: how the engine allocates its records without the system's malloc.

Freed records go on a free list, last in first out, so recently used ones are still in the CPU cache. Memory comes in
groups, and all groups are freed together; after many groups, each further group is a large page. An operation calls
`slab_reserve` before it changes anything; afterwards the reserved `slab_take` calls cannot fail. That keeps an
operation all-or-nothing when the host itself is out of memory.
"""

from libc.stddef cimport size_t

cdef struct Slab:
    size_t record_size      # at least a pointer
    void* spare             # free list, linked through the first word of each record
    size_t spare_count
    void* groups            # list of groups, linked through their first words
    size_t group_count

cdef void slab_init(Slab* slab, size_t record_size) noexcept nogil
cdef void slab_clear(Slab* slab) noexcept nogil
cdef bint slab_grow(Slab* slab) noexcept nogil


cdef inline bint slab_reserve(Slab* slab, size_t count) noexcept nogil:
    """Make sure that `count` slab_take calls cannot fail."""
    while slab.spare_count < count:
        if not slab_grow(slab):
            return False
    return True


cdef inline void* slab_take(Slab* slab) noexcept nogil:
    """Return a record with undefined content. pre: reserved"""
    cdef void* record = slab.spare
    slab.spare = (<void**> record)[0]
    slab.spare_count -= 1
    return record


cdef inline void slab_give(Slab* slab, void* record) noexcept nogil:
    (<void**> record)[0] = slab.spare
    slab.spare = record
    slab.spare_count += 1
