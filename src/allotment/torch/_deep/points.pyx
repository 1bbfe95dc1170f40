"""What PyTorch's allocator interface asks of our allocators beyond the entry points: see allotment_points.h."""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset, strdup

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.engine_allocator cimport EVERYTHING
from allotment._allocators.caching.entry_points cimport (
    EntryPoints, block_size, entry_points_of, follow_current_stream, last_exception)
from allotment._core.contract.table cimport OK, DeviceTable
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.edge.checkpoint cimport AddressList, pool_addresses
from allotment._core.edge.contexts_in_use cimport contexts_in_use
from allotment._core.edge.walk cimport (
    STATE_ALLOCATED, STATE_PENDING_FREE, Arrangement, BlockCopy, SegmentCopy, arrangement_clear, walk_segments)
from allotment._core.edge.words cimport NO_CONTEXT
from allotment._core.engine cimport (
    engine_empty_cache, engine_enter, engine_is_inside, engine_leave, engine_try_enter)
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.mechanism.pool cimport (
    pool_create_or_incref, pool_find, pool_set_no_split, pool_set_use_on_oom)
from allotment._core.mechanism.shortage cimport callback_add, largest_free_block
from allotment._core.model.model cimport (
    FAILED_DEVICE, FAILED_POOL_UNKNOWN, Block, Engine, Failure, Placement, Pool, RawAllocator, drop_t)
from allotment._core.placement.registry cimport placement_named
from allotment._core.records.history cimport name_of, show_foreign_with
from allotment._core.records.stats cimport tally_now
from allotment._core.records.tenants cimport FOREIGN_STACK, stack_of
from allotment._core.records.trace cimport TraceRecord, trace_relay

from allotment._allocators.opened import _open_torch
from allotment._core.records.history import (
    get_user_metadata, pop_compile_context, push_compile_context, set_user_metadata)
from allotment._rules import has, rules_of
from allotment._settings import parse_leniently, pytorch_caching_disabled
from allotment._texts import pytorch_exact_address, pytorch_out_of_memory
from allotment.errors import AddressError, OutOfMemoryError, PoolError, SettingsError, UnsupportedError

ctypedef void (*visit_address_t)(void* self, uint64_t address) noexcept nogil

cdef extern from "allotment_points.h":
    enum:
        ALLOTMENT_POINTS_VERSION
        ALLOTMENT_DEVICES_MOST
        ALLOTMENT_FOREIGN_CONTEXT
        ALLOTMENT_FAILED
        ALLOTMENT_OUT_OF_MEMORY
        ALLOTMENT_REJECTED
        ALLOTMENT_NOT_OURS
        ALLOTMENT_EXPANDABLE
    ctypedef struct allotment_failure:
        int kind
        char* text
        uint64_t requested, segment, most, device_free, allocated, reserved
    ctypedef struct allotment_stat:
        int64_t current, peak, allocated, freed
    ctypedef struct allotment_stats:
        int64_t num_alloc_retries, num_ooms, num_oom_rejections, num_sync_all_streams
        int64_t num_device_alloc, num_device_free, max_split_size
        allotment_stat[3] allocation, segment, active, inactive_split
        allotment_stat[3] allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes
        allotment_stat oversize_allocations, oversize_segments
    ctypedef struct allotment_record:
        int action, device
        uint64_t address, size, stream, pool_first, pool_second
        int64_t time_us
        uint32_t context
        const char* compile_context
        const char* user_metadata
        const char* internal_metadata
    ctypedef struct allotment_segment:
        uint64_t address, total, allocated, active, requested, stream, pool_first, pool_second
        uint32_t context
        int is_small, is_expandable
    ctypedef struct allotment_block:
        uint64_t address, size, requested
        int allocated, active
        uint32_t context
    ctypedef struct allotment_snapshot_visitor:
        void* self
        void (*record)(void* self, const allotment_record* record) noexcept nogil
        void (*segment)(void* self, const allotment_segment* segment) noexcept nogil
        void (*block)(void* self, const allotment_block* block) noexcept nogil
        void (*annotation)(void* self, int device, int64_t time_us) noexcept nogil
        void (*pair)(void* self, const char* key, const char* value) noexcept nogil
    ctypedef struct allotment_framework:
        size_t size
        uint32_t (*gather)() noexcept nogil
        void (*frames)(uint32_t context, void (*visit)(void*, const char*, const char*, int64_t) noexcept,
                       void* self) noexcept nogil
        void (*record)(const allotment_record* record) noexcept nogil
        int (*free_memory)() noexcept nogil
        uint64_t (*current_stream)(int device) noexcept nogil
    ctypedef struct allotment_raw_allocator:
        void* self
        uint64_t (*allocate)(void* self, size_t size, uint64_t stream) noexcept nogil
        void (*free)(void* self, uint64_t address, size_t size, uint64_t stream) noexcept nogil
        void (*drop)(void* self) noexcept nogil
    ctypedef struct allotment_points:
        size_t size
        uint32_t version
        const allotment_failure* (*failure)() noexcept nogil
        void* const* tables
        void* (*table_of)(int) noexcept nogil
        void (*take_failure)(int) noexcept nogil
        void (*serve)(const allotment_framework*) noexcept nogil
        size_t (*block_size)(int, void*) noexcept nogil
        uint32_t (*block_context)(int, const void*) noexcept nogil
        void (*gauges)(int, int64_t*, int64_t*) noexcept nogil
        int (*largest_block)(int, size_t*) noexcept nogil
        int (*empty_cache)(int, uint64_t, uint64_t) noexcept nogil
        int (*create_or_incref_pool)(int, uint64_t, uint64_t, const allotment_raw_allocator*) noexcept nogil
        int (*pool_use_count)(int, uint64_t, uint64_t) noexcept nogil
        int (*set_use_on_oom)(int, uint64_t, uint64_t, int) noexcept nogil
        int (*set_no_split)(int, uint64_t, uint64_t) noexcept nogil
        int (*live_addresses)(int, uint64_t, uint64_t, visit_address_t, void*) noexcept nogil
        int (*is_recording)(int) noexcept nogil
        int (*contexts_in_use)(void (*)(void*, uint32_t) noexcept nogil, void*) noexcept nogil
        int (*track)(int) noexcept nogil
        int (*stats)(int, allotment_stats*, void (*)(void*, uint64_t, uint64_t, const allotment_stat*) noexcept nogil,
                     void*) noexcept nogil
        int (*reset_stats)(int, int) noexcept nogil
        double (*memory_fraction)(int) noexcept nogil
        int (*set_memory_fraction)(int, double) noexcept nogil
        int (*enable)(int) noexcept nogil
        int (*is_enabled)() noexcept nogil
        int (*configure)(const char*) noexcept nogil
        int (*record_history)(int, int, size_t, int, const char* const*, size_t, int) noexcept nogil
        int (*annotate)(int, const char* const*, const char* const*, size_t) noexcept nogil
        int (*annotate_block)(int, const void*, const char*) noexcept nogil
        void (*push_compile_context)(const char*) noexcept nogil
        void (*pop_compile_context)() noexcept nogil
        void (*set_user_metadata)(const char*) noexcept nogil
        const char* (*user_metadata)() noexcept nogil
        int (*snapshot)(int, uint64_t, uint64_t, int, const allotment_snapshot_visitor*) noexcept nogil
        void* (*checkpoint)(int, uint64_t, uint64_t) noexcept nogil
        int (*restore)(int, void*, visit_address_t, visit_address_t, void*) noexcept nogil
        void (*drop_state)(void*) noexcept nogil
        int (*share)(int, void*, uint64_t*, void (*)(void*, const char*, size_t) noexcept nogil, void*) noexcept nogil
        void* (*open_shared)(int, const char*, size_t, uint64_t*) noexcept nogil
        void (*close_shared)(void*) noexcept nogil
        int (*enable_peer)(int, int) noexcept nogil
        int (*expandable_sizes)(int, void (*)(void*, uint64_t, int, uint64_t) noexcept nogil, void*) noexcept nogil
        void* (*allocate_at)(int, size_t, void*, uint64_t) noexcept nogil

cdef extern from *:
    """
    static __thread allotment_failure allotment_failed;
    static __thread char* allotment_metadata_text;
    #if PY_VERSION_HEX < 0x030D0000
    #define Py_IsFinalizing _Py_IsFinalizing
    #endif
    """
    allotment_failure failed "allotment_failed"
    char* metadata_text "allotment_metadata_text"
    int Py_IsFinalizing() nogil

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    ctypedef struct PyThreadState
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)
    const char* PyUnicode_AsUTF8(object text) except NULL

assert FOREIGN_STACK == ALLOTMENT_FOREIGN_CONTEXT

cdef EntryPoints* tables[64]        # ALLOTMENT_DEVICES_MOST
cdef Engine* engines[64]
cdef const int* levels[64]          # what contexts are gathered for
cdef dict tenants = {}              # device index -> Tenant, of each table
cdef object settle = None           # device index -> Tenant, given by `serve_with`
cdef object process_state = None    # likewise
cdef allotment_framework framework
cdef bint gathers = False           # contexts are the framework's
cdef bint tracks = False
cdef int marks[64]                  # where an exact address is noted: see `tell_record`
cdef dict marked_texts = {}
cdef const Placement* plain_placement = placement_named("torch")
cdef bytes no_context = NO_CONTEXT.encode()
cdef const char* NOTHING = no_context
cdef const char* EMPTY = b""
cdef const char* EXACT_ADDRESS = b"mallocWithAddress"
cdef dict fractions = {}            # device index -> what it was limited to before it was used


# --- failing -------------------------------------------------------------------------------------------------

cdef dict POOL_WORDS = {
    "already recording": "beginAllocateToPool: already recording to mempool_id",
    "not currently recording": "endAllocatePool: not currently recording to mempool_id",
    "has released it": "Not expected to checkpoint freeable graph",
    "there is no pool": "Could not find pool of id",
}


cdef str words_of(object error):
    """A failure as PyTorch says it, where it has words for it."""
    if isinstance(error, OutOfMemoryError):
        allocator = tenants[error.facts.device_index].allocator
        return pytorch_out_of_memory(error.facts, rules=rules_of(allocator.settings.compat))
    if isinstance(error, PoolError):
        for ours, theirs in POOL_WORDS.items():
            if ours in str(error):
                return theirs
    if isinstance(error, AddressError):
        return f"invalid device pointer: {error.address:#x}"
    if isinstance(error, UnsupportedError) and error.operation == "base_allocation":
        return (
            "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using"
            " expandable_segments:False in data loading workers via"
            " torch.cuda.memory._set_allocator_settings('expandable_segments:False')")
    return str(error)


cdef int kind_of(object error):
    if isinstance(error, OutOfMemoryError):
        return ALLOTMENT_REJECTED if error.facts.rejected else ALLOTMENT_OUT_OF_MEMORY
    if isinstance(error, AddressError):
        return ALLOTMENT_NOT_OURS
    return ALLOTMENT_FAILED


cdef int note(object error) noexcept:
    """An exception becomes the calling thread's failure; always 0."""
    free(failed.text)
    memset(&failed, 0, sizeof(allotment_failure))
    failed.kind = ALLOTMENT_FAILED
    try:
        failed.kind = kind_of(error)
        if isinstance(error, OutOfMemoryError):
            facts = error.facts
            failed.requested = facts.requested
            failed.segment = facts.segment_size
            failed.most = facts.device_total if facts.limit is None else facts.limit
            failed.device_free = facts.device_free
            failed.allocated = facts.allocated
            failed.reserved = facts.reserved
        failed.text = strdup(words_of(error).encode())
    except BaseException as another:
        failed.text = strdup(repr(another).encode())
    return 0


cdef int fail(int device, const Failure* failure) noexcept with gil:
    """A failure of the engine becomes the calling thread's; always 0."""
    cdef Allocator allocator
    try:
        allocator = tenants[device].allocator
        return note(allocator.failed(failure))
    except BaseException as error:
        return note(error)


cdef const allotment_failure* failure() noexcept nogil:
    return &failed


cdef void take_failure(int device) noexcept with gil:
    try:
        error = last_exception(tables[device])
        note(error)
    except BaseException as error:
        note(error)


# --- which allocator -----------------------------------------------------------------------------------------

cdef void* table_of(int device) noexcept nogil:
    if 0 <= device < ALLOTMENT_DEVICES_MOST and tables[device] != NULL:
        return tables[device]
    return new_table_of(device)


cdef void* new_table_of(int device) noexcept with gil:
    try:
        return settled_table(device)
    except BaseException as error:
        note(error)
        return NULL


cdef EntryPoints* settled_table(int device) except NULL:
    cdef EntryPoints* table
    cdef Allocator allocator
    if not 0 <= device < ALLOTMENT_DEVICES_MOST:
        raise IndexError(f"devices are numbered 0 to {ALLOTMENT_DEVICES_MOST - 1}")
    with process_state.lock:
        if tables[device] != NULL:
            return tables[device]
        tenant = settle(device)
        allocator = tenant.allocator
        table = entry_points_of(tenant)
        follow_current_stream(table, current_stream_of)
        allocator.enter()
        if gathers:
            allocator.gather = framework.gather
        marks[device] = mark_of(allocator.rules)
        if tracks:
            trace_relay(&allocator.engine.trace, relay, <void*> <size_t> device)
        callback_add(allocator.engine, run_free_memory, <void*> run_free_memory)
        engine_leave(allocator.engine)
        if device in fractions:
            allocator.memory_fraction = fractions.pop(device)
        tenants[device] = tenant
        engines[device] = allocator.engine
        levels[device] = &allocator.level
        tables[device] = table
    return table


cdef stream_t current_stream_of(int device) noexcept nogil:
    return framework.current_stream(device)


cdef bint run_free_memory(void* self) noexcept nogil:
    return framework.free_memory()


cdef Allocator allocator_at(int device):
    settled_table(device)
    return tenants[device].allocator


cdef bint enter(Engine* engine) noexcept nogil:
    """Whoever holds the interpreter lock lets it go before waiting; False if this thread is inside already."""
    cdef PyThreadState* state
    if engine_try_enter(engine):
        return True
    if engine_is_inside(engine):
        return False
    if not PyGILState_Check():
        engine_enter(engine)
        return True
    state = PyEval_SaveThread()
    engine_enter(engine)
    PyEval_RestoreThread(state)
    return True


cdef int called_from_inside() noexcept with gil:
    return note(RuntimeError("the allocator was called from inside itself; a tracker and a filter may only free"))


# --- without the interpreter lock ----------------------------------------------------------------------------

cdef size_t size_of_block(int device, void* address) noexcept nogil:
    return block_size(tables[device], address) if tables[device] != NULL else 0


cdef uint32_t block_context(int device, const void* address) noexcept nogil:
    cdef Engine* engine = engines[device]
    cdef Block* block
    cdef uint32_t context = 0
    if engine == NULL or not enter(engine):
        return 0
    block = block_at(engine, <address_t> address)
    if block != NULL:
        context = shown_context(block.context)
    engine_leave(engine)
    return context


cdef inline uint32_t shown_context(uint32_t context) noexcept nogil:
    return stack_of(context) if stack_of(context) >= FOREIGN_STACK else 0


cdef void gauges(int device, int64_t* allocated, int64_t* reserved) noexcept nogil:
    """A moment's figures, which another thread may be changing."""
    cdef Engine* engine = engines[device]
    if engine != NULL:
        allocated[0] = tally_now(&engine.stats.allocated_bytes)
        reserved[0] = tally_now(&engine.stats.reserved_bytes)


cdef int largest_block(int device, size_t* largest) noexcept nogil:
    cdef Engine* engine = engines[device]
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
    if not enter(engine):
        return called_from_inside()
    found = largest_free_block(engine)
    engine_leave(engine)
    largest[0] = max(<bytes_t> largest[0], found)
    return 1


cdef int empty_cache(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = engines[device]
    cdef Failure failure
    cdef uint32_t context = 0
    cdef bint ok
    if gathers and levels[device][0] >= EVERYTHING and not Py_IsFinalizing():
        context = framework.gather()
    if not enter(engine):
        return called_from_inside()
    ok = engine_empty_cache(engine, first, second, context, &failure)
    engine_leave(engine)
    return 1 if ok else fail(device, &failure)


ctypedef address_t (*raw_allocate_t)(void* self, bytes_t size, stream_t stream) noexcept nogil
ctypedef void (*raw_free_t)(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil


cdef int create_or_incref_pool(
        int device, uint64_t first, uint64_t second, const allotment_raw_allocator* source) noexcept nogil:
    cdef Engine* engine = engines[device]
    cdef const Placement* placement = NULL
    cdef RawAllocator raw
    cdef Failure failure
    cdef bint ok
    if source != NULL:
        raw.allocate = <raw_allocate_t> source.allocate
        raw.free = <raw_free_t> source.free
        raw.drop = <drop_t> source.drop
        raw.self = source.self
        placement = plain_placement     # the one that can do with segments of somebody else's
    if not enter(engine):
        return called_from_inside()
    ok = pool_create_or_incref(engine, first, second, NULL if source == NULL else &raw, placement, &failure)
    engine_leave(engine)
    return 1 if ok else fail(device, &failure)


cdef int unknown_pool(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Failure failure
    memset(&failure, 0, sizeof(Failure))
    failure.reason = FAILED_POOL_UNKNOWN
    failure.pool_first = first
    failure.pool_second = second
    return fail(device, &failure)


cdef int pool_use_count(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = engines[device]
    cdef Pool* pool
    cdef int count = -1
    if not enter(engine):
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
    cdef Engine* engine = engines[device]
    cdef Failure failure
    cdef bint ok
    if not enter(engine):
        return called_from_inside()
    ok = pool_set_use_on_oom(engine, first, second, on, &failure)
    engine_leave(engine)
    return 1 if ok else fail(device, &failure)


cdef int set_no_split(int device, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = engines[device]
    cdef Failure failure
    cdef bint ok
    if not enter(engine):
        return called_from_inside()
    ok = pool_set_no_split(engine, first, second, &failure)
    engine_leave(engine)
    return 1 if ok else fail(device, &failure)


cdef int live_addresses(int device, uint64_t first, uint64_t second, visit_address_t visit,
                        void* self) noexcept nogil:
    cdef Engine* engine = engines[device]
    cdef AddressList found
    cdef Failure failure
    cdef size_t i
    cdef bint ok
    memset(&found, 0, sizeof(AddressList))
    if not enter(engine):
        return called_from_inside()
    ok = pool_addresses(engine, first, second, &found, &failure)
    engine_leave(engine)
    if ok:
        for i in range(found.count):
            visit(self, found.addresses[i])
    free(found.addresses)
    return 1 if ok else fail(device, &failure)


cdef int is_recording(int device) noexcept nogil:
    if 0 <= device < ALLOTMENT_DEVICES_MOST and engines[device] != NULL:
        return engines[device].trace.history
    return will_record()


cdef int will_record() noexcept with gil:
    """Of a device that was not used yet: what the others do."""
    return process_state.history is not None


cdef int all_contexts_in_use(void (*visit)(void*, uint32_t) noexcept nogil, void* self) noexcept nogil:
    cdef Engine* engine
    cdef int device
    for device in range(ALLOTMENT_DEVICES_MOST):
        engine = engines[device]
        if engine == NULL:
            continue
        if not enter(engine):
            return 0
        contexts_in_use(engine, visit, self)
        engine_leave(engine)
    return 1


# --- records -------------------------------------------------------------------------------------------------

cdef const char* text_of(uint32_t name) noexcept with gil:
    """Valid for good: names are kept, and a text keeps its UTF-8."""
    try:
        return PyUnicode_AsUTF8(name_of(name))
    except BaseException:
        return EMPTY


cdef void tell_record(allotment_record* told, const TraceRecord* record, int device, int mark) noexcept nogil:
    """`mark` is where an exact address is noted: 0 nowhere, 1 behind the user's metadata, 2 in a field of its own."""
    told.action = record.action
    told.device = device
    told.address = record.address
    told.size = record.size
    told.stream = record.stream
    told.pool_first = record.pool_first
    told.pool_second = record.pool_second
    told.time_us = record.time_us
    told.context = shown_context(record.stack)
    told.compile_context = NOTHING if record.compile_context == 0 else text_of(record.compile_context)
    told.user_metadata = EMPTY if record.metadata == 0 else text_of(record.metadata)
    told.internal_metadata = EXACT_ADDRESS if record.exact_address and mark == 2 else EMPTY
    if record.exact_address and mark == 1:
        told.user_metadata = EXACT_ADDRESS if record.metadata == 0 else marked_text_of(record.metadata)


cdef const char* marked_text_of(uint32_t name) noexcept with gil:
    try:
        text = marked_texts.setdefault(name, f"{name_of(name)}\nmallocWithAddress")
        return PyUnicode_AsUTF8(text)
    except BaseException:
        return EMPTY


cdef int mark_of(object rules):
    return {"user": 1, "internal": 2}.get(rules.exact_address_mark, 0)


cdef void relay(void* listener, const TraceRecord* record) noexcept nogil:
    """A tracker of the engine's trace; `listener` is the device's index."""
    cdef allotment_record told
    tell_record(&told, record, <int> <size_t> listener, marks[<size_t> listener])
    framework.record(&told)


cdef int track(int on) noexcept with gil:
    global tracks
    cdef Allocator allocator
    try:
        with process_state.lock:
            tracks = on
            for device, tenant in tenants.items():
                allocator = tenant.allocator
                allocator.enter()
                if on:
                    trace_relay(&allocator.engine.trace, relay, <void*> <size_t> device)
                else:
                    trace_relay(&allocator.engine.trace, NULL, NULL)
                engine_leave(allocator.engine)
        return 1
    except BaseException as error:
        return note(error)


# --- with the interpreter lock -------------------------------------------------------------------------------

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
    """Of a device that was not used yet: zeros."""
    cdef allotment_stat[3] reserved
    try:
        memset(out, 0, sizeof(allotment_stats))
        if device not in tenants:
            out.max_split_size = <int64_t> <uint64_t> process_state.settings.max_split_size
            return 1
        found = tenants[device].allocator.nested_stats()
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
            tenants[device].allocator.reset_peak_stats()
        else:
            tenants[device].allocator.reset_accumulated_stats()
        return 1
    except BaseException as error:
        return note(error)


cdef double memory_fraction(int device) noexcept with gil:
    try:
        if device not in tenants:
            return fractions.get(device, process_state.settings.per_process_memory_fraction)
        return tenants[device].allocator.memory_fraction
    except BaseException as error:
        note(error)
        return 1.0


cdef int set_memory_fraction(int device, double fraction) noexcept with gil:
    try:
        if device in tenants:
            tenants[device].allocator.memory_fraction = fraction
        else:
            fractions[device] = fraction
        return 1
    except BaseException as error:
        return note(error)


cdef int enable(int on) noexcept with gil:
    try:
        with process_state.lock:
            process_state.caching = bool(on)
            for tenant in tenants.values():
                tenant.allocator.caching = process_state.caching and not pytorch_caching_disabled()
        return 1
    except BaseException as error:
        return note(error)


cdef int is_enabled() noexcept with gil:
    return process_state.caching


cdef int configure(const char* text) noexcept with gil:
    try:
        given = text.decode()
        with process_state.lock:
            for tenant in tenants.values():
                try:
                    tenant.allocator.configure(given, lenient=True)
                except SettingsError:
                    pass        # PyTorch's own parser has had its say
            process_state.settings, _ = parse_leniently(given, process_state.settings)
        return 1
    except BaseException as error:
        return note(error)


cdef int record_history(int on, int level, size_t most, int clear, const char* const* skip, size_t skip_count,
                        int is_foreign) noexcept with gil:
    global gathers
    cdef Allocator allocator
    cdef size_t i
    try:
        names = {skip[i].decode() for i in range(skip_count)}
        wish = {
            "enabled": "all" if on else None,
            "context": (None, "state", "alloc", "all")[level] if on else None,
            "max_entries": min(most, 1 << 61),
            "clear_history": bool(clear),
            "skip_actions": names,
        }
        with process_state.lock:
            gathers = on and is_foreign
            process_state.history = {**wish, "skip_actions": skippable(process_state.settings, names)} if on else None
            for tenant in tenants.values():
                allocator = tenant.allocator
                allocator.record_history(**{**wish, "skip_actions": skippable(allocator.settings, names)})
                if gathers:
                    allocator.gather = framework.gather
        return 1
    except BaseException as error:
        return note(error)


def skippable(settings: Settings, names: set[str]) -> set[str]:
    """What can be left out of a history by the rules of a version: the others are passed over."""
    return names if has(settings.compat, "2.13") else names & process_state.SKIPPABLE


cdef int annotate(int device, const char* const* keys, const char* const* values, size_t count) noexcept with gil:
    cdef size_t i
    try:
        allocator_at(device).record_annotation({keys[i].decode(): values[i].decode() for i in range(count)})
        return 1
    except BaseException as error:
        return note(error)


cdef int annotate_block(int device, const void* address, const char* text) noexcept with gil:
    try:
        tenants[device].allocator.annotate(<size_t> address, text.decode())
        return 1
    except BaseException as error:
        return note(error)


cdef void push_context(const char* name) noexcept with gil:
    try:
        push_compile_context(name.decode())
    except BaseException as error:
        note(error)


cdef void pop_context() noexcept with gil:
    try:
        pop_compile_context()
    except BaseException as error:
        note(error)


cdef void put_user_metadata(const char* text) noexcept with gil:
    try:
        set_user_metadata(text.decode())
    except BaseException as error:
        note(error)


cdef const char* user_metadata() noexcept with gil:
    global metadata_text
    try:
        free(metadata_text)
        metadata_text = strdup(get_user_metadata().encode())
        return EMPTY if metadata_text == NULL else <const char*> metadata_text
    except BaseException as error:
        note(error)
        return EMPTY


cdef int snapshot(int device, uint64_t first, uint64_t second, int with_records,
                  const allotment_snapshot_visitor* visitor) noexcept with gil:
    cdef Allocator allocator
    cdef Arrangement arrangement
    cdef TraceRecord* copies = NULL
    cdef size_t count = 0
    cdef size_t i
    cdef int mark
    cdef bint ok
    cdef allotment_record told
    memset(&arrangement, 0, sizeof(Arrangement))
    try:
        allocator = tenants[device].allocator
        mark = mark_of(allocator.rules)
        for note_ in list(allocator.annotations):
            show_annotation(note_, visitor)
        if with_records:
            copies = allocator.copy_history(&count)
            for i in range(count):
                tell_record(&told, &copies[i], device, mark)
                visitor.record(visitor.self, &told)
        allocator.enter()
        with nogil:
            ok = walk_segments(allocator.engine, first, second, &arrangement)
            engine_leave(allocator.engine)
        if not ok:
            raise MemoryError("the host has no memory for a snapshot")
        for i in range(arrangement.segment_count):
            show_segment(&arrangement, &arrangement.segments[i], visitor)
        return 1
    except BaseException as error:
        return note(error)
    finally:
        free(copies)
        arrangement_clear(&arrangement)


cdef int show_annotation(dict annotation, const allotment_snapshot_visitor* visitor) except -1:
    visitor.annotation(visitor.self, annotation["device"], annotation["time_us"])
    for key, value in annotation.items():
        if key not in ("device", "time_us"):
            visitor.pair(visitor.self, str(key).encode(), str(value).encode())
    return 0


cdef void show_segment(const Arrangement* arrangement, const SegmentCopy* segment,
                       const allotment_snapshot_visitor* visitor) noexcept nogil:
    cdef const BlockCopy* block
    cdef allotment_segment told
    cdef allotment_block piece
    cdef size_t i
    told.address = segment.address
    told.total = segment.total
    told.allocated = segment.allocated
    told.active = segment.active
    told.requested = segment.requested
    told.stream = segment.stream
    told.pool_first = segment.pool_first
    told.pool_second = segment.pool_second
    told.context = shown_context(segment.context)
    told.is_small = segment.is_small
    told.is_expandable = segment.is_expandable
    visitor.segment(visitor.self, &told)
    for i in range(segment.block_count):
        block = &arrangement.blocks[segment.first_block + i]
        piece.address = block.address
        piece.size = block.size
        piece.requested = block.requested
        piece.allocated = block.state == STATE_ALLOCATED
        piece.active = block.state == STATE_ALLOCATED or block.state == STATE_PENDING_FREE
        piece.context = shown_context(block.context)
        visitor.block(visitor.self, &piece)


cdef void* checkpoint(int device, uint64_t first, uint64_t second) noexcept with gil:
    try:
        state = tenants[device].allocator.checkpoint_pool((first, second))
        Py_INCREF(state)
        return <void*> state
    except BaseException as error:
        note(error)
        return NULL


cdef int restore(int device, void* state, visit_address_t freed, visit_address_t created, void* self) noexcept with gil:
    try:
        gone, back = tenants[device].allocator.restore_pool(<object> state)
        for address in gone:
            freed(self, address)
        for address in back:
            created(self, address)
        return 1
    except BaseException as error:
        return note(error)


cdef void drop_state(void* state) noexcept nogil:
    if not Py_IsFinalizing():
        drop_object(state)


cdef void drop_object(void* held) noexcept with gil:
    Py_DECREF(<object> held)


cdef int share(int device, void* address, uint64_t* offset,
               void (*handle)(void*, const char*, size_t) noexcept nogil, void* self) noexcept with gil:
    cdef bytes written
    try:
        offset[0], written = tenants[device].allocator.share_torch(<size_t> address)
        handle(self, written, len(written))
        return 1
    except BaseException as error:
        return note(error)


cdef void* open_shared(int device, const char* data, size_t length, uint64_t* address) noexcept with gil:
    try:
        opened, address[0] = _open_torch(data[:length], 0, 0, tenants[device].allocator.device)
        held = (opened, <uint64_t> address[0])
        Py_INCREF(held)
        return <void*> held
    except BaseException as error:
        note(error)
        return NULL


cdef void close_shared(void* held) noexcept nogil:
    if not Py_IsFinalizing():
        close_opened(held)


cdef void close_opened(void* held) noexcept with gil:
    try:
        opened, address = <object> held
        opened.free(address)
    except BaseException as error:
        note(error)
    Py_DECREF(<object> held)


cdef int enable_peer(int owner, int peer) noexcept with gil:
    try:
        allocator_at(owner).enable_peer_access(peer)
        return 1
    except BaseException as error:
        return note(error)


cdef int expandable_sizes(int device, void (*visit)(void*, uint64_t, int, uint64_t) noexcept nogil,
                          void* self) noexcept with gil:
    try:
        for stream, is_small, mapped in tenants[device].allocator.expandable_segment_sizes():
            visit(self, stream, is_small, mapped)
        return 1
    except BaseException as error:
        return note(error)


cdef void* allocate_at(int device, size_t size, void* address, uint64_t stream) noexcept with gil:
    try:
        return <void*> <size_t> tenants[device].allocator.malloc_at(size, <size_t> address, stream)
    except AddressError as error:
        failed_at = RuntimeError(pytorch_exact_address(error.address))
        note(failed_at)
        return NULL
    except BaseException as error:
        note(error)
        return NULL


# --- the other half ------------------------------------------------------------------------------------------

cdef void add_frame(void* frames, const char* name, const char* file, int64_t line) noexcept with gil:
    (<list> frames).append({"name": name.decode(errors="replace"), "filename": file.decode(errors="replace"),
                            "line": line})


def frames_of(context: int) -> list[dict[str, Any]]:
    """The frames of one of PyTorch's contexts, innermost first."""
    cdef list frames = []
    cdef uint32_t number = context
    cdef void* into = <void*> frames
    with nogil:
        framework.frames(number, add_frame, into)
    return frames


cdef void serve(const allotment_framework* given) noexcept with gil:
    global framework
    framework = given[0]
    try:
        show_foreign_with(frames_of)
    except BaseException as error:
        note(error)


def serve_with(function: Callable[[int], Tenant], state: ProcessState) -> None:
    """Who serves a device: asked once a device, when memory of it is first wanted. `state` is what all are told."""
    global settle, process_state
    settle = function
    process_state = state


def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""
    return allocator_at(device)


def used_devices() -> list[int]:
    """The devices that PyTorch has asked for memory."""
    return sorted(tenants)


cdef allotment_points table
memset(&table, 0, sizeof(allotment_points))
table.size = sizeof(allotment_points)
table.version = ALLOTMENT_POINTS_VERSION
table.failure = failure
table.tables = <void* const*> tables
table.table_of = table_of
table.take_failure = take_failure
table.serve = serve
table.block_size = size_of_block
table.block_context = block_context
table.gauges = gauges
table.largest_block = largest_block
table.empty_cache = empty_cache
table.create_or_incref_pool = create_or_incref_pool
table.pool_use_count = pool_use_count
table.set_use_on_oom = set_use_on_oom
table.set_no_split = set_no_split
table.live_addresses = live_addresses
table.is_recording = is_recording
table.contexts_in_use = all_contexts_in_use
table.track = track
table.stats = stats
table.reset_stats = reset_stats
table.memory_fraction = memory_fraction
table.set_memory_fraction = set_memory_fraction
table.enable = enable
table.is_enabled = is_enabled
table.configure = configure
table.record_history = record_history
table.annotate = annotate
table.annotate_block = annotate_block
table.push_compile_context = push_context
table.pop_compile_context = pop_context
table.set_user_metadata = put_user_metadata
table.user_metadata = user_metadata
table.snapshot = snapshot
table.checkpoint = checkpoint
table.restore = restore
table.drop_state = drop_state
table.share = share
table.open_shared = open_shared
table.close_shared = close_shared
table.enable_peer = enable_peer
table.expandable_sizes = expandable_sizes
table.allocate_at = allocate_at


def address() -> int:
    """The table of points, for the stand-in."""
    return <size_t> &table
