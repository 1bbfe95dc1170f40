from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport OK, status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.address_map cimport address_put, address_take, is_in_use
from allotment._core.mechanism.block cimport complete_free, note_free_requested
from allotment._core.mechanism.captures cimport deferral_prepare
from allotment._core.mechanism.capturing cimport is_inside_capture, is_used_in_capture
from allotment._core.mechanism.failure cimport address_failed, device_failed, host_memory_failed
from allotment._core.mechanism.frees cimport is_freed_at_once
from allotment._core.mechanism.holds cimport hold_of, hold_settle, use_drop, use_out
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.mechanism.streams cimport defer, defer_unprepared, events_attach, is_destroyed_stream
from allotment._core.model.model cimport FAILED_ADDRESS, Block, Deferred, Engine, Failure, Hold, StreamUse
from allotment._core.records.trace cimport trace_hold_time
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.pointer_map cimport map_get, map_pop, map_put
from allotment._core.tools.slab cimport slab_reserve


cdef void free_at_once(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Free a block that no other stream uses. Both steps have the same time, so the clock is read once."""
    if engine.trace.on:
        trace_hold_time(&engine.trace)
    note_free_requested(engine, block, context)
    complete_free(engine, block, context)
    engine.trace.moment = 0


cdef bint free_used_block(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil:
    """Free a block that other streams used. What can fail comes first: after a failure it is still allocated.

    pre: removed from the address map; on failure the caller puts it back
    """
    cdef Deferred* deferred
    cdef bint captured
    if not is_inside_capture(engine, 0, &captured, failure):
        return False
    if not captured and not is_used_in_capture(engine, block):
        if not events_attach(engine, block, failure):
            if not is_destroyed_stream(failure) or not slab_reserve(&engine.deferred_slab, 1):
                return False
            note_free_requested(engine, block, context)
            defer_unprepared(engine, block)     # the stream's remaining work is waited for later
            return True
        note_free_requested(engine, block, context)
        if block.event_count == 0:
            complete_free(engine, block, context)
        return True
    deferred = deferral_prepare(engine, block, captured, failure)
    if deferred == NULL:
        return False
    note_free_requested(engine, block, context)
    defer(engine, deferred)
    return True


cdef bint free_held(Engine* engine, Hold* hold, uint32_t context, Failure* failure) noexcept nogil:
    """Free a shared block; precondition and failure as for `free_used_block`."""
    cdef Block* block = hold.block
    cdef StreamUse* use = use_out(engine, block)
    block.event_count += 1
    if block.uses == NULL:
        note_free_requested(engine, block, context)
    elif not free_used_block(engine, block, context, failure):
        block.event_count -= 1
        use.next = block.uses
        block.uses = use
        return False
    use_drop(engine, use)
    hold.freed = True
    hold_settle(engine, hold, context)
    return True


cdef bint free_direct(Engine* engine, address_t address, Failure* failure) noexcept nogil:
    """Free memory that was allocated without the cache."""
    cdef void* size = map_get(&engine.direct, address)
    cdef unlocked_t unlocked
    cdef status_t status
    if size == NULL:
        return address_failed(failure, address)
    map_pop(&engine.direct, address)    # before the device can return the address to another caller
    engine.direct_leaving += 1
    unlocked = begin_unlocked(engine)
    status = engine.table.segment_free(engine.table.self, address, <bytes_t> <size_t> size)
    end_unlocked(engine, unlocked)
    engine.direct_leaving -= 1
    if status != OK:
        map_put(&engine.direct, address, size)
        return device_failed(failure, status, b"segment_free")
    return True


cdef bint free_asking_device(Engine* engine, Block* block, address_t address, uint32_t context,
                       Failure* failure) noexcept nogil:
    cdef Hold* hold
    cdef bint ok
    if block == NULL:
        return free_direct(engine, address, failure)
    hold = hold_of(engine, block)
    ok = free_held(engine, hold, context, failure) if hold != NULL else free_used_block(
        engine, block, context, failure)
    if not ok:
        address_put(engine, block)
    return ok


cdef bint free_later(Engine* engine, address_t address, Failure* failure) noexcept nogil:
    """pre: called on the thread that is inside the engine"""
    if not is_in_use(engine, address):
        return address_failed(failure, address)
    if not make_room(<void**> &engine.late_frees, &engine.late_free_room, engine.late_free_count, sizeof(address_t)):
        return host_memory_failed(failure)
    engine.late_frees[engine.late_free_count] = address
    engine.late_free_count += 1
    return True


cdef void finish_late_frees(Engine* engine) noexcept nogil:
    """Drain the list in order. Frees that the device refuses stay on it for the next time.

    Each block was in use when its free was deferred. A block that no longer is was deferred twice, and is free already.
    """
    cdef size_t done = 0
    cdef size_t kept = 0
    cdef address_t address
    cdef Block* block
    cdef Failure failure
    if engine.frees_late:       # another thread is already draining the list and will process new entries
        return
    engine.frees_late = True
    while done < engine.late_free_count:
        address = engine.late_frees[done]
        block = address_take(engine, address)
        if is_freed_at_once(block):
            free_at_once(engine, block, 0)
        elif not free_asking_device(engine, block, address, 0, &failure) and failure.reason != FAILED_ADDRESS:
            engine.late_frees[kept] = address
            kept += 1
        done += 1
    engine.late_free_count = kept
    engine.frees_late = False
