"""Pools and shelves: which memory serves whom, and how blocks come and go on a shelf.

A private pool lives by two counts. `use_count` is how many users (pool objects, routings, graphs) it
has; at 0 it is freeable and cannot be revived. `malloc_count` is what it still owes the device; a
freeable pool is deleted when that reaches 0.

Cost: finding a pool by id or a shelf by stream is one look-up in a map.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t, stream_t, thread_t
from allotment._core.mechanism.free_index cimport comes_before, index_best_fit
from allotment._core.model.model cimport (
    Block, Engine, Failure, Filter, Placement, Pool, Rack, RawAllocator, Request, Route, Shelf, StreamRecord)
from allotment._core.model.sizes cimport SMALL_SIZE

cdef bint pool_init(Engine* engine, Pool* pool, uint64_t first, uint64_t second, const Placement* placement,
                    Failure* failure) noexcept nogil
cdef void pool_clear(Engine* engine, Pool* pool) noexcept nogil
cdef Shelf* shelf_make(Engine* engine, Rack* rack, StreamRecord* stream) noexcept nogil

cdef Pool* pool_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
cdef bint pool_create_or_incref(Engine* engine, uint64_t first, uint64_t second, RawAllocator* allocator,
                                const Placement* placement, Failure* failure) noexcept nogil
cdef bint pool_release(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef void pool_delete(Engine* engine, Pool* pool) noexcept nogil
cdef bint pool_set_use_on_oom(Engine* engine, uint64_t first, uint64_t second, bint on,
                              Failure* failure) noexcept nogil
cdef bint pool_set_no_split(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil

cdef bint route_begin(Engine* engine, uint64_t first, uint64_t second, Filter filter,
                      Failure* failure) noexcept nogil
cdef Route* route_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
cdef void route_end(Engine* engine, Route* route) noexcept nogil
cdef Pool* route_request(Engine* engine, Request* request) noexcept nogil


cdef inline uint64_t pool_key(uint64_t first, uint64_t second) noexcept nogil:
    """One number for an id: only one of its two elements is ever not 0."""
    return (first << 1) | 1 if first != 0 else second << 1


cdef inline Rack* rack_for_size(Pool* pool, bytes_t rounded) noexcept nogil:
    return &pool.small if rounded <= SMALL_SIZE else &pool.large


cdef inline Shelf* shelf_for(Engine* engine, Rack* rack, StreamRecord* stream) noexcept nogil:
    """The shelf of a pool for a stream, made if need be; NULL without host memory for it."""
    if rack.recent != NULL and rack.recent.stream == stream:
        return rack.recent
    return shelf_make(engine, rack, stream)


cdef inline bint is_plain(const Block* block) noexcept nogil:
    return block.range.page == 0


cdef inline bint is_split(const Block* block) noexcept nogil:
    return block.prev != NULL or block.next != NULL


# A block that has just become free is likely to be the next one asked for, or to be merged with the next one
# freed. So the last one stays at hand, and goes on its shelf when another takes its place, or when somebody
# wants to walk the shelves (`tidy`). Both happen in order of freeing, which is the order of age.

cdef void put_on_shelf(Block* block) noexcept nogil
cdef void take_off_shelf(Block* block) noexcept nogil


cdef inline void tidy(Rack* rack) noexcept nogil:
    """Afterwards the shelves, and what the pool counts of them, are complete."""
    if rack.at_hand != NULL:
        put_on_shelf(rack.at_hand)
        rack.at_hand = NULL


cdef inline void shelve(Block* block) noexcept nogil:
    """Keep a free, mapped block: at hand, until the next one comes."""
    cdef Rack* rack = block.shelf.rack
    block.gc_base = rack.search_count
    if rack.at_hand != NULL:
        put_on_shelf(rack.at_hand)
    rack.at_hand = block


cdef inline void unshelve(Block* block) noexcept nogil:
    """Take a free block from where it is kept. pre: its size and neighbours are as they were when it was put there"""
    cdef Rack* rack = block.shelf.rack
    if rack.at_hand == block:
        rack.at_hand = NULL
    else:
        take_off_shelf(block)


cdef inline Block* best_fit(Shelf* shelf, bytes_t size) noexcept nogil:
    """The smallest free block of at least `size`, of those the one at the lowest address; it stays where it is."""
    cdef Block* at_hand = shelf.rack.at_hand
    cdef Block* found = index_best_fit(shelf, size)
    if at_hand == NULL or at_hand.shelf != shelf or at_hand.size < size:
        return found
    return at_hand if found == NULL or comes_before(at_hand, found) else found
