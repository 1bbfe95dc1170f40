"""The map from user addresses to allocated blocks.

The block allocated last is the most likely to be freed next. It stays out of the table until another block is
allocated, so allocating and freeing a short-lived block touches no slot, whatever the size of the table.
"""

from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t
from allotment._core.model.model cimport Block, Engine
from allotment._core.tools.pointer_map cimport map_get, map_has_room, map_pop, map_put, map_reserve


cdef inline bint is_latest(const Engine* engine, address_t address) noexcept nogil:
    return engine.latest != NULL and engine.latest.address == address


cdef inline Block* block_at(const Engine* engine, address_t address) noexcept nogil:
    """Return the allocated block that begins at an address, or NULL."""
    if is_latest(engine, address):
        return engine.latest
    return <Block*> map_get(&engine.blocks, address)


cdef inline bint is_in_use(const Engine* engine, address_t address) noexcept nogil:
    """Whether user memory begins there: a block, or memory that was allocated without the cache."""
    return block_at(engine, address) != NULL or map_get(&engine.direct, address) != NULL


cdef inline size_t address_count(const Engine* engine) noexcept nogil:
    return engine.blocks.count + (engine.latest != NULL)


cdef inline bint has_room_for_one(const Engine* engine) noexcept nogil:
    """Whether the next block can be added without more host memory."""
    return engine.latest == NULL or map_has_room(&engine.blocks, 1)


cdef inline bint address_reserve(Engine* engine, size_t more) noexcept nogil:
    """Make sure that the next `more` blocks can be added; False when host memory is short."""
    return (engine.latest == NULL and more == 1) or map_reserve(&engine.blocks, more)


cdef inline void address_put(Engine* engine, Block* block) noexcept nogil:
    """pre: a slot is reserved, or the block was removed just now"""
    if engine.latest != NULL:
        map_put(&engine.blocks, engine.latest.address, engine.latest)
    engine.latest = block


cdef inline Block* address_take(Engine* engine, address_t address) noexcept nogil:
    """Remove and return the block that begins there; NULL if none does."""
    cdef Block* block
    if is_latest(engine, address):
        block = engine.latest
        engine.latest = NULL
        return block
    return <Block*> map_pop(&engine.blocks, address)
