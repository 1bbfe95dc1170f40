from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.caching.allocator cimport EVERYTHING
from allotment._allocators.caching.entering cimport enter_once
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.edge.checkpoint cimport AddressList, pool_addresses
from allotment._core.engine cimport engine_empty_cache, engine_leave
from allotment._core.mechanism.pool cimport (
    pool_create_or_incref, pool_find, pool_set_no_split, pool_set_use_on_oom)
from allotment._core.model.model cimport (
    FAILED_POOL_UNKNOWN, Engine, Failure, Placement, Pool, RawAllocator, drop_t)
from allotment._core.placement.registry cimport placement_named
from allotment._core.records.tags cimport tags_are_used
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment.torch._deep.bound_devices cimport bound, bound_allocator, framework_gathers, upcalls
from allotment.torch._deep.failures cimport called_from_inside, set_engine_failure, set_failure
from allotment.torch._deep.header cimport allotment_interface, allotment_raw_allocator, visit_address_t

ctypedef address_t (*raw_allocate_t)(void* self, bytes_t size, stream_t stream) noexcept nogil
ctypedef void (*raw_free_t)(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil

cdef const Placement* torch_placement = placement_named("torch")


cdef int empty_cache(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef Failure failure
    cdef uint32_t context = 0
    cdef bint ok
    if framework_gathers() and bound(device).level[0] >= EVERYTHING and not interpreter_ends():
        context = upcalls().gather()
    if not enter_once(engine):
        return called_from_inside()
    ok = engine_empty_cache(engine, first, second, context, &failure)
    engine_leave(engine)
    if not ok:
        return set_engine_failure(device, &failure)
    return 1 if not tags_are_used() or interpreter_ends() else forget_contents(device)


cdef int forget_contents(int device) noexcept with gil:
    """Release what the host keeps of paused memory that is gone now."""
    try:
        bound_allocator(device).paused()
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int create_or_incref_pool(
        int device, uint64_t first, uint64_t second, const allotment_raw_allocator* source) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef const Placement* placement = NULL
    cdef RawAllocator raw
    cdef Failure failure
    cdef bint ok
    if source != NULL:
        raw.allocate = <raw_allocate_t> source.allocate
        raw.free = <raw_free_t> source.free
        raw.drop = <drop_t> source.drop
        raw.self = source.self
        placement = torch_placement     # the only one that accepts segments from another allocator
    if not enter_once(engine):
        return called_from_inside()
    ok = pool_create_or_incref(engine, first, second, NULL if source == NULL else &raw, placement, &failure)
    engine_leave(engine)
    return 1 if ok else set_engine_failure(device, &failure)


cdef int unknown_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Failure failure
    memset(&failure, 0, sizeof(Failure))
    failure.reason = FAILED_POOL_UNKNOWN
    failure.pool_first = first
    failure.pool_second = second
    return set_engine_failure(device, &failure)


cdef int pool_use_count(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef Pool* pool
    cdef int count = -1
    if not enter_once(engine):
        called_from_inside()
        return -1
    pool = pool_find(engine, first, second)
    if pool != NULL:
        count = <int> pool.use_count
    engine_leave(engine)
    if pool == NULL:
        unknown_pool(device, first, second)
    return count


cdef int set_use_on_oom(int device, uint64_t first, uint64_t second, int on) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef Failure failure
    cdef bint ok
    if not enter_once(engine):
        return called_from_inside()
    ok = pool_set_use_on_oom(engine, first, second, on, &failure)
    engine_leave(engine)
    return 1 if ok else set_engine_failure(device, &failure)


cdef int set_no_split(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef Failure failure
    cdef bint ok
    if not enter_once(engine):
        return called_from_inside()
    ok = pool_set_no_split(engine, first, second, &failure)
    engine_leave(engine)
    return 1 if ok else set_engine_failure(device, &failure)


cdef int live_addresses(int device, uint64_t first, uint64_t second, visit_address_t visit,
                        void* self) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef AddressList live
    cdef Failure failure
    cdef size_t i
    cdef bint ok
    memset(&live, 0, sizeof(AddressList))
    if not enter_once(engine):
        return called_from_inside()
    ok = pool_addresses(engine, first, second, &live, &failure)
    engine_leave(engine)
    if ok:
        for i in range(live.count):
            visit(self, live.addresses[i])
    free(live.addresses)
    return 1 if ok else set_engine_failure(device, &failure)


cdef void* checkpoint(int device, uint64_t first, uint64_t second) noexcept with gil:
    try:
        state = bound_allocator(device).pools.checkpoint((first, second))
        Py_INCREF(state)
        return <void*> state
    except BaseException as error:
        set_failure(error)
        return NULL


cdef int restore(int device, void* state, visit_address_t freed, visit_address_t created, void* self) noexcept with gil:
    try:
        freed_addresses, created_addresses = bound_allocator(device).pools.restore(<object> state)
        for address in freed_addresses:
            freed(self, address)
        for address in created_addresses:
            created(self, address)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef void drop_state(void* state) noexcept nogil:
    if not interpreter_ends():
        drop_object(state)


cdef void drop_object(void* held) noexcept with gil:
    Py_DECREF(<object> held)


cdef void fill_pools(allotment_interface* table) noexcept:
    table.empty_cache = empty_cache
    table.create_or_incref_pool = create_or_incref_pool
    table.pool_use_count = pool_use_count
    table.set_use_on_oom = set_use_on_oom
    table.set_no_split = set_no_split
    table.live_addresses = live_addresses
    table.checkpoint = checkpoint
    table.restore = restore
    table.drop_state = drop_state
