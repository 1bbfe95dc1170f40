from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport OK, OUT_OF_MEMORY, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, count_t, stream_t
from allotment._core.mechanism.block cimport block_drop, block_new, give_order
from allotment._core.mechanism.captures cimport end_relaxed_capture, relax_capture
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.pool cimport count_reserved
from allotment._core.mechanism.ranges cimport is_anybodys, range_forget, range_make_plain, range_number, range_place
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.model.model cimport Block, Engine, Failure, Pool, Range, Request
from allotment._core.records.stats cimport SMALL, tally_down, tally_up
from allotment._core.records.trace cimport ACTION_SEGMENT_ALLOC, ACTION_SEGMENT_FREE, trace_report
from allotment._core.tools.lock cimport this_thread
from allotment._core.tools.slab cimport slab_reserve


cdef status_t ask_device(Engine* engine, bytes_t size, Request* request, address_t* address) noexcept nogil:
    cdef DeviceTable* table = engine.table
    cdef bint relaxed = relax_capture(engine, request.stream)
    cdef status_t status = table.segment_allocate(table.self, size, request.stream, address)
    end_relaxed_capture(engine, relaxed)
    if status == OUT_OF_MEMORY and table.clear_error != NULL:
        table.clear_error(table.self)
    return status


cdef status_t obtain(Engine* engine, Pool* pool, bytes_t size, Request* request,
                     address_t* address) noexcept nogil:
    cdef unlocked_t unlocked
    cdef status_t status
    if pool.allocator.allocate == NULL and not engine.tuning.release_lock:
        return ask_device(engine, size, request, address)
    unlocked = begin_unlocked(engine)
    if pool.allocator.allocate == NULL:
        status = ask_device(engine, size, request, address)
    else:
        address[0] = pool.allocator.allocate(pool.allocator.self, size, request.stream)
        status = OK if address[0] != 0 else OUT_OF_MEMORY
    end_unlocked(engine, unlocked)
    return status


cdef status_t hand_back(Engine* engine, Pool* pool, address_t address, bytes_t size, stream_t stream) noexcept nogil:
    """Free memory to where `obtain` got it.

    Has an unlocked section; the pool lives as long as this memory is counted.
    """
    cdef status_t status = OK
    cdef unlocked_t unlocked = begin_unlocked(engine)
    if pool.allocator.free == NULL:
        status = engine.table.segment_free(engine.table.self, address, size)
    else:
        pool.allocator.free(pool.allocator.self, address, size, stream)
    end_unlocked(engine, unlocked)
    return status


cdef Block* segment_obtain(Engine* engine, Request* request) noexcept nogil:
    """Allocate a segment; return the free block that covers it, on no free list.

    NULL with the reason in request.failure.
    """
    cdef Pool* pool = request.free_list.half.pool
    cdef int size_class = request.free_list.half.size_class
    cdef bytes_t size = request.segment
    cdef address_t address = 0
    cdef Range* range_
    cdef Block* block
    cdef status_t status
    if not slab_reserve(&engine.block_slab, 1):
        host_memory_failed(&request.failure)
        return NULL
    range_ = range_make_plain(engine, request.free_list, size)
    if range_ == NULL:
        host_memory_failed(&request.failure)
        return NULL
    block = block_new(engine, request.free_list, range_, 0, size)
    status = obtain(engine, pool, size, request, &address)
    if status != OK:
        range_forget(engine, range_)
        block_drop(engine, block)
        device_failed(&request.failure, status, b"segment_allocate")
        return NULL
    if not range_place(engine, range_, address, b"segment_allocate", &request.failure):
        if not is_anybodys(engine, address, size):
            hand_back(engine, pool, address, size, request.stream)
        range_forget(engine, range_)
        block_drop(engine, block)
        return NULL
    block.address = address
    range_.head = block
    range_number(engine, range_)     # only now, because other threads may have allocated segments meanwhile
    give_order(engine, block)
    block.segment_context = request.context
    request.is_fresh = pool.allocator.allocate == NULL
    pool.malloc_count += 1
    tally_up(&engine.stats.segment, size_class, 1)
    count_reserved(engine, request.free_list.half, <count_t> size)
    if size >= engine.tuning.max_split:
        tally_up(&engine.stats.oversize_segments, SMALL, 1)
    engine.stats.device_allocs += 1
    trace_report(&engine.trace, ACTION_SEGMENT_ALLOC, address, size, request.stream,
                 pool.first, pool.second, request.context)
    return block


cdef bint segment_give_back(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil:
    """Return a segment to the device; the caller deletes its block next.

    Has an unlocked section. pre: the block is free, plain, all of its segment, and out of reach for other threads
    """
    cdef status_t status
    block.range.leaving = this_thread()
    status = hand_back(engine, block.free_list.half.pool, block.address, block.size, block.free_list.stream.handle)
    block.range.leaving = 0
    if status != OK:
        return device_failed(failure, status, b"segment_free")
    count_departure(engine, block, context)
    return True


cdef void count_departure(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    cdef Pool* pool = block.free_list.half.pool
    engine.stats.device_frees += 1
    trace_report(&engine.trace, ACTION_SEGMENT_FREE, block.address, block.size, block.free_list.stream.handle,
                 pool.first, pool.second, context if context != 0 else block.segment_context)
    pool.malloc_count -= 1
    tally_down(&engine.stats.segment, block.free_list.half.size_class, 1)
    count_reserved(engine, block.free_list.half, -(<count_t> block.size))
    if block.size >= engine.tuning.max_split:
        tally_down(&engine.stats.oversize_segments, SMALL, 1)


cdef void finish_departures(Engine* engine) noexcept nogil:
    """Delete the segments that other threads were returning to the device. pre: these threads no longer exist

    The device may already have their memory, and may return the same addresses again.
    """
    cdef size_t place = engine.placed_count
    cdef Range* range_
    cdef Block* block
    while place > 0:
        place -= 1
        range_ = engine.by_address[place]
        if range_.leaving != 0 and range_.leaving != this_thread():
            block = range_.head
            count_departure(engine, block, 0)
            segment_forget(engine, block)


cdef void segment_forget(Engine* engine, Block* block) noexcept nogil:
    """Delete the records of a segment that was returned to the device. pre: in no set"""
    range_forget(engine, block.range)
    block_drop(engine, block)
