from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from allotment._allocators.caching.entering cimport enter_once
from allotment._core.contract.table cimport OK, DeviceTable
from allotment._core.contract.types cimport bytes_t
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.shortage cimport largest_free_block
from allotment._core.model.model cimport FAILED_DEVICE, Engine, Failure
from allotment._core.records.stats cimport tally_now
from allotment.torch._deep.failing cimport called_from_inside, fail, note
from allotment.torch._deep.header cimport allotment_points, allotment_stat, allotment_stats
from allotment.torch._deep.served cimport served_at, told_to_all, used_allocator


cdef void gauges(int device, int64_t* allocated, int64_t* reserved) noexcept nogil:
    """Read the current figures; another thread may be changing them."""
    cdef Engine* engine = served_at(device).engine
    if engine != NULL:
        allocated[0] = tally_now(&engine.stats.allocated_bytes)
        reserved[0] = tally_now(&engine.stats.reserved_bytes)


cdef int largest_block(int device, size_t* largest) noexcept nogil:
    cdef Engine* engine = served_at(device).engine
    cdef DeviceTable* table = engine.table
    cdef bytes_t free_bytes = 0, total = 0
    cdef Failure failure
    cdef bytes_t found
    if largest[0] == 0 and table.memory_info != NULL:
        memset(&failure, 0, sizeof(Failure))
        failure.status = table.memory_info(table.self, &free_bytes, &total)
        if failure.status != OK:
            failure.reason = FAILED_DEVICE
            failure.operation = b"memory_info"
            return fail(device, &failure)
        largest[0] = free_bytes
    if not enter_once(engine):
        return called_from_inside()
    found = largest_free_block(engine)
    engine_leave(engine)
    largest[0] = max(<bytes_t> largest[0], found)
    return 1


cdef int fill_stat(allotment_stat* out, dict stat) except -1:
    out.current = stat["current"]
    out.peak = stat["peak"]
    out.allocated = stat["allocated"]
    out.freed = stat["freed"]
    return 0


cdef int fill_stats(allotment_stat* out, dict stats) except -1:
    fill_stat(&out[0], stats["all"])
    fill_stat(&out[1], stats["small_pool"])
    fill_stat(&out[2], stats["large_pool"])
    return 0


cdef int stats(int device, allotment_stats* out,
               void (*pool)(void*, uint64_t, uint64_t, const allotment_stat*) noexcept nogil,
               void* self) noexcept with gil:
    """Return statistics; zeros for a device that was not used yet."""
    cdef allotment_stat[3] reserved
    try:
        memset(out, 0, sizeof(allotment_stats))
        if served_at(device).table == NULL:
            out.max_split_size = <int64_t> <uint64_t> told_to_all().settings.max_split_size
            return 1
        found = used_allocator(device).inspection.nested_stats()
        out.num_alloc_retries = found["num_alloc_retries"]
        out.num_ooms = found["num_ooms"]
        out.num_oom_rejections = found.get("num_oom_rejections", 0)
        out.num_sync_all_streams = found["num_sync_all_streams"]
        out.num_device_alloc = found["num_device_alloc"]
        out.num_device_free = found["num_device_free"]
        out.max_split_size = found["max_split_size"]
        fill_stats(out.allocation, found["allocation"])
        fill_stats(out.segment, found["segment"])
        fill_stats(out.active, found["active"])
        fill_stats(out.inactive_split, found["inactive_split"])
        fill_stats(out.allocated_bytes, found["allocated_bytes"])
        fill_stats(out.reserved_bytes, found["reserved_bytes"])
        fill_stats(out.active_bytes, found["active_bytes"])
        fill_stats(out.inactive_split_bytes, found["inactive_split_bytes"])
        fill_stats(out.requested_bytes, found["requested_bytes"])
        fill_stat(&out.oversize_allocations, found["oversize_allocations"])
        fill_stat(&out.oversize_segments, found["oversize_segments"])
        for name, by_class in found.get("reserved_bytes_by_private_pools", {}).items():
            first, _, second = name.partition("_")
            fill_stats(reserved, by_class)
            pool(self, int(first), int(second), reserved)
        return 1
    except BaseException as error:
        return note(error)


cdef int reset_stats(int device, int peaks) noexcept with gil:
    try:
        if peaks:
            used_allocator(device).reset_peak_stats()
        else:
            used_allocator(device).inspection.reset_accumulated_stats()
        return 1
    except BaseException as error:
        return note(error)


cdef int expandable_sizes(int device, void (*visit)(void*, uint64_t, int, uint64_t) noexcept nogil,
                          void* self) noexcept with gil:
    try:
        for stream, is_small, mapped in used_allocator(device).inspection.expandable_segment_sizes():
            visit(self, stream, is_small, mapped)
        return 1
    except BaseException as error:
        return note(error)


cdef void fill_figures(allotment_points* table) noexcept:
    table.gauges = gauges
    table.largest_block = largest_block
    table.stats = stats
    table.reset_stats = reset_stats
    table.expandable_sizes = expandable_sizes
