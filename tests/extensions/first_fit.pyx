"""The simplest possible placement: the lowest free place of a stream that is large enough.

It exists only for the tests, and shows what a placement outside of the package needs: a table of functions, its own
structure for free memory, and the name that it registers. Memory comes as plain segments, each of one stream. The free
blocks of a stream form a list in order of address, linked through their `left` and `right`.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.table cimport OUT_OF_MEMORY
from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.address_map cimport address_reserve
from allotment._core.mechanism.block cimport cut_front, is_idle, is_split, join, note_free_completed, note_handed_out
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.reclaim cimport release_everything
from allotment._core.mechanism.segment cimport segment_forget, segment_give_back, segment_obtain
from allotment._core.mechanism.shortage cimport borrow, callbacks_freed, note_out_of_memory
from allotment._core.model.model cimport (
    FAILED_DEVICE, NO_FAILURE, Block, Engine, Failure, Placement, Pool, Range, Request, FreeList)
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.placement.registry cimport placement_register
from allotment._core.records.stats cimport LARGE, Totals, tally_down, tally_now, tally_up
from allotment._core.tools.slab cimport slab_reserve

from allotment.errors import InvariantError

cdef enum:
    SEGMENT = 20971520          # the smallest request to the device
    GRANULE = 2097152           # which is a multiple of this


cdef struct Places:
    FreeList* free_list                # the stream
    Block* lowest
    Places* next

cdef struct Arena:
    Places* streams


cdef inline Arena* arena_of(Pool* pool) noexcept nogil:
    return <Arena*> pool.large.arena


cdef Places* places_of(FreeList* free_list) noexcept nogil:
    """NULL before the first memory of a stream."""
    cdef Places* places = arena_of(free_list.half.pool).streams
    while places != NULL and places.free_list != free_list:
        places = places.next
    return places


cdef void* create(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    cdef void* arena = calloc(1, sizeof(Arena))
    if arena == NULL:
        host_memory_failed(failure)
    return arena


cdef void destroy(Engine* engine, Pool* pool) noexcept nogil:
    cdef Arena* arena = arena_of(pool)
    cdef Places* places
    while arena.streams != NULL:
        places = arena.streams
        arena.streams = places.next
        free(places)
    free(arena)


# --- the list --------------------------------------------------------------------------------------------

cdef void put(Places* places, Block* block) noexcept nogil:
    """Keep a free block."""
    cdef Block* before = NULL
    cdef Block* behind = places.lowest
    while behind != NULL and behind.address < block.address:
        before = behind
        behind = behind.right
    block.left = before
    block.right = behind
    if before != NULL:
        before.right = block
    else:
        places.lowest = block
    if behind != NULL:
        behind.left = block


cdef void take(Places* places, Block* block) noexcept nogil:
    if block.left != NULL:
        block.left.right = block.right
    else:
        places.lowest = block.right
    if block.right != NULL:
        block.right.left = block.left


cdef void count(Engine* engine, const Block* block, bint more) noexcept nogil:
    """Count a free block that shares its segment, or no longer does."""
    if not is_split(block):
        return
    if more:
        tally_up(&engine.stats.inactive_split, LARGE, 1)
        tally_up(&engine.stats.inactive_split_bytes, LARGE, block.size)
    else:
        tally_down(&engine.stats.inactive_split, LARGE, 1)
        tally_down(&engine.stats.inactive_split_bytes, LARGE, block.size)


# --- requests --------------------------------------------------------------------------------------------

cdef Block* cut_and_hand_out(Engine* engine, Places* places, Block* block, bytes_t size, bytes_t requested,
                             uint32_t context) noexcept nogil:
    """pre: on the list; records are reserved"""
    cdef Block* rest = block
    take(places, block)
    count(engine, block, False)
    if block.size - size >= MIN_BLOCK:
        block = cut_front(engine, rest, size)
        put(places, rest)
        count(engine, rest, True)
    note_handed_out(engine, block, requested, context)
    return block


cdef Block* hit(Engine* engine, Request* request) noexcept nogil:
    cdef Places* places = places_of(request.free_list)
    cdef Block* block = places.lowest if places != NULL else NULL
    while block != NULL and block.size < request.rounded:
        block = block.right
    if block == NULL:
        return NULL
    if not (slab_reserve(&engine.block_slab, 1) and address_reserve(engine, 1)):
        host_memory_failed(&request.failure)
        return NULL
    return cut_and_hand_out(engine, places, block, request.rounded, request.size, request.context)


cdef Places* places_made(FreeList* free_list) noexcept nogil:
    cdef Places* places = places_of(free_list)
    cdef Arena* arena = arena_of(free_list.half.pool)
    if places == NULL:
        places = <Places*> calloc(1, sizeof(Places))
        if places != NULL:
            places.free_list = free_list
            places.next = arena.streams
            arena.streams = places
    return places


cdef Block* grow(Engine* engine, Request* request) noexcept nogil:
    """Serve a request from the front of a new segment."""
    cdef Places* places = places_made(request.free_list)
    cdef Block* block
    request.failure.reason = NO_FAILURE
    if places == NULL:
        host_memory_failed(&request.failure)
        return NULL
    if engine.limited and <bytes_t> tally_now(&engine.stats.reserved_bytes) + request.segment > engine.limit:
        device_failed(&request.failure, OUT_OF_MEMORY, b"limit")
        return NULL
    block = segment_obtain(engine, request)
    if block == NULL:
        return NULL
    put(places, block)
    return hit(engine, request)


cdef bint is_out_of_memory(const Request* request) noexcept nogil:
    return request.failure.reason == FAILED_DEVICE and request.failure.status == OUT_OF_MEMORY


cdef Block* find(Engine* engine, Request* request) noexcept nogil:
    cdef Block* block
    request.segment = max(<bytes_t> SEGMENT, (request.rounded + GRANULE - 1) // GRANULE * GRANULE)
    if engine.callbacks != NULL and callbacks_freed(engine):
        block = hit(engine, request)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
    block = grow(engine, request)
    if block != NULL or not is_out_of_memory(request):
        return block
    if engine.lender_count > 0 and request.free_list.half.pool == &engine.defaults:
        request.failure.reason = NO_FAILURE
        block = borrow(engine, request, False)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
    if not request.capturing:
        if not release_everything(engine, False, request.context, &request.failure):
            return NULL
        engine.stats.alloc_retries += 1
        block = grow(engine, request)
        if block != NULL or not is_out_of_memory(request):
            return block
    note_out_of_memory(engine, request)
    return NULL


cdef Block* miss(Engine* engine, Request* request) noexcept nogil:
    cdef Pool* pool = request.free_list.half.pool
    cdef Block* block
    pool.asking += 1
    block = find(engine, request)
    pool.asking -= 1
    return block


cdef Block* take_front(
        Engine* engine, Block* block, FreeList* free_list, bytes_t size, uint32_t context) noexcept nogil:
    return cut_and_hand_out(engine, places_of(block.free_list), block, size, size, context)


cdef void join_if_free(Engine* engine, Places* places, Block* block, Block* neighbour) noexcept nogil:
    if neighbour != NULL and is_idle(neighbour):
        count(engine, neighbour, False)
        take(places, neighbour)
        join(engine, block, neighbour)


cdef void complete_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    cdef Places* places = places_of(block.free_list)
    note_free_completed(engine, block, context)
    join_if_free(engine, places, block, block.prev)
    join_if_free(engine, places, block, block.next)
    put(places, block)
    count(engine, block, True)


# --- freeing and releasing ----------------------------------------------------------------------------------

cdef bint release(Engine* engine, Pool* pool, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    cdef Places* places = arena_of(pool).streams
    cdef Block* block
    cdef Block* following
    while places != NULL:
        block = places.lowest
        while block != NULL and pool.reserved_bytes > keep:
            following = block.right
            if not is_split(block):
                if not segment_give_back(engine, block, context, failure):
                    return False
                take(places, block)
                segment_forget(engine, block)
            block = following
        places = places.next
    return True


cdef bint retire(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    return True


# --- facts -----------------------------------------------------------------------------------------------

cdef bytes_t largest_free(Engine* engine, Pool* pool) noexcept nogil:
    cdef Places* places = arena_of(pool).streams
    cdef Block* block
    cdef bytes_t largest = 0
    while places != NULL:
        block = places.lowest
        while block != NULL:
            largest = max(largest, block.size)
            block = block.right
        places = places.next
    return largest


cdef bytes_t free_bytes(Engine* engine, Pool* pool) noexcept nogil:
    cdef Places* places = arena_of(pool).streams
    cdef Block* block
    cdef bytes_t total = 0
    while places != NULL:
        block = places.lowest
        while block != NULL:
            total += block.size
            block = block.right
        places = places.next
    return total


cdef int check(Engine* engine, Pool* pool, Totals* totals) except -1:
    cdef Places* places = arena_of(pool).streams
    cdef Range* range_ = engine.first_range
    cdef Block* block
    cdef set kept = set()
    while places != NULL:
        block = places.lowest
        while block != NULL:
            if not is_idle(block) or block.free_list != places.free_list:
                raise InvariantError("first fit keeps what is free", f"{block.address:#x}")
            if block.right != NULL and (block.right.address <= block.address or block.right.left != block):
                raise InvariantError("first fit keeps it in order of address", f"{block.address:#x}")
            kept.add(<size_t> block)
            block = block.right
        places = places.next
    while range_ != NULL:
        block = range_.head if range_.free_list.half.pool == pool else NULL
        totals.segment[LARGE] += block != NULL
        while block != NULL:
            if is_idle(block):
                if <size_t> block not in kept:
                    raise InvariantError("first fit keeps all that is free", f"{block.address:#x}")
                if block.next != NULL and is_idle(block.next):
                    raise InvariantError("free neighbours are joined", f"{block.address:#x}")
                totals.inactive_split[LARGE] += is_split(block)
                totals.inactive_split_bytes[LARGE] += block.size if is_split(block) else 0
                kept.remove(<size_t> block)
            block = block.next
        range_ = range_.next
    if kept:
        raise InvariantError("first fit keeps no more than there is", f"{len(kept)} blocks")
    return 0


cdef Placement table = Placement(
    name=b"first_fit", needs_virtual=False, create=create, destroy=destroy, hit=hit, hit_last_freed=NULL, miss=miss,
    lend=hit, reserve=NULL, take_front=take_front, complete_free=complete_free, release=release, retire=retire,
    grant=NULL, largest_free=largest_free, free_bytes=free_bytes, joinable=NULL, ranges=NULL, walk=NULL, chunks=NULL,
    check=check)

placement_register(&table)
