"""Pools and routes: which memory serves whom.

A private pool lives by two counts. `use_count` is how many users (pool objects, routings, graphs) it
has; at 0 it is freeable and cannot be revived. `reserved_bytes` is the device's memory that it holds; a
freeable pool goes when that reaches 0. PyTorch goes by `malloc_count` instead, which growing in place and
unmapping need not bring back to 0: there such a pool stays for good, without memory, and its id is spent. Here
the pool goes, and its tally remembers that.

Cost: finding a pool by id or a shelf by stream is one look-up in a map.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport count_t
from allotment._core.model.model cimport (
    FALLING_ASLEEP, FILTER_CAPTURE, FILTER_FUNCTION, WAKING, Engine, Failure, Filter, Limits, Placement, Pool, Rack,
    RawAllocator, Request, Route, Shelf, StreamRecord, no_limit)

cdef bint pool_init(Engine* engine, Pool* pool, uint64_t first, uint64_t second, const Placement* placement,
                    Failure* failure) noexcept nogil
cdef void pool_clear(Engine* engine, Pool* pool) noexcept nogil
cdef Shelf* shelf_make(Engine* engine, Rack* rack, StreamRecord* stream) noexcept nogil

cdef void drop_idle_shelves(Pool* pool) noexcept nogil
cdef void count_reserved(Engine* engine, Rack* rack, count_t change) noexcept nogil
cdef Pool* pool_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
# Whether there is such a pool, or was one; (0, 0) stands for all of them.
# Always False: there is no such pool any more, or never was
cdef bint pool_absent(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef bint pool_expect(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef bint pool_create_or_incref(Engine* engine, uint64_t first, uint64_t second, RawAllocator* allocator,
                                const Placement* placement, Failure* failure) noexcept nogil
cdef bint pool_release(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil
cdef void pool_delete(Engine* engine, Pool* pool) noexcept nogil
cdef bint pool_set_use_on_oom(Engine* engine, uint64_t first, uint64_t second, bint on,
                              Failure* failure) noexcept nogil
cdef bint pool_set_lent(Engine* engine, uint64_t first, uint64_t second, bint on, Failure* failure) noexcept nogil
cdef bint pool_set_no_split(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil

cdef bint route_begin(Engine* engine, uint64_t first, uint64_t second, Filter filter,
                      Failure* failure) noexcept nogil
cdef Route* route_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil
cdef void route_end(Engine* engine, Route* route) noexcept nogil
cdef Pool* route_request(Engine* engine, Request* request) noexcept nogil


cdef inline uint64_t pool_key(uint64_t first, uint64_t second) noexcept nogil:
    """One number for an id: only one of its two elements is ever not 0."""
    return (first << 1) | 1 if first != 0 else second << 1


cdef inline Shelf* shelf_for(Engine* engine, Rack* rack, StreamRecord* stream) noexcept nogil:
    """The shelf of a pool for a stream, made if need be; NULL without host memory for it."""
    if rack.recent != NULL and rack.recent.stream == stream:
        return rack.recent
    return shelf_make(engine, rack, stream)


cdef inline bint has_limits(const Limits* limits) noexcept nogil:
    return limits.hard != no_limit() or limits.soft != no_limit() or limits.guaranteed != 0


cdef inline bint is_moving(const Pool* pool) noexcept nogil:
    """Whether its contents are on their way to the host or back: nothing may be unmapped under them."""
    return pool.sleep == FALLING_ASLEEP or pool.sleep == WAKING


cdef inline bint is_impure(const Filter* filter) noexcept nogil:
    """Whether applying the filter leaves the engine: asks the device, or calls somebody's function."""
    return filter.kind == FILTER_CAPTURE or filter.kind == FILTER_FUNCTION
