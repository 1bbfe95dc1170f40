"""Pools and routes: which memory serves which requests.

Two counts decide a private pool's lifetime. `use_count` is the number of its users (pool objects, routings, graphs); at
0 the pool is freeable and cannot be revived. `reserved_bytes` is the device memory that it holds; when that reaches 0,
a freeable pool is deleted. PyTorch uses `malloc_count` instead, which growing in place and unmapping may never bring
back to 0. Such a pool of PyTorch's exists for good, without memory, and its id cannot be used again. Here the pool is
deleted, and its tally remembers that its id is spent.

Cost: finding a pool by id or a free list by stream is one map lookup.
"""

from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport count_t, stream_t
from allotment._core.mechanism.failure cimport pool_failed
from allotment._core.model.model cimport (
    FALLING_ASLEEP, FILTER_CAPTURE, FILTER_FUNCTION, WAKING, Engine, Failure, Filter, Limits, Placement, Pool, Half,
    RawAllocator, Reason, Request, Route, FreeList, StreamRecord, no_limit)
from allotment._core.records.tags cimport tag_pool_id

cdef bint pool_init(Engine* engine, Pool* pool, uint64_t first, uint64_t second, const Placement* placement,
                    Failure* failure) noexcept nogil
cdef void pool_clear(Engine* engine, Pool* pool) noexcept nogil
cdef FreeList* free_list_make(Engine* engine, Half* half, StreamRecord* stream) noexcept nogil

cdef void drop_idle_free_lists(Pool* pool) noexcept nogil
cdef void count_reserved(Engine* engine, Half* half, count_t change) noexcept nogil
cdef Pool* pool_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
# Sets the failure and returns False: the pool is gone or never existed.
cdef bint pool_absent(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
# Whether such a pool exists or existed; (0, 0) stands for all pools.
cdef bint pool_expect(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef bint pool_create_or_incref(Engine* engine, uint64_t first, uint64_t second, RawAllocator* allocator,
                                const Placement* placement, Failure* failure) noexcept nogil
cdef Pool* pool_of_tag(Engine* engine, uint32_t tag, Failure* failure) noexcept nogil     # created on demand
cdef bint pool_release(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef void pool_delete(Engine* engine, Pool* pool) noexcept nogil
cdef bint pool_set_use_on_oom(Engine* engine, uint64_t first, uint64_t second, bint on,
                              Failure* failure) noexcept nogil
cdef bint pool_set_lent(Engine* engine, uint64_t first, uint64_t second, bint on, Failure* failure) noexcept nogil
cdef bint pool_note_replay(Engine* engine, uint64_t first, uint64_t second, stream_t stream,
                           Failure* failure) noexcept nogil
cdef bint pool_set_no_split(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil

cdef bint route_begin(Engine* engine, uint64_t first, uint64_t second, Filter filter,
                      Failure* failure) noexcept nogil
cdef Route* route_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
cdef void route_end(Engine* engine, Route* route) noexcept nogil
cdef Pool* route_request(Engine* engine, Request* request) noexcept nogil


cdef inline uint64_t pool_key(uint64_t first, uint64_t second) noexcept nogil:
    """Return one key for an id, of which at most one element is nonzero."""
    return (first << 1) | 1 if first != 0 else second << 1


cdef inline FreeList* free_list_for(Engine* engine, Half* half, StreamRecord* stream) noexcept nogil:
    """Return the free list of a pool for a stream, creating it on demand; NULL if host memory is short."""
    if half.recent != NULL and half.recent.stream == stream:
        return half.recent
    return free_list_make(engine, half, stream)


cdef inline bint has_limits(const Limits* limits) noexcept nogil:
    return limits.hard != no_limit() or limits.soft != no_limit() or limits.guaranteed != 0


cdef inline bint is_moving(const Pool* pool) noexcept nogil:
    """Whether the pool's contents are being copied to or from the host: nothing in it may be unmapped."""
    return pool.sleep == FALLING_ASLEEP or pool.sleep == WAKING


cdef inline bint pause_failed(Failure* failure, Reason reason, const Pool* pool) noexcept nogil:
    """Name the tag that a pool sleeps with, or the pool; always False."""
    if pool.sleeps_with != 0:
        return pool_failed(failure, reason, 0, tag_pool_id(pool.sleeps_with))
    return pool_failed(failure, reason, pool.first, pool.second)


cdef inline bint is_impure(const Filter* filter) noexcept nogil:
    """Whether applying the filter calls the device or foreign code."""
    return filter.kind == FILTER_CAPTURE or filter.kind == FILTER_FUNCTION
