from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strlen

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport (
    block_size, entry_points_of, follow_current_stream, last_failure)
from allotment._allocators.pinned.allocator cimport PinnedAllocator, note_need
from allotment._allocators.pinned.blocks cimport (
    CALLED_FROM_INSIDE, DEVICE_SAID_NO, NO_PINNED_MEMORY, NO_RECORDS, NOT_LENT, PINNED_RETURNED, Fault, PinnedBlocks,
    pinned_listener_t, pinned_visit_t, pool_words)
from allotment._allocators.pinned.points cimport (
    ALLOTMENT_PINNED_FAILED, ALLOTMENT_PINNED_NOT_OURS, ALLOTMENT_PINNED_OUT_OF_MEMORY, ALLOTMENT_PINNED_VERSION,
    Context, allotment_pinned_count, allotment_pinned_points, allotment_pinned_settings, allotment_pinned_stats,
    allotment_pinned_time)
from allotment._allocators.pinned.memory cimport host_stream
from allotment._core.contract.table cimport OK, DeviceTable
from allotment._core.contract.types cimport capture_t, stream_t
from allotment._core.engine cimport engine_leave
from allotment._core.model.model cimport FAILED_ADDRESS, FAILED_OUT_OF_MEMORY, drop_t, filter_t
from allotment._core.records.trace cimport TraceRecord, tracker_t, trace_relay
from allotment._core.tools.forks cimport SHORT_LOCK, guard_forks
from allotment._core.tools.lock cimport lock_give, lock_try, lock_wait_outside
from allotment._core.tools.pointer_map cimport map_get, map_init, map_pop, map_put, map_reserve

cdef enum:
    WORDS_MOST = 512

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #define ALLOTMENT_PINNED_THREAD __declspec(thread)
    #else
    #define ALLOTMENT_PINNED_THREAD __thread
    #endif
    static ALLOTMENT_PINNED_THREAD char allotment_pinned_words[512];
    static ALLOTMENT_PINNED_THREAD size_t allotment_pinned_length;
    static ALLOTMENT_PINNED_THREAD int allotment_pinned_kind;
    """
    char* last_words "allotment_pinned_words"
    size_t last_length "allotment_pinned_length"
    int last_kind "allotment_pinned_kind"

cdef extern from "Python.h" nogil:
    int snprintf(char* text, size_t capacity, const char* form, ...)

# Of a block that was allocated inside a capture.
cdef void* NOT_USED = <void*> <size_t> 1
cdef void* USED = <void*> <size_t> 2
cdef void* FREED = <void*> <size_t> 3    # and used by a stream, so it is never handed out again


# --- the text of a failure ---

cdef int set_failure(int kind, const char* words) noexcept nogil:
    global last_length, last_kind
    last_length = min(strlen(words), <size_t> WORDS_MOST)
    memcpy(last_words, words, last_length)
    last_kind = kind
    return 0


cdef int say_fault(Context* context, const Fault* fault) noexcept nogil:
    global last_length, last_kind
    cdef DeviceTable* device
    if fault.reason == NO_PINNED_MEMORY:
        last_length = snprintf(
            last_words, WORDS_MOST, b"out of pinned memory: %llu bytes were requested, %llu are in use; free some",
            <unsigned long long> fault.size, <unsigned long long> (<PinnedBlocks> context.blocks).active_now())
        last_kind = ALLOTMENT_PINNED_OUT_OF_MEMORY
        return 0
    if fault.reason == NO_RECORDS:
        return set_failure(ALLOTMENT_PINNED_OUT_OF_MEMORY, b"the host has no memory for the records of pinned memory")
    if fault.reason == NOT_LENT:
        return set_failure(ALLOTMENT_PINNED_NOT_OURS, b"no block of pinned memory in use starts at the address")
    if fault.reason == CALLED_FROM_INSIDE:
        return set_failure(ALLOTMENT_PINNED_FAILED, b"the allocator of pinned memory was called from inside itself")
    if fault.reason != DEVICE_SAID_NO:
        return set_failure(ALLOTMENT_PINNED_FAILED, pool_words(fault.reason))
    set_failure(ALLOTMENT_PINNED_FAILED, b"the device refused")
    device = (<PinnedBlocks> context.blocks).device
    if device.describe != NULL:
        last_length = device.describe(device.self, last_words, WORDS_MOST)
    return 0


cdef int say_failure_of_engine(Context* context) noexcept nogil:
    global last_length, last_kind
    last_length = context.tight.last_error(context.tight.context, last_words, WORDS_MOST)
    last_kind = ALLOTMENT_PINNED_FAILED
    if last_failure().reason == FAILED_OUT_OF_MEMORY:
        last_kind = ALLOTMENT_PINNED_OUT_OF_MEMORY
    elif last_failure().reason == FAILED_ADDRESS:
        last_kind = ALLOTMENT_PINNED_NOT_OURS
    return 0


cdef int say_exception(object error) noexcept:
    try:
        return set_failure(ALLOTMENT_PINNED_FAILED, str(error).encode())
    except BaseException:
        return set_failure(ALLOTMENT_PINNED_FAILED, b"the pinned allocator failed, and so did making the message")


cdef size_t last_error(void* self, char* text, size_t capacity, int* failure) noexcept nogil:
    cdef size_t length = min(last_length, capacity)
    memcpy(text, last_words, length)
    if failure != NULL:
        failure[0] = last_kind
    return length


# --- the mode "torch" ---

cdef uint64_t allocate(void* self, size_t size) noexcept nogil:
    cdef Fault fault
    cdef uint64_t address = (<PinnedBlocks> (<Context*> self).blocks).serve(size, &fault)
    if address == 0:
        say_fault(<Context*> self, &fault)
    return address


cdef int release(void* self, uint64_t address) noexcept nogil:
    cdef Fault fault
    return ((<PinnedBlocks> (<Context*> self).blocks).free(address, NULL, 0, &fault)
            or say_fault(<Context*> self, &fault))


cdef int is_lent(void* self, uint64_t address) noexcept nogil:
    return (<PinnedBlocks> (<Context*> self).blocks).is_lent(address)


cdef int record_stream(void* self, uint64_t address, uint64_t stream) noexcept nogil:
    cdef Fault fault
    return ((<PinnedBlocks> (<Context*> self).blocks).use(address, stream, &fault)
            or say_fault(<Context*> self, &fault))


cdef int empty_cache(void* self) noexcept nogil:
    cdef Fault fault
    return (<PinnedBlocks> (<Context*> self).blocks).empty(&fault) or say_fault(<Context*> self, &fault)


cdef int begin_allocate_to_pool(void* self, uint64_t first, uint64_t second, filter_t accepts, drop_t drop,
                                void* accepting) noexcept nogil:
    cdef Fault fault
    return ((<PinnedBlocks> (<Context*> self).blocks).begin_routing(first, second, accepts, drop, accepting, &fault)
            or say_fault(<Context*> self, &fault))


cdef int end_allocate_to_pool(void* self, uint64_t first, uint64_t second) noexcept nogil:
    cdef Fault fault
    return ((<PinnedBlocks> (<Context*> self).blocks).end_routing(first, second, &fault)
            or say_fault(<Context*> self, &fault))


cdef int release_pool(void* self, uint64_t first, uint64_t second) noexcept nogil:
    cdef Fault fault
    return ((<PinnedBlocks> (<Context*> self).blocks).release_pool(first, second, &fault)
            or say_fault(<Context*> self, &fault))


cdef int visit_blocks(void* self, pinned_visit_t visit, void* visiting) noexcept nogil:
    return (<PinnedBlocks> (<Context*> self).blocks).visit(visit, visiting)


cdef void listen(void* self, pinned_listener_t listener, void* listening) noexcept nogil:
    (<PinnedBlocks> (<Context*> self).blocks).listen(listener, listening)


cdef void follow(void* self, stream_t (*current)(int) noexcept nogil) noexcept nogil:
    (<PinnedBlocks> (<Context*> self).blocks).follow(current)


# --- the mode "tight" ---

cdef bint is_capturing(Context* context) noexcept nogil:
    """Whether the framework's current stream is in a capture; False while nothing is routed to a pool."""
    cdef DeviceTable* device = (<PinnedAllocator> context.allocator).memory.device
    cdef capture_t capture = 0
    if context.routes == 0 or context.current == NULL or device.capture_status == NULL:
        return False
    return device.capture_status(device.self, context.current(device.device), &capture) == OK and capture != 0


cdef inline void enter(Context* context) noexcept nogil:
    if not lock_try(&context.lock):
        lock_wait_outside(&context.lock)


cdef uint64_t allocate_tight(void* self, size_t size) noexcept nogil:
    cdef Context* context = <Context*> self
    cdef bint captured = is_capturing(context)
    cdef bint noted = True
    cdef void* address
    note_need(context.engine, context.most_needed, size)
    address = context.tight.allocate(context.tight.context, size, 0, <void*> host_stream())
    if address == NULL:
        return say_failure_of_engine(context)
    if captured:
        enter(context)
        noted = map_reserve(&context.captured, 1)
        if noted:
            map_put(&context.captured, <uint64_t> address, NOT_USED)
        lock_give(&context.lock)
    if not noted:
        context.tight.free(context.tight.context, address, 0, 0, NULL)
        return set_failure(ALLOTMENT_PINNED_OUT_OF_MEMORY, b"the host has no memory for the records of pinned memory")
    return <uint64_t> address


cdef int release_tight(void* self, uint64_t address) noexcept nogil:
    cdef Context* context = <Context*> self
    cdef void* state = NULL
    if context.captured.count != 0:
        enter(context)
        state = map_get(&context.captured, address)
        if state == USED:
            map_put(&context.captured, address, FREED)
        elif state == NOT_USED:
            map_pop(&context.captured, address)
        lock_give(&context.lock)
    if state == USED:
        return 1
    if state == FREED:
        return set_failure(ALLOTMENT_PINNED_NOT_OURS, b"no block of pinned memory in use starts at the address")
    return context.tight.free(context.tight.context, <void*> address, 0, 0, NULL) or say_failure_of_engine(context)


cdef bint is_freed(Context* context, uint64_t address) noexcept nogil:
    """Whether a block that the engine has in use is only kept from being handed out again."""
    cdef bint found = False
    if context.captured.count != 0:
        enter(context)
        found = map_get(&context.captured, address) == FREED
        lock_give(&context.lock)
    return found


cdef int is_lent_tight(void* self, uint64_t address) noexcept nogil:
    return block_size((<Context*> self).tight, <void*> address) != 0 and not is_freed(<Context*> self, address)


cdef int record_stream_tight(void* self, uint64_t address, uint64_t stream) noexcept nogil:
    cdef Context* context = <Context*> self
    if context.captured.count != 0:
        enter(context)
        if map_get(&context.captured, address) == NOT_USED:
            map_put(&context.captured, address, USED)
        lock_give(&context.lock)
    return (context.tight.record_stream(context.tight.context, <void*> address, <void*> stream)
            or say_failure_of_engine(context))


cdef int empty_cache_tight(void* self) noexcept nogil:
    cdef Context* context = <Context*> self
    return context.tight.empty_cache(context.tight.context) or say_failure_of_engine(context)


cdef void count_routes(Context* context, int change) noexcept nogil:
    enter(context)
    context.routes += change
    lock_give(&context.lock)


cdef int begin_tight(void* self, uint64_t first, uint64_t second, filter_t accepts, drop_t drop,
                     void* accepting) noexcept nogil:
    cdef Context* context = <Context*> self
    if not context.tight.begin_allocate_to_pool(context.tight.context, first, second, accepts, drop, accepting):
        return say_failure_of_engine(context)
    count_routes(context, 1)
    return 1


cdef int end_tight(void* self, uint64_t first, uint64_t second) noexcept nogil:
    cdef Context* context = <Context*> self
    if not context.tight.end_allocate_to_pool(context.tight.context, first, second):
        return say_failure_of_engine(context)
    count_routes(context, -1)
    return 1


cdef int release_pool_tight(void* self, uint64_t first, uint64_t second) noexcept nogil:
    cdef Context* context = <Context*> self
    return context.tight.release_pool(context.tight.context, first, second) or say_failure_of_engine(context)


cdef int visit_tight(void* self, pinned_visit_t visit, void* visiting) noexcept with gil:
    """Return the pieces of each segment, free ones too."""
    cdef Allocator tight = (<PinnedAllocator> (<Context*> self).allocator).tight
    try:
        for segment in tight.history.snapshot()["segments"]:
            first, second = segment["segment_pool_id"]
            for block in segment["blocks"]:
                allocated = block["state"] == "active_allocated" and not is_freed(<Context*> self, block["address"])
                visit(visiting, block["address"], block["size"], allocated, block["state"] != "inactive", first, second)
        return 1
    except BaseException as error:
        return say_exception(error)


cdef void relay(void* self, const TraceRecord* record) noexcept nogil:
    cdef Context* context = <Context*> self
    if record.action <= PINNED_RETURNED:
        context.listener(context.listening, record.action, record.address, record.size, record.pool_first,
                         record.pool_second)


cdef void listen_tight(void* self, pinned_listener_t listener, void* listening) noexcept with gil:
    cdef Context* context = <Context*> self
    cdef Allocator tight = (<PinnedAllocator> context.allocator).tight
    cdef tracker_t tracker = NULL
    if listener != NULL:
        tracker = relay
    try:
        tight.enter()
    except BaseException as error:
        say_exception(error)
        return
    context.listener, context.listening = listener, listening
    trace_relay(&tight.engine.trace, tracker, context)
    engine_leave(tight.engine)


cdef void follow_tight(void* self, stream_t (*current)(int) noexcept nogil) noexcept nogil:
    (<Context*> self).current = current
    follow_current_stream((<Context*> self).tight, current)


# --- both ---

cdef int put_count(allotment_pinned_count* out, dict counts) except -1:
    out.current, out.peak = counts["current"], counts["peak"]
    out.allocated, out.freed = counts["allocated"], counts["freed"]
    return 0


cdef int put_time(allotment_pinned_time* out, dict times) except -1:
    out.total, out.longest, out.shortest, out.count = times["total"], times["max"], times["min"], times["count"]
    return 0


cdef int stats(void* self, allotment_pinned_stats* out) noexcept with gil:
    cdef PinnedAllocator allocator = <PinnedAllocator> (<Context*> self).allocator
    memset(out, 0, sizeof(allotment_pinned_stats))
    try:
        counters = allocator.counters()
        put_count(&out.allocations, counters["allocations"])
        put_count(&out.allocated_bytes, counters["allocated_bytes"])
        put_count(&out.active_requests, counters["active_requests"])
        put_count(&out.active_bytes, counters["active_bytes"])
        put_time(&out.obtaining, counters["host_alloc_time"])
        put_time(&out.returning, counters["host_free_time"])
        for size_class, counts in counters["bucket_allocation"].items():
            out.classes[<int> int(size_class)] = counts["allocated"]
        return 1
    except BaseException as error:
        return say_exception(error)


cdef int reset(void* self, int only_peaks) noexcept with gil:
    cdef PinnedAllocator allocator = <PinnedAllocator> (<Context*> self).allocator
    try:
        if only_peaks:
            allocator.reset_peak_stats()
        else:
            allocator.inspection.reset_accumulated_stats()
        return 1
    except BaseException as error:
        return say_exception(error)


cdef int configure(void* self, const allotment_pinned_settings* settings) noexcept with gil:
    """Apply a framework's changed settings; existing blocks keep their sizes."""
    cdef PinnedAllocator allocator = <PinnedAllocator> (<Context*> self).allocator
    cdef PinnedBlocks blocks = allocator.blocks
    try:
        allocator.memory.register_pages(settings.use_host_register, settings.register_threads)
        if blocks is not None:
            blocks.most_kept = settings.max_cached_size
            blocks.most_rounded = min(settings.max_cached_size, settings.max_round_threshold)
            blocks.looks_in_background = settings.use_background_threads
            blocks.catches_all = settings.catch_all
        return 1
    except BaseException as error:
        return say_exception(error)


def points_form() -> tuple[int, int]:
    """Return the version and the size of the tables."""
    return ALLOTMENT_PINNED_VERSION, sizeof(allotment_pinned_points)


def points_address(allocator: PinnedAllocator) -> int:
    """Return the address of a table as in pinned_points.h, for C and C++.

    C code may call it at any time and on any thread, with or without the interpreter lock. So the allocator then lives
    as long as the process.
    """
    cdef PinnedAllocator pinned = allocator
    cdef Context* context = <Context*> calloc(1, sizeof(Context))
    cdef allotment_pinned_points* table
    if context == NULL or not map_init(&context.captured):
        free(context)
        raise MemoryError("the host has no memory for the entry points")
    table = &context.points
    if pinned.tight is not None:
        context.tight = entry_points_of(pinned.tight)
        context.engine = pinned.tight.engine
        context.most_needed = &pinned.most_needed
    else:
        context.blocks = <void*> pinned.blocks
    context.allocator = <void*> pinned
    guard_forks(&context.fork_guard, SHORT_LOCK, &context.lock)
    Py_INCREF(pinned)
    table.size = sizeof(allotment_pinned_points)
    table.version = ALLOTMENT_PINNED_VERSION
    table.device = pinned.memory.table.device
    table.context = context
    table.stats, table.reset, table.configure, table.last_error = stats, reset, configure, last_error
    if pinned.tight is None:
        table.allocate, table.free, table.record_stream = allocate, release, record_stream
        table.is_lent = is_lent
        table.empty_cache, table.visit, table.listen = empty_cache, visit_blocks, listen
        table.begin_allocate_to_pool, table.end_allocate_to_pool = begin_allocate_to_pool, end_allocate_to_pool
        table.release_pool, table.follow_current_stream = release_pool, follow
    else:
        table.allocate, table.free, table.record_stream = allocate_tight, release_tight, record_stream_tight
        table.is_lent = is_lent_tight
        table.empty_cache, table.visit, table.listen = empty_cache_tight, visit_tight, listen_tight
        table.begin_allocate_to_pool, table.end_allocate_to_pool = begin_tight, end_tight
        table.release_pool, table.follow_current_stream = release_pool_tight, follow_tight
    return <size_t> table
