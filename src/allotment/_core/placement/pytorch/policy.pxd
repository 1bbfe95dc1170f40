"""The policy: which free block serves a request, when to split it, when to grow, what to release.

It decides for pools with PyTorch's placement, and the files of `mechanism/` carry it out; a pool with another placement
never comes here. The rules are PyTorch's, so replaying one of its histories verifies them. A miss goes down this list
until it finds a block:

    1  best fit among the free blocks of the request's pool and stream
    2  the free-memory callbacks, then 1 again if one of them freed something
    3  garbage collection: unused segments of at least average age, if a limit and a threshold are set. If a soft limit
       would be passed: wait for pending frees, try 1 again, then release cached memory
    4  a new segment (or more pages of an expandable one); the settings can reject that, which ends the request
    5  a free block of a private pool that lends when memory is short
    6  release of oversize blocks of the same pool and stream, then 4
    7  release of everything cached, then 4; not inside a capture
    8  out of memory
"""

from allotment._core.contract.table cimport CAN_VIRTUAL
from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.mechanism.address_map cimport address_reserve, has_room_for_one
from allotment._core.mechanism.block cimport count_handed_out, cut_front, is_plain, is_plain_of, mark_handed_out
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.model.model cimport Block, Engine, Placement, Pool, Half, Request, FreeList
from allotment._core.model.sizes cimport MIN_BLOCK, SMALL_SIZE, whole_blocks
from allotment._core.placement.pytorch.classes cimport half_for_size
from allotment._core.placement.pytorch.free_index cimport index_has_no_better
from allotment._core.placement.pytorch.free_lists cimport (
    add_to_free_list, best_fit, count_taken, flush_last_freed, hand_out, remove_from_free_list)
from allotment._core.records.stats cimport LARGE, SMALL
from allotment._core.tools.slab cimport slab_reserve

cdef const Placement* torch_placement() noexcept nogil

# The same as `hit_last_freed`, for the other free blocks: any ordinary request. NULL, without a change, also for a
# miss.
cdef Block* hit_on_free_list(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil
cdef Block* hit_address(Engine* engine, Request* request, address_t address, Block** front) noexcept nogil

cdef Block* prefer_closed_fit(FreeList* free_list, Block* block) noexcept nogil
cdef Block* skip_expandable(FreeList* free_list, Block* block) noexcept nogil


cdef inline bint collects_garbage(const Engine* engine) noexcept nogil:
    return engine.limited and engine.tuning.gc_threshold > 0


cdef inline bint is_oversize_mismatch(const Engine* engine, const Block* block, bytes_t size) noexcept nogil:
    """Whether the oversize rule forbids it: oversize blocks serve only oversize requests, with little waste."""
    if size < engine.tuning.max_split:
        return block.size >= engine.tuning.max_split
    return block.size >= size + engine.tuning.max_non_split_rounding


cdef inline Block* search(Engine* engine, FreeList* free_list, bytes_t size, bint expandable) noexcept nogil:
    """Return the best fit, taken off its free list; NULL if it is unsuitable (the second best is not tried)."""
    cdef Block* block
    if collects_garbage(engine):
        free_list.half.search_count += 1
    block = best_fit(free_list, size)
    if block == NULL:
        return NULL
    if not is_plain(block):
        if expandable:
            block = prefer_closed_fit(free_list, block)
        else:
            block = skip_expandable(free_list, block)
            if block == NULL:
                return NULL
    if is_oversize_mismatch(engine, block, size):
        return NULL
    remove_from_free_list(block)
    return block


cdef inline bint splits(const Engine* engine, const Block* block, bytes_t size, bint expandable) noexcept nogil:
    """Whether a request of `size` gets only the front of a block. `expandable` is the request's, not the block's."""
    cdef bytes_t rest = block.size - size
    if rest < MIN_BLOCK or block.free_list.half.pool.no_split:
        return False
    if block.free_list.half.size_class == SMALL or expandable:
        return True
    return size < engine.tuning.max_split and rest > SMALL_SIZE


cdef inline Block* deliver(Engine* engine, Request* request, Block* block) noexcept nogil:
    """Allocate the block that was found for a request. pre: on no free list"""
    if not (slab_reserve(&engine.block_slab, 1) and address_reserve(engine, 1)):
        add_to_free_list(block)
        host_memory_failed(&request.failure)
        return NULL
    return hand_out(engine, block, request.rounded, request.size,
                    splits(engine, block, request.rounded, request.expandable), request.context)


cdef inline bint grows_in_place(const Engine* engine, const Pool* pool) noexcept nogil:
    """Whether expandable memory may serve requests for a pool."""
    return (engine.tuning.expandable and pool.allocator.allocate == NULL
            and engine.table.capabilities & CAN_VIRTUAL != 0 and engine.total_memory != 0)


cdef inline Block* hit_free_list(Engine* engine, Request* request) noexcept nogil:
    """Step 1: allocate a block from the cache; NULL with NO_FAILURE if none fits."""
    request.expandable = grows_in_place(engine, request.free_list.half.pool)
    return hit_free_list_as_asked(engine, request)


cdef inline Block* hit_free_list_as_asked(Engine* engine, Request* request) noexcept nogil:
    """Variant of `hit_free_list` for a request whose `expandable` is already set."""
    cdef Block* block = search(engine, request.free_list, request.rounded, request.expandable)
    if block == NULL:
        return NULL
    return deliver(engine, request, block)


cdef inline Block* deliver_ordinary(Engine* engine, Half* half, int size_class, Block* block, bytes_t rounded,
                                    bytes_t size, uint32_t context) noexcept nogil:
    """`deliver` for `hit_last_freed` and `hit_on_free_list`. pre: on no free list; records are reserved"""
    cdef bytes_t rest = block.size - rounded
    cdef Block* front
    if rest >= MIN_BLOCK and (size_class == SMALL or rest > SMALL_SIZE) and not engine.defaults.no_split:
        count_taken(engine, size_class, block, rounded, True)
        front = cut_front(engine, block, rounded)
        if block != half.last_freed:
            flush_last_freed(half)
            half.last_freed = block
        block = front
    else:
        count_taken(engine, size_class, block, rounded, False)
        if block == half.last_freed:
            half.last_freed = NULL
    mark_handed_out(engine, block, size, context)
    count_handed_out(engine, size_class, block.size, size)
    return block


cdef inline Block* hit_last_freed(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil:
    """Step 1 for an ordinary request that the last freed block of the default pool fits best.

    Decides as `hit_free_list` does. Returns NULL, without a change, if another block may fit better, or if more must be
    examined: the block is expandable or oversize, or records have to be reserved. A few loads decide that, because the
    last freed block leads to its free list and its stream.

    pre: size > 0; the settings neither round sizes to divisions nor collect garbage; nothing is traced
    """
    cdef bytes_t rounded = whole_blocks(size)
    cdef int size_class = SMALL if rounded <= SMALL_SIZE else LARGE
    cdef Half* half = half_for_size(&engine.defaults, rounded)
    cdef Block* block = half.last_freed
    if block == NULL or block.size < rounded or block.size >= engine.tuning.max_split:
        return NULL
    if block.free_list.stream.handle != stream or not index_has_no_better(block.free_list, rounded, block):
        return NULL
    if not is_plain_of(half, block) or engine.block_slab.spare_count == 0 or not has_room_for_one(engine):
        return NULL
    return deliver_ordinary(engine, half, size_class, block, rounded, size, context)
