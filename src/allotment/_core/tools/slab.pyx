from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc

from allotment._core.tools.slab cimport Slab, slab_give

cdef enum:
    GROUP_RECORDS = 128
    LINE = 64               # records of at least this size start on cache lines


cdef inline char* first_record(void* group) noexcept nogil:
    """The next cache line after the link."""
    return <char*> ((<size_t> group + sizeof(void*) + LINE - 1) & ~(<size_t> (LINE - 1)))


cdef void slab_init(Slab* slab, size_t record_size) noexcept nogil:
    slab.record_size = (record_size + 15) & ~(<size_t> 15)
    slab.spare = NULL
    slab.spare_count = 0
    slab.groups = NULL


cdef void slab_clear(Slab* slab) noexcept nogil:
    cdef void* group = slab.groups
    cdef void* following
    while group != NULL:
        following = (<void**> group)[0]
        free(group)
        group = following
    slab_init(slab, slab.record_size)


cdef bint slab_grow(Slab* slab) noexcept nogil:
    cdef char* group = <char*> malloc(2 * LINE + GROUP_RECORDS * slab.record_size)
    cdef size_t i
    if group == NULL:
        return False
    (<void**> group)[0] = slab.groups
    slab.groups = group
    for i in range(GROUP_RECORDS):
        slab_give(slab, first_record(group) + (GROUP_RECORDS - 1 - i) * slab.record_size)
    return True
