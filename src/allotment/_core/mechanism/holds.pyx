from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.types cimport address_t
from allotment._core.mechanism.block cimport complete_free
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.mechanism.holds cimport hold_of, is_needed_elsewhere
from allotment._core.mechanism.streams cimport use_record
from allotment._core.model.model cimport Block, Engine, Failure, Hold, StreamUse
from allotment._core.tools.pointer_map cimport map_clear, map_pop, map_put, map_reserve
from allotment._core.tools.slab cimport slab_give


cdef Hold* hold_make(Engine* engine, Block* block, Failure* failure) noexcept nogil:
    """Return the hold of an allocated block, creating it the first time; NULL if host memory is short."""
    cdef Hold* hold = hold_of(engine, block)
    if hold != NULL:
        return hold
    hold = <Hold*> calloc(1, sizeof(Hold))
    if hold == NULL or not map_reserve(&engine.holds) or not use_record(engine, block, &engine.elsewhere, False):
        free(hold)
        host_memory_failed(failure)
        return NULL
    engine.shared_blocks += 1
    hold.block = block
    hold.generation = engine.shared_blocks
    map_put(&engine.holds, block.address, hold)
    return hold


cdef Hold* hold_find(Engine* engine, address_t address, uint64_t generation) noexcept nogil:
    """Return NULL if that block is gone or was never shared."""
    cdef Hold* hold = <Hold*> map_get(&engine.holds, address) if address != 0 else NULL
    return hold if hold != NULL and hold.generation == generation else NULL


cdef StreamUse* use_out(Engine* engine, Block* block) noexcept nogil:
    """Remove "other processes" from a block's users."""
    cdef StreamUse** link = &block.uses
    cdef StreamUse* use
    while link[0].stream != &engine.elsewhere:
        link = &link[0].next
    use = link[0]
    link[0] = use.next
    return use


cdef void use_drop(Engine* engine, StreamUse* use) noexcept nogil:
    engine.elsewhere.users -= 1
    slab_give(&engine.use_slab, use)


cdef void hold_settle(Engine* engine, Hold* hold, uint32_t context) noexcept nogil:
    """Complete the free if it is now possible: a lease or a keep has ended, or the user freed the block."""
    cdef Block* block = hold.block
    if not hold.freed or is_needed_elsewhere(hold):
        return
    map_pop(&engine.holds, block.address)
    free(hold)
    block.event_count -= 1
    if block.event_count == 0 and not block.withheld:
        complete_free(engine, block, context)


cdef void hold_forget(Engine* engine, Block* block) noexcept nogil:
    """Undo the sharing of an allocated block. pre: no other process needs it"""
    cdef Hold* hold = hold_of(engine, block)
    if hold != NULL:
        use_drop(engine, use_out(engine, block))
        map_pop(&engine.holds, block.address)
        free(hold)


cdef void holds_end(Engine* engine) noexcept nogil:
    """End all leases and keeps: in a child of fork, which owns its blocks."""
    cdef size_t i = 0
    cdef Hold* hold
    while i <= engine.holds.mask:
        hold = <Hold*> engine.holds.slots[i].value if engine.holds.slots[i].key != 0 else NULL
        if hold == NULL or hold.leases + hold.keeps == 0:
            i += 1
            continue
        hold.leases = hold.keeps = 0
        hold_settle(engine, hold, 0)        # may move another hold into this slot


cdef void holds_clear(Engine* engine) noexcept nogil:
    cdef size_t i
    for i in range(engine.holds.mask + 1 if engine.holds.slots != NULL else 0):
        if engine.holds.slots[i].key != 0:
            free(engine.holds.slots[i].value)
    map_clear(&engine.holds)
