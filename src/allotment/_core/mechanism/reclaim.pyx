from libc.stdint cimport uint32_t

from allotment._core.mechanism.pool cimport pool_delete, route_find
from allotment._core.mechanism.ranges cimport drop_leftovers
from allotment._core.mechanism.streams cimport wait_events
from allotment._core.model.model cimport Engine, Failure, Pool


cdef bint release_freeable(Engine* engine, Pool* pool, uint32_t context, Failure* failure) noexcept nogil:
    """Release what a freeable pool can spare, and the pool itself once it owes nothing."""
    if not pool.placement.release(engine, pool, 0, context, failure):
        return False
    if pool.malloc_count > 0 or pool.reserved_bytes > 0 or pool.asking > 0:
        return True
    if route_find(engine, pool.first, pool.second) != NULL:
        return True
    if not pool.placement.retire(engine, pool, failure):
        return False
    pool_delete(engine, pool)
    return True


cdef bint release_everything(Engine* engine, bint captured, uint32_t context, Failure* failure) noexcept nogil:
    """The default pools, then the freeable ones; inside a capture, where no event may be touched, the latter alone."""
    if not captured:
        if engine.has_leftovers:
            drop_leftovers(engine)
        if not (wait_events(engine, NULL, context, failure)
                and engine.defaults.placement.release(engine, &engine.defaults, 0, context, failure)):
            return False
    return release_unused_pools(engine, context, failure)


cdef bint release_unused_pools(Engine* engine, uint32_t context, Failure* failure) noexcept nogil:
    """Those that nobody uses any more."""
    cdef Pool* pool = engine.first_pool if engine.freeable_count > 0 else NULL
    cdef Pool* following
    while pool != NULL:
        following = pool.next
        if pool.freeable and not release_freeable(engine, pool, context, failure):
            return False
        pool = following
    return True


cdef bint release_one_pool(Engine* engine, Pool* pool, bint captured, uint32_t context,
                           Failure* failure) noexcept nogil:
    """A pool without users; one in use is left alone.

    Inside a capture events cannot be waited for: blocks that wait for one then stay.
    """
    if not pool.freeable:
        return True
    if not captured and not wait_events(engine, pool, context, failure):
        return False
    return release_freeable(engine, pool, context, failure)
