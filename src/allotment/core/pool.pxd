"""Pools and shelves: which memory serves whom, and how blocks come and go on a shelf.

A private pool lives by two counts. `use_count` is how many users (pool objects, routings, graphs) it
has; at 0 it is freeable and cannot be revived. `malloc_count` is what it still owes the device; a
freeable pool is deleted when that reaches 0.

Cost: finding a pool by id or a shelf by stream is one look-up in a map.
"""

from libc.stdint cimport uint64_t

from allotment.core.free_index cimport index_insert, index_remove
from allotment.core.model cimport (
    Block, BlockPool, Engine, Failure, Filter, PoolOwner, RawAllocator, Request, Route, Shelf, StreamRecord)
from allotment.core.sizes cimport SMALL_SIZE
from allotment.core.types cimport bytes_t, stream_t, thread_t

cdef bint owner_init(PoolOwner* owner, uint64_t first, uint64_t second) noexcept nogil
cdef void owner_clear(PoolOwner* owner) noexcept nogil
cdef Shelf* shelf_make(Engine* engine, BlockPool* pool, StreamRecord* stream) noexcept nogil

cdef PoolOwner* pool_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
cdef bint pool_create_or_incref(Engine* engine, uint64_t first, uint64_t second, RawAllocator* allocator,
                                Failure* failure) noexcept nogil
cdef bint pool_release(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef void pool_delete(Engine* engine, PoolOwner* owner) noexcept nogil
cdef bint pool_set_use_on_oom(Engine* engine, uint64_t first, uint64_t second, bint on,
                              Failure* failure) noexcept nogil
cdef bint pool_set_no_split(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil

cdef bint route_begin(Engine* engine, uint64_t first, uint64_t second, Filter filter,
                      Failure* failure) noexcept nogil
cdef Route* route_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
cdef void route_end(Engine* engine, Route* route) noexcept nogil
cdef PoolOwner* route_request(Engine* engine, Request* request) noexcept nogil


cdef inline uint64_t pool_key(uint64_t first, uint64_t second) noexcept nogil:
    """One number for an id: only one of its two elements is ever not 0."""
    return (first << 1) | 1 if first != 0 else second << 1


cdef inline BlockPool* pool_for_size(PoolOwner* owner, bytes_t rounded) noexcept nogil:
    return &owner.small if rounded <= SMALL_SIZE else &owner.large


cdef inline Shelf* shelf_for(Engine* engine, BlockPool* pool, StreamRecord* stream) noexcept nogil:
    """The shelf of a pool for a stream, made if need be; NULL without host memory for it."""
    if pool.recent != NULL and pool.recent.stream == stream:
        return pool.recent
    return shelf_make(engine, pool, stream)


cdef inline bint is_plain(const Block* block) noexcept nogil:
    return block.range.page == 0


cdef inline bint is_split(const Block* block) noexcept nogil:
    return block.prev != NULL or block.next != NULL


cdef inline void shelve(Block* block) noexcept nogil:
    """Put a free, mapped block on its shelf."""
    cdef BlockPool* pool = block.shelf.pool
    block.gc_base = pool.search_count
    pool.free_bytes += block.size
    index_insert(block.shelf, block)
    if not is_split(block) and is_plain(block):
        block.releasable = True
        block.newer = NULL
        block.older = pool.newest
        if pool.newest != NULL:
            pool.newest.newer = block
        else:
            pool.oldest = block
        pool.newest = block
        pool.releasable_count += 1
        pool.releasable_gc_sum += block.gc_base


cdef inline void unshelve(Block* block) noexcept nogil:
    """Take a free block off its shelf. pre: its size and neighbours are as they were when it was put there"""
    cdef BlockPool* pool = block.shelf.pool
    pool.free_bytes -= block.size
    index_remove(block.shelf, block)
    if block.releasable:
        block.releasable = False
        if block.older != NULL:
            block.older.newer = block.newer
        else:
            pool.oldest = block.newer
        if block.newer != NULL:
            block.newer.older = block.older
        else:
            pool.newest = block.older
        pool.releasable_count -= 1
        pool.releasable_gc_sum -= block.gc_base
