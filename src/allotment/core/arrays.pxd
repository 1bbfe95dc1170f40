"""Growing plain C arrays."""

from libc.stddef cimport size_t
from libc.stdlib cimport realloc


# Room for one element more than `count`, moving the array if it must; False when memory is short.
cdef inline bint make_room(void** array, size_t* capacity, size_t count, size_t element_size) noexcept nogil:
    cdef size_t wanted
    cdef void* moved
    if count < capacity[0]:
        return True
    wanted = max(2 * capacity[0], <size_t> 16)
    moved = realloc(array[0], wanted * element_size)
    if moved == NULL:
        return False
    array[0] = moved
    capacity[0] = wanted
    return True
