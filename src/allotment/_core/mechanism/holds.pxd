"""Shared blocks: not reused while another process has one open or may still open it.

    share            creates a Hold, and adds "other processes" to the block's users
      lease, keep    the code that talks to those processes counts them; the engine knows only the numbers
    free             ends the user's use; with a lease or a keep the block is pending, as if an event were outstanding
    the last ends    the block is free for good, unless it still waits for streams

Shared blocks are freed on the path of blocks with users, so that other blocks pay nothing.
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
    """Return NULL if the block was not shared."""
    return <Hold*> map_get(&engine.holds, block.address) if engine.holds.count > 0 else NULL


cdef inline bint is_needed_elsewhere(const Hold* hold) noexcept nogil:
    return hold != NULL and hold.leases + hold.keeps > 0
