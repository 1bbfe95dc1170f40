from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.mechanism.ranges cimport overlapping
from allotment._core.model.model cimport Block, Engine, Pool, Range


cdef AddressLookup find_address(Engine* engine, address_t address, address_t* start, bytes_t* size) noexcept nogil:
    cdef Block* block = block_at(engine, address)
    cdef Range* range_
    if block == NULL:
        range_ = overlapping(engine, address, 1)
        if range_ == NULL:
            return find_past_ranges(engine, address, start, size)
        block = range_.head
        while block != NULL and not (block.allocated and address - block.address < block.size):
            block = block.next
        if block == NULL:
            return IN_UNUSED
    start[0] = block.address
    size[0] = block.size
    return IN_BLOCK


cdef struct Search:
    address_t address
    AddressLookup where
    address_t start
    bytes_t size


cdef bint look_at_part(void* self, const Block* block, address_t address, bytes_t size, bint begins) noexcept nogil:
    cdef Search* search = <Search*> self
    if search.address - address >= size:
        return True
    search.where = IN_BLOCK if block.allocated else IN_UNUSED
    search.start, search.size = address, size
    return False


cdef AddressLookup find_past_ranges(Engine* engine, address_t address, address_t* start, bytes_t* size) noexcept nogil:
    """Search memory that a placement keeps itself, and memory that was allocated without the cache."""
    cdef Search search
    cdef Pool* pool = &engine.defaults
    cdef size_t i
    search.address, search.where = address, ELSEWHERE
    while pool != NULL:
        if pool.placement.walk != NULL and not pool.placement.walk(engine, pool, look_at_part, &search):
            start[0], size[0] = search.start, search.size
            return search.where
        pool = engine.first_pool if pool == &engine.defaults else pool.next
    for i in range(engine.direct.mask + 1 if engine.direct.count > 0 else 0):
        start[0] = engine.direct.slots[i].key
        size[0] = <bytes_t> <size_t> engine.direct.slots[i].value
        if start[0] != 0 and address - start[0] < size[0]:
            return IN_BLOCK
    return ELSEWHERE
