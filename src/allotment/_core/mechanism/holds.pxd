"""Blocks that were shared: not reused as long as another process has one open, or may yet open it.

    share            a Hold, and among the block's users one more: other processes
      lease, keep    counted by whoever talks to them; the engine knows numbers only
    free             the user is done with it; with a lease or a keep it is pending, as though an event was to come
    the last ends    free for good, unless streams are still waited for

A block that was shared is freed by the way of blocks with users, so that the others pay nothing.
"""

from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport address_t
from allotment._core.model.model cimport Block, Engine, Failure, Hold, StreamUse
from allotment._core.tools.pointer_map cimport map_get

cdef Hold* hold_make(Engine* engine, Block* block, Failure* failure) noexcept nogil
cdef Hold* hold_find(Engine* engine, address_t address, uint64_t generation) noexcept nogil
cdef StreamUse* use_out(Engine* engine, Block* block) noexcept nogil
cdef void use_drop(Engine* engine, StreamUse* use) noexcept nogil
cdef void hold_settle(Engine* engine, Hold* hold, uint32_t context) noexcept nogil
cdef void hold_forget(Engine* engine, Block* block) noexcept nogil
cdef void holds_end(Engine* engine) noexcept nogil
cdef void holds_clear(Engine* engine) noexcept nogil


cdef inline Hold* hold_of(const Engine* engine, const Block* block) noexcept nogil:
    """NULL if the block was not shared."""
    return <Hold*> map_get(&engine.holds, block.address) if engine.holds.count > 0 else NULL


cdef inline bint is_needed_elsewhere(const Hold* hold) noexcept nogil:
    return hold != NULL and hold.leases + hold.keeps > 0
