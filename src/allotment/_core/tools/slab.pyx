from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc

from allotment._core.tools.large_pages cimport LARGE_PAGE, large_page
from allotment._core.tools.slab cimport Slab, slab_give

cdef enum:
    GROUP_RECORDS = 128
    MANY_GROUPS = 512       # after this many groups, a further group is a large page
    LINE = 64               # records of at least this size start on cache lines


cdef inline char* first_record(void* group) noexcept nogil:
    """Return the next cache line after the link."""
    return <char*> ((<size_t> group + sizeof(void*) + LINE - 1) & ~(<size_t> (LINE - 1)))


cdef void slab_init(Slab* slab, size_t record_size) noexcept nogil:
    slab.record_size = (record_size + 15) & ~(<size_t> 15)
    slab.spare = NULL
    slab.spare_count = 0
    slab.groups = NULL
    slab.group_count = 0


cdef void slab_clear(Slab* slab) noexcept nogil:
    cdef void* group = slab.groups
    cdef void* following
    while group != NULL:
        following = (<void**> group)[0]
        free(group)
        group = following
    slab_init(slab, slab.record_size)


cdef bint slab_grow(Slab* slab) noexcept nogil:
    cdef size_t size = 2 * LINE + GROUP_RECORDS * slab.record_size
    cdef char* group
    cdef size_t i, count
    if slab.group_count < MANY_GROUPS:
        group = <char*> malloc(size)
    else:
        size = LARGE_PAGE
        group = <char*> large_page()
    if group == NULL:
        return False
    count = (size - 2 * LINE) // slab.record_size
    (<void**> group)[0] = slab.groups
    slab.groups = group
    slab.group_count += 1
    for i in range(count):
        slab_give(slab, first_record(group) + (count - 1 - i) * slab.record_size)
    return True
