"""Records of one size, recycled: how the engine gets its bookkeeping without the system's malloc.

Freed records go on a list and are handed out again, last in first out, so the hot ones stay in cache.
Memory comes in groups and is given back only as a whole. `slab_reserve` is called before an operation
starts to change anything; what it promised cannot fail afterwards, which is how an operation stays
all-or-nothing when the host itself is out of memory.
"""

from libc.stddef cimport size_t

cdef struct Slab:
    size_t record_size      # at least a pointer
    void* spare             # list of free records, linked through their first word
    size_t spare_count
    void* groups            # list of groups, linked through their first word

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
    """A record with undefined content. pre: reserved"""
    cdef void* record = slab.spare
    slab.spare = (<void**> record)[0]
    slab.spare_count -= 1
    return record


cdef inline void slab_give(Slab* slab, void* record) noexcept nogil:
    (<void**> record)[0] = slab.spare
    slab.spare = record
    slab.spare_count += 1
