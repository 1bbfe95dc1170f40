from libc.stdlib cimport calloc

from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.pool cimport has_limits
from allotment._core.mechanism.reclaim cimport release_down_to
from allotment._core.mechanism.shortage cimport note_out_of_memory
from allotment._core.mechanism.streams cimport wait_events
from allotment._core.model.model cimport (
    AWAKE, FOR_TENANTS, LIMIT_OF_ALLOCATOR, LIMIT_OF_POOL, LIMIT_OF_TENANT, NO_LIMITER, PROMISED_TO_POOL, Account,
    Engine, Failure, Limiter, Limits, Pool, Request, no_limit)
from allotment._core.records.stats cimport tally_now
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST
from allotment._core.records.trace cimport trace_count


cdef inline bytes_t held(const Engine* engine) noexcept nogil:
    return <bytes_t> tally_now(&engine.stats.reserved_bytes)


cdef inline bytes_t less(bytes_t amount, bytes_t taken) noexcept nogil:
    return amount - min(amount, taken)


cdef void limits_set(Engine* engine, Pool* pool, const Limits* limits) noexcept nogil:
    engine.limit_count += has_limits(limits) - has_limits(&pool.limits)
    pool.limits = limits[0]


cdef void soft_limit_set(Engine* engine, bytes_t soft) noexcept nogil:
    engine.limit_count += (soft != no_limit()) - (engine.soft_limit != no_limit())
    engine.soft_limit = soft


cdef bint accounts_open(Engine* engine) noexcept nogil:
    cdef Account* accounts
    cdef int tenant
    if engine.accounts != NULL:
        return True
    accounts = <Account*> calloc(TENANTS_MOST, sizeof(Account))
    if accounts == NULL:
        return False
    for tenant in range(TENANTS_MOST):
        accounts[tenant].limit = no_limit()
    engine.accounts = accounts
    trace_count(&engine.trace, True)
    engine.slow_path_reasons |= FOR_TENANTS
    return True


# --- hard limits -------------------------------------------------------------------------------------------

cdef bytes_t promised_to_others(const Engine* engine, const Pool* pool, const Pool** whose) noexcept nogil:
    """Return the bytes guaranteed to other pools that they do not hold yet; `whose` is the pool that lacks most."""
    cdef const Pool* other = engine.first_pool
    cdef bytes_t promised = 0
    cdef bytes_t most = 0
    cdef bytes_t lacking
    while other != NULL:
        lacking = less(other.limits.guaranteed, other.reserved_bytes) if other != pool else 0
        promised += lacking
        if lacking > most:
            most = lacking
            whose[0] = other
        other = other.next
    return promised


cdef inline void note_limiter(Failure* failure, Limiter limiter, const Pool* pool) noexcept nogil:
    failure.limiter = limiter
    failure.limiting_first = pool.first
    failure.limiting_second = pool.second


cdef bytes_t room_within_limits(const Engine* engine, const Pool* pool, Failure* failure) noexcept nogil:
    cdef bytes_t whole = engine.limit if engine.limited else engine.total_memory
    cdef bytes_t room = no_limit()
    cdef bytes_t left, promised
    cdef const Pool* whose = NULL
    failure.limiter = NO_LIMITER
    if engine.limited:
        room = less(engine.limit, held(engine))
        failure.limiter = LIMIT_OF_ALLOCATOR
    if engine.limit_count == 0:
        return room
    promised = promised_to_others(engine, pool, &whose)
    if promised > 0:
        left = less(whole, held(engine) + promised)
        if left < room:
            room = left
            note_limiter(failure, PROMISED_TO_POOL, whose)
    if pool.limits.hard != no_limit():
        left = less(pool.limits.hard, pool.reserved_bytes)
        if left < room:
            room = left
            note_limiter(failure, LIMIT_OF_POOL, pool)
    return room


# --- soft limits -------------------------------------------------------------------------------------------

cdef bytes_t room_below_soft_limits(const Engine* engine, const Pool* pool) noexcept nogil:
    cdef bytes_t room = no_limit()
    if pool.limits.soft != no_limit():
        room = less(pool.limits.soft, pool.reserved_bytes)
    if engine.soft_limit != no_limit():
        room = min(room, less(engine.soft_limit, held(engine)))
    return room


cdef bint release_for_soft_limit(Engine* engine, Request* request, bytes_t more) noexcept nogil:
    cdef Pool* pool = request.free_list.half.pool
    if engine.soft_limit != no_limit() and held(engine) + more > engine.soft_limit and not release_down_to(
            engine, less(engine.soft_limit, more), request.context, &request.failure):
        return False
    if pool.limits.soft == no_limit() or pool.sleep != AWAKE or pool.reserved_bytes + more <= pool.limits.soft:
        return True
    return (wait_events(engine, pool, request.context, &request.failure)
            and pool.placement.release(
                engine, pool, less(pool.limits.soft, more), request.context, &request.failure))


# --- tenants -----------------------------------------------------------------------------------------------

cdef bint tenant_may_have(Engine* engine, Request* request) noexcept nogil:
    cdef const Account* account = &engine.accounts[request.context >> TENANT_SHIFT]
    if account.limit == no_limit() or request.rounded <= less(account.limit, account.held):
        return True
    request.segment = request.rounded
    request.failure.limiter = LIMIT_OF_TENANT
    note_out_of_memory(engine, request)
    request.failure.limited = True
    request.failure.limit = account.limit
    return False
