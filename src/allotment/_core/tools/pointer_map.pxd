"""A map from 64-bit keys to pointers: addresses to blocks, handles to streams, ids to pools.

The map uses open addressing with linear probing. The hash is a multiplication with the golden ratio, which spreads
addresses well (multiples of 512, often equally spaced). The table is at most half full, so a lookup takes about one and
a half probes. Removal shifts the run back, so there are no tombstones and the cost does not grow with age. Key 0 means
"empty": callers shift keys that can be 0.

Cost: O(1) for each operation; growing doubles the table, so an insert is O(1) amortized.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

cdef struct MapSlot:
    uint64_t key
    void* value

cdef struct PointerMap:
    MapSlot* slots
    size_t mask         # number of slots - 1
    int shift           # 64 - log2(number of slots)
    size_t count

cdef bint map_init(PointerMap* map) noexcept nogil
cdef void map_clear(PointerMap* map) noexcept nogil
cdef bint map_grow(PointerMap* map) noexcept nogil


cdef inline size_t map_home(const PointerMap* map, uint64_t key) noexcept nogil:
    return <size_t> ((key * <uint64_t> 11400714819323198485ULL) >> map.shift)


cdef inline void* map_get(const PointerMap* map, uint64_t key) noexcept nogil:
    cdef size_t place = map_home(map, key)
    while map.slots[place].key != key:
        if map.slots[place].key == 0:
            return NULL
        place = (place + 1) & map.mask
    return map.slots[place].value


cdef inline bint map_has_room(const PointerMap* map, size_t more) noexcept nogil:
    return 2 * (map.count + more) <= map.mask + 1


cdef inline bint map_reserve(PointerMap* map, size_t more=1) noexcept nogil:
    """Make sure that the next `more` map_put calls cannot fail; False when host memory is short."""
    while not map_has_room(map, more):
        if not map_grow(map):
            return False
    return True


cdef inline void map_put(PointerMap* map, uint64_t key, void* value) noexcept nogil:
    """pre: key != 0, a slot is reserved. Overwrites."""
    cdef size_t place = map_home(map, key)
    while map.slots[place].key != 0:
        if map.slots[place].key == key:
            map.slots[place].value = value
            return
        place = (place + 1) & map.mask
    map.slots[place].key = key
    map.slots[place].value = value
    map.count += 1


cdef inline void* map_pop(PointerMap* map, uint64_t key) noexcept nogil:
    """Remove a key; return its value, or NULL if it was absent."""
    cdef size_t hole = map_home(map, key)
    cdef size_t place, home
    cdef void* value
    while map.slots[hole].key != key:
        if map.slots[hole].key == 0:
            return NULL
        hole = (hole + 1) & map.mask
    value = map.slots[hole].value
    place = hole
    while True:
        place = (place + 1) & map.mask
        if map.slots[place].key == 0:
            break
        home = map_home(map, map.slots[place].key)
        if ((place - home) & map.mask) >= ((place - hole) & map.mask):
            map.slots[hole] = map.slots[place]
            hole = place
    map.slots[hole].key = 0
    map.slots[hole].value = NULL    # a lookup of key 0 finds NULL, as for any absent key
    map.count -= 1
    return value
