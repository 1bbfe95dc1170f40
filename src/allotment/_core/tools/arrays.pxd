"""Growing plain C arrays."""

from libc.stddef cimport size_t
from libc.stdlib cimport realloc


# Makes room for `wanted` elements, moving the array if needed; False when host memory is short.
cdef inline bint make_room_for(void** array, size_t* capacity, size_t wanted, size_t element_size) noexcept nogil:
    cdef size_t larger
    cdef void* moved
    if wanted <= capacity[0]:
        return True
    larger = max(2 * capacity[0], wanted, <size_t> 16)
    moved = realloc(array[0], larger * element_size)
    if moved == NULL:
        return False
    array[0] = moved
    capacity[0] = larger
    return True


# Makes room for one element more than `count`.
cdef inline bint make_room(void** array, size_t* capacity, size_t count, size_t element_size) noexcept nogil:
    return make_room_for(array, capacity, count + 1, element_size)
