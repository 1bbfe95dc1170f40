from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from allotment._allocators.caching.entering cimport enter_once
from allotment._core.contract.table cimport OK, DeviceTable
from allotment._core.contract.types cimport bytes_t
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.shortage cimport largest_free_block
from allotment._core.model.model cimport FAILED_DEVICE, Engine, Failure
from allotment.torch._deep.bound_devices cimport bound, bound_allocator, state_of_all
from allotment.torch._deep.failures cimport called_from_inside, set_engine_failure, set_failure
from allotment.torch._deep.header cimport allotment_interface, allotment_stat, allotment_statistics_visitor


cdef int largest_block(int device, size_t* largest) noexcept nogil:
    cdef Engine* engine = bound(device).engine
    cdef DeviceTable* table = engine.table
    cdef bytes_t free_bytes = 0, total = 0, cached
    cdef Failure failure
    if largest[0] == 0 and table.memory_info != NULL:
        memset(&failure, 0, sizeof(Failure))
        failure.status = table.memory_info(table.self, &free_bytes, &total)
        if failure.status != OK:
            failure.reason = FAILED_DEVICE
            failure.operation = b"memory_info"
            return set_engine_failure(device, &failure)
        largest[0] = free_bytes
    if not enter_once(engine):
        return called_from_inside()
    cached = largest_free_block(engine)
    engine_leave(engine)
    largest[0] = max(<bytes_t> largest[0], cached)
    return 1


cdef int fill_stat(allotment_stat* out, dict stat) except -1:
    out.current = stat["current"]
    out.peak = stat["peak"]
    out.allocated = stat["allocated"]
    out.freed = stat["freed"]
    return 0


cdef int fill_stats(allotment_stat* three, dict by_class) except -1:
    fill_stat(&three[0], by_class["all"])
    fill_stat(&three[1], by_class["small_pool"])
    fill_stat(&three[2], by_class["large_pool"])
    return 0


cdef int visit_statistics(dict nested, const allotment_statistics_visitor* visitor) except -1:
    """Visit each entry of `nested_stats`, by its name."""
    cdef allotment_stat[3] three
    cdef int64_t number
    for name, value in nested.items():
        key = name.encode()
        if isinstance(value, int):
            number = value
            visitor.number(visitor.self, key, number)
        elif name == "reserved_bytes_by_private_pools":
            for pool, by_class in value.items():
                first, _, second = pool.partition("_")
                fill_stats(three, by_class)
                visitor.pool(visitor.self, int(first), int(second), three)
        elif "all" in value:
            fill_stats(three, value)
            visitor.stats(visitor.self, key, three)
        else:
            fill_stat(&three[0], value)
            visitor.stat(visitor.self, key, &three[0])
    return 0


cdef int statistics(int device, const allotment_statistics_visitor* visitor) noexcept with gil:
    """Visit all statistics; a device that is not bound yet has only zeros and its settings."""
    try:
        if bound(device).entry_points == NULL:
            visitor.number(visitor.self, b"max_split_size", <int64_t> <uint64_t> state_of_all().settings.max_split_size)
        else:
            visit_statistics(bound_allocator(device).inspection.nested_stats(), visitor)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int reset_statistics(int device, int peaks) noexcept with gil:
    try:
        if peaks:
            bound_allocator(device).reset_peak_stats()
        else:
            bound_allocator(device).inspection.reset_accumulated_stats()
        return 1
    except BaseException as error:
        return set_failure(error)


cdef int expandable_sizes(int device, void (*visit)(void*, uint64_t, int, uint64_t) noexcept nogil,
                          void* self) noexcept with gil:
    try:
        for stream, is_small, mapped in bound_allocator(device).inspection.expandable_segment_sizes():
            visit(self, stream, is_small, mapped)
        return 1
    except BaseException as error:
        return set_failure(error)


cdef void fill_statistics(allotment_interface* table) noexcept:
    table.largest_block = largest_block
    table.statistics = statistics
    table.reset_statistics = reset_statistics
    table.expandable_sizes = expandable_sizes
