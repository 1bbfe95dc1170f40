from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free

from allotment._core.tools.large_pages cimport advise_large_pages
from allotment._core.tools.pointer_map cimport MapSlot, PointerMap, map_put

cdef enum:
    FIRST_SLOTS_LOG2 = 4


cdef bint map_init(PointerMap* map) noexcept nogil:
    map.slots = <MapSlot*> calloc((<size_t> 1) << FIRST_SLOTS_LOG2, sizeof(MapSlot))
    map.mask = ((<size_t> 1) << FIRST_SLOTS_LOG2) - 1
    map.shift = 64 - FIRST_SLOTS_LOG2
    map.count = 0
    return map.slots != NULL


cdef void map_clear(PointerMap* map) noexcept nogil:
    free(map.slots)
    map.slots = NULL
    map.count = 0


cdef bint map_grow(PointerMap* map) noexcept nogil:
    cdef PointerMap larger
    cdef size_t place
    larger.mask = 2 * map.mask + 1
    larger.shift = map.shift - 1
    larger.count = 0
    larger.slots = <MapSlot*> calloc(larger.mask + 1, sizeof(MapSlot))
    if larger.slots == NULL:
        return False
    advise_large_pages(larger.slots, (larger.mask + 1) * sizeof(MapSlot))
    for place in range(map.mask + 1):
        if map.slots[place].key != 0:
            map_put(&larger, map.slots[place].key, map.slots[place].value)
    free(map.slots)
    map[0] = larger
    return True
