from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport EntryPoints, entry_points_of, follow_current_stream
from allotment._core.contract.types cimport stream_t
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.shortage cimport callback_add
from allotment._core.records.stats cimport Tally
from allotment._core.records.trace cimport tracker_t, trace_relay
from allotment.torch._deep.header cimport (
    ALLOTMENT_DEVICES_MOST, allotment_bound_device, allotment_entry_points, allotment_figure, allotment_interface,
    allotment_upcalls)

cdef enum:
    DEVICES_MOST = 64               # ALLOTMENT_DEVICES_MOST, which only the C compiler knows

assert DEVICES_MOST == ALLOTMENT_DEVICES_MOST

cdef BoundDevice devices[DEVICES_MOST]
cdef allotment_bound_device published[DEVICES_MOST]     # what C++ code sees of them
cdef dict tenants = {}              # device index -> Tenant, of each bound device
cdef object tenant_for = None       # device index -> Tenant, set by `bind_with`
cdef object process_state = None    # set by `bind_with`
cdef allotment_upcalls framework_functions
cdef bint gathers = False
cdef tracker_t listener = NULL


cdef BoundDevice* bound(int device) noexcept nogil:
    return &devices[device]


cdef EntryPoints* bind(int device) except NULL:
    cdef Allocator allocator
    cdef EntryPoints* entry_points
    if not 0 <= device < DEVICES_MOST:
        raise IndexError(f"devices are numbered 0 to {DEVICES_MOST - 1}")
    with process_state.lock:
        if device not in tenants:
            tenant = tenant_for(device)
            allocator = tenant.allocator
            entry_points = entry_points_of(tenant)
            attach(device, allocator, entry_points)
            if device in process_state.fractions:
                allocator.limits.memory_fraction = process_state.fractions.pop(device)
            tenants[device] = tenant
            devices[device].entry_points = entry_points
            publish(device)
    return devices[device].entry_points


cdef int attach(int device, Allocator allocator, EntryPoints* entry_points) except -1:
    """Connect an allocator to PyTorch's functions."""
    follow_current_stream(entry_points, current_stream_of)
    allocator.enter()
    if gathers:
        allocator.gather = framework_functions.gather
    if listener != NULL:
        trace_relay(&allocator.engine.trace, listener, <void*> <size_t> device)
    callback_add(allocator.engine, run_free_memory, <void*> run_free_memory)
    engine_leave(allocator.engine)
    devices[device].engine = allocator.engine
    devices[device].level = &allocator.level
    devices[device].mark = {"user": 1, "internal": 2}.get(allocator.rules.exact_address_mark, 0)
    return 0


cdef void publish(int device) noexcept:
    """Show a bound device to C++ code, which reads without a lock: its entry points come last."""
    published[device].allocated = figure_of(&devices[device].engine.stats.allocated_bytes)
    published[device].reserved = figure_of(&devices[device].engine.stats.reserved_bytes)
    published[device].entry_points = <const allotment_entry_points*> devices[device].entry_points


cdef allotment_figure figure_of(Tally* tally) noexcept:
    cdef allotment_figure figure
    figure.ceiling = tally.ceiling
    figure.room = tally.room
    return figure


cdef stream_t current_stream_of(int device) noexcept nogil:
    return framework_functions.current_stream(device)


cdef bint run_free_memory(void* self) noexcept nogil:
    return framework_functions.free_memory()


cdef Allocator allocator_at(int device):
    bind(device)
    return tenants[device].allocator


cdef Allocator bound_allocator(int device):
    return tenants[device].allocator


cdef dict bound_allocators():
    return {device: tenant.allocator for device, tenant in tenants.items()}


cdef object state_of_all():
    return process_state


cdef const allotment_upcalls* upcalls() noexcept nogil:
    return &framework_functions


cdef bint framework_gathers() noexcept nogil:
    return gathers


cdef int let_framework_gather(bint on) except -1:
    global gathers
    cdef Allocator allocator
    with process_state.lock:
        gathers = on
        if on:
            for allocator in bound_allocators().values():
                allocator.gather = framework_functions.gather
    return 0


cdef int listen(tracker_t tracker) except -1:
    global listener
    cdef Allocator allocator
    with process_state.lock:
        listener = tracker
        for device, allocator in bound_allocators().items():
            allocator.enter()
            trace_relay(&allocator.engine.trace, tracker, <void*> <size_t> device)
            engine_leave(allocator.engine)
    return 0


# --- functions of the framework interface ---------------------------------------------------------------------

cdef void set_upcalls(const allotment_upcalls* functions) noexcept nogil:
    global framework_functions
    framework_functions = functions[0]


cdef void fill_bound_devices(allotment_interface* table) noexcept:
    table.devices = published
    table.set_upcalls = set_upcalls


def bind_with(factory: Callable[[int], Tenant], state: ProcessState) -> None:
    """Register the factory of each device's tenant, called on first use. `state` is applied to all devices."""
    global tenant_for, process_state
    tenant_for = factory
    process_state = state


def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""
    return allocator_at(device)
