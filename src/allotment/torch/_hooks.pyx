"""The ten functions that PyTorch's plug-in object calls, over our allocators.

PyTorch passes them no context argument, so one table for the process holds the entry points of each device, bound when
PyTorch first requests memory on it. They run on PyTorch's threads, mostly without the interpreter lock, and report
failure as PyTorch's own allocator does: with a C++ exception, never with a null pointer.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdio cimport fprintf, stderr
from libcpp.string cimport string

from allotment._allocators.caching.entry_points cimport (
    EntryPoints, entry_points_of, follow_current_stream, last_exception)
from allotment._core.contract.types cimport stream_t

from allotment._rules import rules_of
from allotment._texts import pytorch_out_of_memory
from allotment.errors import OutOfMemoryError

cdef extern from "raise_in_torch.hpp" namespace "allotment" nogil:
    cppclass StreamFilter:
        pass
    cppclass PoolId:
        unsigned long long first, second
    void throw_out_of_memory(const string& text)
    void throw_error(const string& text)
    StreamFilter* keep_filter(const StreamFilter& filter)
    bint filter_accepts(StreamFilter* filter, uint64_t stream)
    void drop_filter(StreamFilter* filter)

cdef enum:
    DEVICES_MOST = 64

cdef EntryPoints* tables[DEVICES_MOST]
cdef dict tenants = {}              # device index -> Tenant, of each table
cdef object tenant_for = None       # device index -> Tenant, set by `bind_with`
cdef bint free_has_failed = False
cdef object torch_current_stream = None     # device index -> raw stream handle, set by `bind_with`


# --- failures ------------------------------------------------------------------------------------------------

cdef object message_of(object error):
    """Return PyTorch's message for a failure; our own if PyTorch has none."""
    if not isinstance(error, OutOfMemoryError):
        return str(error)
    allocator = tenants[error.facts.device_index].allocator
    rules = rules_of(allocator.settings.compat)
    return pytorch_out_of_memory(error.facts, rules=rules)


cdef void throw_failure(const EntryPoints* table) noexcept nogil:
    """Throw this thread's last failure as a C++ exception."""
    cdef string text
    cdef bint out_of_memory = False
    with gil:
        try:
            error = last_exception(table)
            out_of_memory = isinstance(error, OutOfMemoryError)
            text = message_of(error).encode()
        except BaseException as error:
            text = repr(error).encode()
    if out_of_memory:
        throw_out_of_memory(text)
    throw_error(text)


# --- which allocator -----------------------------------------------------------------------------------------

cdef EntryPoints* entry_points_on(int device) noexcept nogil:
    if 0 <= device < DEVICES_MOST and tables[device] != NULL:
        return tables[device]
    return bind_or_throw(device)


cdef EntryPoints* bind_or_throw(int device) noexcept nogil:
    """Bind a device; throws a C++ exception if that fails."""
    cdef string text
    cdef EntryPoints* table = NULL
    with gil:
        try:
            table = bind(device)
        except BaseException as error:
            text = f"allotment cannot serve CUDA device {device}: {error}".encode()
    if table == NULL:
        throw_error(text)
    return table


cdef stream_t current_stream(int device) noexcept with gil:
    try:
        return torch_current_stream(device) if torch_current_stream is not None else 0
    except BaseException:
        return 0    # the default stream, which is never captured


cdef EntryPoints* bind(int device) except NULL:
    cdef EntryPoints* table
    if not 0 <= device < DEVICES_MOST:
        raise IndexError(f"devices are numbered 0 to {DEVICES_MOST - 1}")
    tenant = tenant_for(device)
    table = entry_points_of(tenant)
    follow_current_stream(table, current_stream)
    with cython.critical_section(tenants):
        if tables[device] == NULL:      # another thread may have bound it meanwhile
            tenants[device] = tenant
            tables[device] = table
    return tables[device]


def bind_with(factory: Callable[[int], Tenant], current: Callable[[int], int] | None = None) -> None:
    """Register the factory that supplies each device's tenant; called on first use.

    `current` returns the handle of the calling thread's current stream on a device; without it, the default stream
    counts as current.
    """
    global tenant_for, torch_current_stream
    tenant_for = factory
    torch_current_stream = current


def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""
    if device not in tenants:
        bind(device)
    return tenants[device].allocator


# --- the hooks -----------------------------------------------------------------------------------------------

cdef void* allocate(size_t size, int device, void* stream) noexcept nogil:
    cdef EntryPoints* table = entry_points_on(device)
    cdef void* address
    if size == 0:
        return NULL
    address = table.allocate(table.context, size, device, stream)
    if address == NULL:
        throw_failure(table)
    return address


cdef void release(void* address, size_t size, int device, void* stream) noexcept nogil:
    global free_has_failed
    cdef EntryPoints* table = entry_points_on(device)
    if not table.free(table.context, address, size, device, stream) and not free_has_failed:
        free_has_failed = True      # PyTorch frees in destructors, where nothing may be thrown
        fprintf(stderr, b"allotment: PyTorch's free of %p on device %d failed (reported once)\n", address, device)


cdef void init(int device_count) noexcept nogil:
    pass    # devices are bound when memory is first requested


cdef void reset() noexcept nogil:
    cdef int device
    for device in range(DEVICES_MOST):
        if tables[device] != NULL and not tables[device].empty_cache(tables[device].context):
            throw_failure(tables[device])


cdef void set_memory_fraction(double fraction, int device) noexcept nogil:
    cdef EntryPoints* table = entry_points_on(device)
    if not table.set_memory_fraction(table.context, fraction, device):
        throw_error(b"invalid fraction: it must be between 0 and 1")


cdef void* base_allocation(void* address, size_t* size) noexcept nogil:
    cdef EntryPoints* table = NULL
    cdef void* base
    cdef int device
    for device in range(DEVICES_MOST):      # PyTorch does not say whose address it is
        if tables[device] != NULL:
            table = tables[device]
            base = table.base_allocation(table.context, address, size)
            if base != NULL:
                return base
    if table == NULL:
        throw_error(b"invalid device pointer: no memory was allocated yet")
    throw_failure(table)
    return NULL


cdef void record_stream(void* address, void* stream) noexcept nogil:
    cdef EntryPoints* table = NULL
    cdef int device
    for device in range(DEVICES_MOST):
        if tables[device] != NULL:
            table = tables[device]
            if table.record_stream(table.context, address, stream):
                return
    if table == NULL:
        throw_error(b"invalid device pointer: no memory was allocated yet")
    throw_failure(table)


cdef bint accepts(void* filter, stream_t stream) noexcept nogil:
    return filter_accepts(<StreamFilter*> filter, stream)


cdef void drop(void* filter) noexcept nogil:
    drop_filter(<StreamFilter*> filter)


cdef void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter) noexcept nogil:
    cdef EntryPoints* table = entry_points_on(device)
    cdef StreamFilter* kept = keep_filter(filter)
    if not table.begin_allocate_to_pool(table.context, pool.first, pool.second, accepts, drop, kept):
        drop_filter(kept)
        throw_failure(table)


cdef void end_allocate_to_pool(int device, PoolId pool) noexcept nogil:
    cdef EntryPoints* table = entry_points_on(device)
    if not table.end_allocate_to_pool(table.context, pool.first, pool.second):
        throw_failure(table)


cdef void release_pool(int device, PoolId pool) noexcept nogil:
    cdef EntryPoints* table = entry_points_on(device)
    if not table.release_pool(table.context, pool.first, pool.second):
        throw_failure(table)


def addresses() -> dict[str, int]:
    """Addresses of the functions: "allocate" and "free", and each hook under the name of PyTorch's setter."""
    return {
        "allocate": <size_t> <void*> allocate,
        "free": <size_t> <void*> release,
        "set_init_fn": <size_t> <void*> init,
        "set_reset_fn": <size_t> <void*> reset,
        "set_memory_fraction_fn": <size_t> <void*> set_memory_fraction,
        "set_base_alloc_fn": <size_t> <void*> base_allocation,
        "set_record_stream_fn": <size_t> <void*> record_stream,
        "set_begin_allocate_to_pool": <size_t> <void*> begin_allocate_to_pool,
        "set_end_allocate_to_pool_fn": <size_t> <void*> end_allocate_to_pool,
        "set_release_pool": <size_t> <void*> release_pool,
    }
