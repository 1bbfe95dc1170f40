from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, count_t, stream_t
from allotment._core.edge.sharing cimport SharedBlock, SharedPiece
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.mechanism.block cimport is_plain
from allotment._core.mechanism.failure cimport address_failed, host_memory_failed
from allotment._core.mechanism.pool cimport pause_failed
from allotment._core.mechanism.holds cimport hold_find, hold_make, hold_settle, is_needed_elsewhere
from allotment._core.model.model cimport AWAKE, FAILED_PAUSED, Block, Engine, Failure, Hold, Range, StreamUse
from allotment._core.tools.arrays cimport make_room


cdef bint add_piece(void* self, chunk_t chunk, bytes_t size, address_t address) noexcept nogil:
    cdef SharedBlock* out = <SharedBlock*> self
    if not make_room(<void**> &out.pieces, &out.piece_room, out.piece_count, sizeof(SharedPiece)):
        return False
    if out.piece_count == 0:
        out.base = address
    out.pieces[out.piece_count] = SharedPiece(chunk, size)
    out.piece_count += 1
    return True


cdef bint add_pages(Block* block, SharedBlock* out) noexcept nogil:
    cdef Range* range_ = block.range
    cdef size_t page = (block.address - range_.base) // range_.page
    cdef size_t end = (block.address + block.size - range_.base + range_.page - 1) // range_.page
    while page < end:
        if not add_piece(out, range_.views[page].handle, range_.page, range_.base + page * range_.page):
            return False
        page += 1
    return True


cdef bint add_pieces(Engine* engine, Block* block, SharedBlock* out) noexcept nogil:
    if block.free_list.half.pool.placement.chunks != NULL:
        return block.free_list.half.pool.placement.chunks(engine, block, add_piece, out)
    if is_plain(block):
        return add_piece(out, 0, block.range.size, block.range.base)
    return add_pages(block, out)


cdef bint add_stream(SharedBlock* out, stream_t stream) noexcept nogil:
    if not make_room(<void**> &out.streams, &out.stream_room, out.stream_count, sizeof(stream_t)):
        return False
    out.streams[out.stream_count] = stream
    out.stream_count += 1
    return True


cdef bint add_streams(Engine* engine, const Block* block, SharedBlock* out) noexcept nogil:
    cdef const StreamUse* use = block.uses
    if not add_stream(out, block.free_list.stream.handle):
        return False
    while use != NULL:
        if use.stream != &engine.elsewhere and not add_stream(out, use.stream.handle):
            return False
        use = use.next
    return True


cdef bint describe(Engine* engine, Block* block, SharedBlock* out, Failure* failure) noexcept nogil:
    if not (add_pieces(engine, block, out) and add_streams(engine, block, out)):
        return host_memory_failed(failure)
    out.size = block.requested
    out.offset = block.address - out.base
    return True


cdef bint share_block(Engine* engine, address_t address, bint keep, SharedBlock* out, Failure* failure) noexcept nogil:
    """Describe an allocated block. With `keep` the block is held until `end_shares` ends that hold."""
    cdef Block* block = block_at(engine, address) if address != 0 else NULL
    cdef Hold* hold
    if block == NULL:
        return address_failed(failure, address)
    if block.free_list.half.pool.sleep != AWAKE:
        return pause_failed(failure, FAILED_PAUSED, block.free_list.half.pool)
    if not describe(engine, block, out, failure):
        return False
    if keep:
        hold = hold_make(engine, block, failure)
        if hold == NULL:
            return False
        hold.keeps += 1
        out.generation = hold.generation
    return True


cdef bint lease_block(Engine* engine, address_t address, uint64_t generation, SharedBlock* out,
                      Failure* failure) noexcept nogil:
    """Describe a shared block, and hold it for one more process."""
    cdef Hold* hold = hold_find(engine, address, generation)
    if not is_needed_elsewhere(hold):
        return address_failed(failure, address)
    if not describe(engine, hold.block, out, failure):
        return False
    hold.leases += 1
    out.generation = generation
    return True


cdef bint end_shares(Engine* engine, address_t address, uint64_t generation, uint64_t leases,
                     uint64_t keeps) noexcept nogil:
    """End leases and keeps; False if the block is gone already."""
    cdef Hold* hold = hold_find(engine, address, generation)
    if hold == NULL:
        return False
    hold.leases -= <count_t> leases
    hold.keeps -= <count_t> keeps
    hold_settle(engine, hold, 0)
    return True


cdef void shared_block_clear(SharedBlock* shared) noexcept nogil:
    free(shared.pieces)
    free(shared.streams)
