from libc.stdint cimport uint32_t
from libc.string cimport memset

from allotment._core.contract.table cimport IS_UNCHECKED
from allotment._core.contract.types cimport bytes_t, capture_t
from allotment._core.mechanism.pool cimport (
    drop_idle_free_lists, has_limits, is_moving, pool_delete, pool_release, route_find)
from allotment._core.mechanism.ranges cimport drop_leftovers
from allotment._core.mechanism.streams cimport (
    forget_idle_streams, wait_events, wait_for_everything, wait_unless_captured)
from allotment._core.model.model cimport ASLEEP, AWAKE, Engine, Failure, Pool
from allotment._core.records.stats cimport Tally, tally_now


cdef bint release_freeable(Engine* engine, Pool* pool, uint32_t context, Failure* failure) noexcept nogil:
    """Release what a freeable pool can spare, and delete the pool once it holds no memory.

    Has an unlocked section.
    """
    cdef bint ok
    cdef bint captured = False
    if is_moving(pool):
        return True
    pool.asking += 1        # other threads may find the pool empty meanwhile, and must not delete it
    ok = wait_for_replays(engine, pool, &captured, failure)
    if ok and not captured:
        ok = pool.placement.release(engine, pool, 0, context, failure)
    pool.asking -= 1
    if not ok:
        return False
    # Only its pause keeps a sleeping pool alive, and the pool holds nothing once none of its pages is away.
    if pool.reserved_bytes + pool.small.away + pool.large.away > 0 or pool.asking > (pool.sleep == ASLEEP):
        return True
    if route_find(engine, pool.first, pool.second) != NULL:
        return True
    if not pool.placement.retire(engine, pool, failure):
        return False
    pool_delete(engine, pool)
    return True


cdef bint wait_for_replays(Engine* engine, Pool* pool, bint* captured, Failure* failure) noexcept nogil:
    """Wait for the graphs that use the pool's memory: they may run on other streams than those the memory is for.

    `captured`: waiting would break a capture, and was left out. Has an unlocked section.
    """
    cdef capture_t capture
    cdef size_t i = 0
    if pool.replay_stream_count == 0 or pool.reserved_bytes == 0 or wait_for_everything(engine):
        return True
    if engine.table.capabilities & IS_UNCHECKED:
        captured[0] = True      # a stream that the graph ran on may be destroyed by now: its handle is not used
        return True
    while i < pool.replay_stream_count and pool.reserved_bytes > 0:
        if not wait_unless_captured(engine, pool.replay_streams[i], &capture, failure):
            return False
        captured[0] = captured[0] or capture != 0
        i += 1
    return True


cdef bint release_everything(Engine* engine, bint captured, uint32_t context, Failure* failure) noexcept nogil:
    """Release from default pools, then from freeable ones.

    A capture may touch no event, so there only from the latter.
    """
    if not captured:
        if engine.has_leftovers:
            drop_leftovers(engine)
        if not (wait_events(engine, NULL, context, failure)
                and engine.defaults.placement.release(engine, &engine.defaults, 0, context, failure)):
            return False
        if not release_tags(engine, 0, context, failure):
            return False
    if not release_unused_pools(engine, context, failure):
        return False
    forget_idle(engine)
    return True


cdef bint release_tags(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    """Release memory cached for tags, in order of creation, until all pools together reserve at most `keep`. Has an
    unlocked section.

    Pools of tags are private, but their free memory is cached only for their tag, and no graph relies on it.
    """
    cdef Pool* pool = engine.first_pool if engine.tag_count > 0 else NULL
    cdef bytes_t reserved
    cdef bint ok = True
    while ok and pool != NULL:
        reserved = <bytes_t> tally_now(&engine.stats.reserved_bytes)
        if pool.tag != 0 and not is_moving(pool) and (reserved > keep or pool.sleep == ASLEEP):
            pool.asking += 1        # keeps the pool alive: the walk continues from it
            ok = pool.placement.release(
                engine, pool, pool.reserved_bytes - min(pool.reserved_bytes, reserved - min(reserved, keep)), context,
                failure)
            pool.asking -= 1
        pool = pool.next
    return ok


cdef bint forget_idle_tags(Engine* engine, Failure* failure) noexcept nogil:
    cdef Pool* pool = engine.first_pool if engine.tag_count > 0 else NULL
    cdef Pool* following
    while pool != NULL:
        following = pool.next
        if pool.tag != 0 and is_idle(engine, pool):
            if not (pool.placement.retire(engine, pool, failure)
                    and pool_release(engine, pool.first, pool.second, failure)):
                return False
            # The tag's number, and so the pool's id, may belong to another name next: leave nothing of this one.
            pool.malloc_count = 0
            pool.tally.used = False
            memset(&pool.tally.reserved_bytes, 0, sizeof(Tally))
            pool_delete(engine, pool)
        pool = following
    return True


cdef bint is_idle(Engine* engine, Pool* pool) noexcept nogil:
    """Whether a request could recreate the pool after its deletion without any visible difference."""
    return (pool.sleep == AWAKE and pool.asking == 0 and pool.use_count == 1 and not has_limits(&pool.limits)
            and pool.reserved_bytes + pool.small.away + pool.large.away == 0 and not (pool.use_on_oom or pool.lent)
            and route_find(engine, pool.first, pool.second) == NULL and pool.sleepers == 0)


cdef bint release_down_to(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    cdef bytes_t reserved = <bytes_t> tally_now(&engine.stats.reserved_bytes)
    cdef bytes_t of_others
    if reserved <= keep:
        return True
    if not wait_events(engine, NULL, context, failure):
        return False
    of_others = <bytes_t> tally_now(&engine.stats.reserved_bytes) - engine.defaults.reserved_bytes
    if not engine.defaults.placement.release(
            engine, &engine.defaults, keep - min(keep, of_others), context, failure):
        return False
    if not release_tags(engine, keep, context, failure):
        return False
    return (<bytes_t> tally_now(&engine.stats.reserved_bytes) <= keep
            or release_unused_pools(engine, context, failure))


cdef void forget_idle(Engine* engine) noexcept nogil:
    """Delete the records of streams that no pool has memory for and nothing waits for: a program may create any
    number of streams.

    Does nothing where a pool keeps clocks of all streams.
    """
    cdef Pool* pool = engine.first_pool
    cdef bint clocks = engine.defaults.large.arena != NULL
    drop_idle_free_lists(&engine.defaults)
    while pool != NULL:
        clocks = clocks or pool.large.arena != NULL
        drop_idle_free_lists(pool)
        pool = pool.next
    if not clocks:
        forget_idle_streams(engine)


cdef bint release_unused_pools(Engine* engine, uint32_t context, Failure* failure) noexcept nogil:
    """Release the pools without users."""
    cdef Pool* pool = engine.first_pool if engine.freeable_count > 0 else NULL
    cdef Pool* following
    cdef bint ok
    while pool != NULL:
        # Keeps the next pool alive: the walk continues from it.
        following = pool.next
        if following != NULL:
            following.asking += 1
        ok = not pool.freeable or release_freeable(engine, pool, context, failure)
        if following != NULL:
            following.asking -= 1
        if not ok:
            return False
        pool = following
    return True


cdef bint release_one_pool(Engine* engine, Pool* pool, bint captured, uint32_t context,
                           Failure* failure) noexcept nogil:
    """Release a pool without users, or the cached memory of a tag; does nothing to another pool in use.

    Inside a capture it cannot wait for events: blocks that wait for one then stay cached.
    """
    cdef bint ok
    if not pool.freeable and pool.tag == 0:
        return True
    pool.asking += 1
    ok = captured or wait_events(engine, pool, context, failure)
    if ok and not pool.freeable and not is_moving(pool):
        ok = pool.placement.release(engine, pool, 0, context, failure)
    pool.asking -= 1
    return ok and (not pool.freeable or release_freeable(engine, pool, context, failure))
