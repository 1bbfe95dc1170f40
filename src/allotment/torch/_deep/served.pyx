from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport EntryPoints, entry_points_of, follow_current_stream
from allotment._core.contract.types cimport stream_t
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.shortage cimport callback_add
from allotment._core.records.trace cimport tracker_t, trace_relay
from allotment.torch._deep.header cimport ALLOTMENT_DEVICES_MOST, allotment_framework, allotment_points

cdef enum:
    DEVICES_MOST = 64               # ALLOTMENT_DEVICES_MOST, which only C knows

assert DEVICES_MOST == ALLOTMENT_DEVICES_MOST

cdef Served served[DEVICES_MOST]
cdef void* tables[DEVICES_MOST]
cdef dict tenants = {}              # device index -> Tenant, of each device in use
cdef object settle = None           # device index -> Tenant, given by `serve_with`
cdef object process_state = None    # likewise
cdef allotment_framework other_half
cdef bint gathers = False
cdef tracker_t listener = NULL


cdef Served* served_at(int device) noexcept nogil:
    return &served[device]


cdef EntryPoints* settled_table(int device) except NULL:
    cdef Allocator allocator
    cdef EntryPoints* table
    if not 0 <= device < DEVICES_MOST:
        raise IndexError(f"devices are numbered 0 to {DEVICES_MOST - 1}")
    with process_state.lock:
        if device not in tenants:
            tenant = settle(device)
            allocator = tenant.allocator
            table = entry_points_of(tenant)
            settle_allocator(device, allocator, table)
            if device in process_state.fractions:
                allocator.limits.memory_fraction = process_state.fractions.pop(device)
            tenants[device] = tenant
            served[device].table = table        # last: from here on C code finds it without the lock
            tables[device] = table
    return served[device].table


cdef int settle_allocator(int device, Allocator allocator, EntryPoints* table) except -1:
    follow_current_stream(table, current_stream_of)
    allocator.enter()
    if gathers:
        allocator.gather = other_half.gather
    if listener != NULL:
        trace_relay(&allocator.engine.trace, listener, <void*> <size_t> device)
    callback_add(allocator.engine, run_free_memory, <void*> run_free_memory)
    engine_leave(allocator.engine)
    served[device].engine = allocator.engine
    served[device].level = &allocator.level
    served[device].mark = {"user": 1, "internal": 2}.get(allocator.rules.exact_address_mark, 0)
    return 0


cdef stream_t current_stream_of(int device) noexcept nogil:
    return other_half.current_stream(device)


cdef bint run_free_memory(void* self) noexcept nogil:
    return other_half.free_memory()


cdef Allocator allocator_at(int device):
    settled_table(device)
    return tenants[device].allocator


cdef Allocator used_allocator(int device):
    return tenants[device].allocator


cdef dict used_allocators():
    return {device: tenant.allocator for device, tenant in tenants.items()}


cdef object told_to_all():
    return process_state


cdef const allotment_framework* framework() noexcept nogil:
    return &other_half


cdef void serve(const allotment_framework* given) noexcept nogil:
    global other_half
    other_half = given[0]


cdef bint framework_gathers() noexcept nogil:
    return gathers


cdef int let_framework_gather(bint on) except -1:
    global gathers
    cdef Allocator allocator
    with process_state.lock:
        gathers = on
        if on:
            for allocator in used_allocators().values():
                allocator.gather = other_half.gather
    return 0


cdef int listen(tracker_t tracker) except -1:
    global listener
    cdef Allocator allocator
    with process_state.lock:
        listener = tracker
        for device, allocator in used_allocators().items():
            allocator.enter()
            trace_relay(&allocator.engine.trace, tracker, <void*> <size_t> device)
            engine_leave(allocator.engine)
    return 0


cdef void fill_served(allotment_points* table) noexcept:
    table.tables = <void* const*> tables
    table.serve = serve


def serve_with(function: Callable[[int], Tenant], state: ProcessState) -> None:
    """Register the factory of each device's tenant, called on first use. `state` is applied to all of them."""
    global settle, process_state
    settle = function
    process_state = state


def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""
    return allocator_at(device)
