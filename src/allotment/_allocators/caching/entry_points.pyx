"""C entry points: see the header, entry_points.pxd."""

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from allotment._allocators.caching.c_steps cimport c_step_add, c_step_remove, step_t
from allotment._allocators.caching.allocator cimport EVERYTHING, NEVER, STATE, Allocator
from allotment._allocators.caching.entering cimport enter_once
from allotment._allocators.caching.entry_points cimport ENTRY_VERSION, EntryPoints, Lent, current_t
from allotment._allocators.caching.tenants cimport Tenant
from allotment._allocators.upcalls cimport report
from allotment._core.contract.current cimport CurrentStream, current_enter, current_leave
from allotment._core.contract.table cimport OK, DeviceTable
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.engine cimport (
    allocate_direct, engine_base, engine_empty_cache, engine_end_routing, engine_free, engine_is_inside, engine_leave,
    engine_limit_share, engine_record_stream, engine_try_enter, free_at_once_inline, serve, serve_ordinary)
from allotment._core.mechanism.address_map cimport address_take, block_at
from allotment._core.mechanism.block cimport is_plain
from allotment._core.mechanism.frees cimport free_later, free_asking_device, is_freed_at_once
from allotment._core.mechanism.pool cimport pool_release, route_begin
from allotment._core.model.model cimport (
    FAILED_ADDRESS, FAILED_OUT_OF_MEMORY, FILTER_ALL, FILTER_FUNCTION, NO_FAILURE, Block, Engine, Failure, Filter,
    Request, drop_t, filter_t)
from allotment._core.records.history cimport capture_stack, gather_t
from allotment._core.records.spool cimport Spool, spool_pace
from allotment._core.records.tags cimport tags_are_used
from allotment._core.tools.arguments cimport SIZE_BITS, is_fraction
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment._core.tools.lock cimport lock_allow_bias
from allotment._core.tools.pointer_map cimport map_get

from allotment.errors import AllotmentError, OutOfMemoryError, RequestError

cdef extern from *:
    """
    #ifdef _MSC_VER
    #define ALLOTMENT_THREAD __declspec(thread)
    #else
    #define ALLOTMENT_THREAD __thread
    #endif
    /* Words, because the compiler has not met the struct yet. */
    static ALLOTMENT_THREAD unsigned long long allotment_last_failure[32];
    """
    uint64_t last_failure_words "allotment_last_failure"[32]

cdef extern from "Python.h" nogil:
    int snprintf(char* text, size_t capacity, const char* form, ...)


assert sizeof(Failure) <= sizeof(last_failure_words)


cdef struct Context:
    Engine* engine
    void* allocator         # the Allocator, which is never released
    uint32_t tenant         # in the form that contexts carry
    const int* level        # the allocator's level: what contexts are gathered for
    const gather_t* gather  # likewise: the framework's function that gathers them
    current_t current       # returns the framework's current stream; NULL if the framework gave no such function


cdef Failure* last_failure() noexcept nogil:
    return <Failure*> last_failure_words


cdef uint32_t stack_here() noexcept with gil:
    try:
        return capture_stack()
    except BaseException:
        return 0    # better a history without this stack than a request without memory


cdef inline uint32_t context_here(Context* context, int needed) noexcept nogil:
    """Return the number of the stack, if such calls record one and one can still be stored."""
    if context.level[0] < needed or interpreter_ends():
        return 0
    return stack_here() if context.gather[0] == NULL else context.gather[0]()


cdef void pace(Context* context) noexcept nogil:
    """Wait for a history file that is behind. Once C code has entry points, its spool stays (see `end_file`)."""
    cdef Spool* spool = <Spool*> context.engine.trace.spool
    if spool != NULL and not engine_is_inside(context.engine):
        while not spool_pace(spool):
            pass


cdef inline bint take_current(Context* context, CurrentStream* entered) noexcept nogil:
    """Enter the framework's current stream, if it matters and the thread is not inside already; return whether."""
    cdef Engine* engine = context.engine
    if (context.current == NULL or engine.impure_routes == 0 or not engine.rules.only_captures_defer
            or engine_is_inside(engine)):
        return False
    current_enter(entered, engine.table.serial, context.current(engine.table.device))
    return True


cdef void follow_current_stream(EntryPoints* table, current_t current) noexcept nogil:
    (<Context*> table.context).current = current


cdef inline bint enter(Engine* engine) noexcept nogil:
    """Return False, and note it as the last failure, if this thread is inside already."""
    return enter_once(engine) or called_from_inside()


cdef bint called_from_inside() noexcept nogil:
    last_failure().reason = NO_FAILURE
    return False


cdef int note(const Failure* failure) noexcept nogil:
    last_failure()[0] = failure[0]
    return 0


cdef address_t serve_after_shortage(Context* context, Request* request) noexcept with gil:
    """Call the out-of-memory handlers; return 0, after calling the observers, if that does not help."""
    cdef Allocator allocator = <Allocator> context.allocator
    try:
        return allocator.allocate_after_failure(request)
    except OutOfMemoryError:
        return 0    # the caller gets NULL
    except BaseException as error:
        report(error, allocator)
        return 0


cdef void log_retry(Context* context, const Request* request, bint served) noexcept with gil:
    try:
        (<Allocator> context.allocator).log_retry(request, served)
    except BaseException as error:
        report(error, <Allocator> context.allocator)


cdef inline bint asks_nobody(const Context* context, int needed) noexcept nogil:
    """Whether a call needs neither a stack nor the framework's current stream."""
    return context.level[0] < needed and (context.current == NULL or context.engine.impure_routes == 0)


cdef void* allocate(void* self, size_t size, int device, void* stream) noexcept nogil:
    cdef Context* context = <Context*> self
    cdef Engine* engine = context.engine
    cdef Block* block
    cdef void* address
    if size != 0 and (size >> SIZE_BITS) == 0 and asks_nobody(context, NEVER + 1) and engine_try_enter(engine):
        block = serve_ordinary(engine, size, <stream_t> stream, context.tenant)
        if block == NULL:
            return serve_context(context, size, stream, NULL, True)
        address = <void*> block.address
        engine_leave(engine)
        return address
    return serve_context(context, size, stream, NULL, False)


cdef void* serve_context(Context* context, size_t size, void* stream, Lent* lent, bint entered) noexcept nogil:
    """Serve a request; `lent`, unless NULL, receives the block.

    `entered`: already inside, so no handler can be called.
    """
    cdef Engine* engine = context.engine
    cdef CurrentStream current
    cdef bint took_current
    cdef Request request
    cdef Block* block
    cdef address_t address = 0
    if size == 0:
        return NULL
    request.size = size
    request.stream = <stream_t> stream
    request.thread = 0
    if (size >> SIZE_BITS) != 0:
        memset(&request.failure, 0, sizeof(Failure))
        request.failure.reason = FAILED_OUT_OF_MEMORY
        request.failure.requested = request.failure.segment = size
        note(&request.failure)
        return NULL
    request.context = context.tenant
    took_current = False
    if not entered:
        if context.level[0] != NEVER:
            pace(context)
            request.context |= context_here(context, STATE)
        took_current = take_current(context, &current)
        if not enter(engine):
            if took_current:
                current_leave(&current)
            return NULL
    if engine.uncached:
        request.failure.reason = NO_FAILURE
        request.given_back = -1
        address = allocate_direct(engine, &request)
        if lent != NULL:
            lent.size = size
            lent.is_fresh = lent.is_plain = True
    else:
        block = serve(engine, &request)
        if block != NULL:
            address = block.address
            if lent != NULL:
                lent.size = block.size
                lent.is_fresh = request.is_fresh
                lent.is_plain = is_plain(block) and block.free_list.half.pool.allocator.allocate == NULL
    engine_leave(engine)
    if took_current:
        current_leave(&current)
    if request.given_back >= 0 and not interpreter_ends():
        log_retry(context, &request, address != 0)
    if address == 0:
        if request.failure.reason == FAILED_OUT_OF_MEMORY:     # a rejection does not count: nothing was tried
            address = serve_after_shortage(context, &request)
            if lent != NULL and address != 0:
                lent.size = block_size_at(engine, address)
                lent.is_fresh = lent.is_plain = False
        if address == 0:
            note(&request.failure)      # after the observers, because what they call may fail too
    return <void*> address


cdef int free_address(void* self, void* address, size_t size, int device, void* stream) noexcept nogil:
    cdef Context* context = <Context*> self
    cdef Engine* engine = context.engine
    cdef Block* block
    if address != NULL and asks_nobody(context, EVERYTHING) and engine_try_enter(engine):
        block = address_take(engine, <address_t> address)
        if not is_freed_at_once(block):
            return finish_free_and_leave(engine, block, <address_t> address)
        free_at_once_inline(engine, block, 0)
        engine_leave(engine)
        return 1
    return free_locking(context, address)


cdef int finish_free_and_leave(Engine* engine, Block* block, address_t address) noexcept nogil:
    """pre: inside"""
    cdef Failure failure
    cdef bint ok = free_asking_device(engine, block, address, 0, &failure)
    engine_leave(engine)
    return 1 if ok else note(&failure)


cdef int free_locking(Context* context, void* address) noexcept nogil:
    cdef Engine* engine = context.engine
    cdef uint32_t stack = context_here(context, EVERYTHING)
    cdef CurrentStream current
    cdef bint took_current
    cdef Failure failure
    cdef bint ok
    if address == NULL:
        return 1
    took_current = take_current(context, &current)
    if enter(engine):
        ok = engine_free(engine, <address_t> address, stack, &failure)
        engine_leave(engine)
        ok = ok or note(&failure)
    else:
        ok = free_later(engine, <address_t> address, &failure) or note(&failure)
    if took_current:
        current_leave(&current)
    return ok


cdef bytes_t size_at(const Engine* engine, address_t address) noexcept nogil:
    """Return 0 if no block in use begins there. pre: inside"""
    cdef Block* block = block_at(engine, address)
    return block.size if block != NULL else <bytes_t> map_get(&engine.direct, address)


cdef bytes_t block_size_at(Engine* engine, address_t address) noexcept nogil:
    cdef bytes_t size
    if not enter(engine):
        return size_at(engine, address)
    size = size_at(engine, address)
    engine_leave(engine)
    return size


cdef void* allocate_block(EntryPoints* table, size_t size, void* stream, Lent* lent) noexcept nogil:
    return serve_context(<Context*> table.context, size, stream, lent, False)


cdef bytes_t block_size(EntryPoints* table, void* address) noexcept nogil:
    return block_size_at((<Context*> table.context).engine, <address_t> address)


cdef bint default_stream_has_work(EntryPoints* table) noexcept nogil:
    cdef DeviceTable* device = (<Context*> table.context).engine.table
    return device.stream_query != NULL and device.stream_query(device.self, 0) != OK


cdef bytes_t free_block(EntryPoints* table, void* address) noexcept nogil:
    cdef Context* context = <Context*> table.context
    cdef Engine* engine = context.engine
    cdef uint32_t stack = 0
    cdef Failure failure
    cdef bytes_t size
    if not enter(engine):
        size = size_at(engine, <address_t> address)
        return size if size == 0 or free_later(engine, <address_t> address, &failure) else 0
    size = size_at(engine, <address_t> address)
    if size != 0 and context.level[0] >= EVERYTHING:
        engine_leave(engine)            # stacks are gathered outside; the owner of the block does not change meanwhile
        stack = context_here(context, EVERYTHING)
        enter(engine)
    if size != 0 and not engine_free(engine, <address_t> address, stack, &failure):
        note(&failure)
    engine_leave(engine)
    return size


cdef int record_stream(void* self, void* address, void* stream) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef CurrentStream current
    cdef bint took_current
    cdef Failure failure
    cdef bint ok = False
    if address == NULL:
        return 1
    took_current = take_current(<Context*> self, &current)
    if enter(engine):
        ok = engine_record_stream(engine, <address_t> address, <stream_t> stream, &failure)
        engine_leave(engine)
        ok = ok or note(&failure)
    if took_current:
        current_leave(&current)
    return ok


cdef int empty_cache(void* self) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef CurrentStream current
    cdef bint took_current = take_current(<Context*> self, &current)
    cdef Failure failure
    cdef bint ok = False
    if enter(engine):
        ok = engine_empty_cache(engine, 0, 0, 0, &failure)
        engine_leave(engine)
        ok = ok or note(&failure)
    if took_current:
        current_leave(&current)
    if tags_are_used() and not interpreter_ends():
        forget_contents(<Context*> self)
    return ok


cdef void forget_contents(Context* context) noexcept with gil:
    """Release what the host keeps of paused memory that is gone now."""
    (<Allocator> context.allocator).paused()


cdef void* base_allocation(void* self, void* address, size_t* size) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef Failure failure
    cdef address_t base = 0
    cdef bytes_t whole = 0
    cdef bint ok
    if not enter(engine):
        return NULL
    ok = engine_base(engine, <address_t> address, &base, &whole, &failure)
    engine_leave(engine)
    if not ok:
        note(&failure)
        return NULL
    if size != NULL:
        size[0] = whole
    return <void*> base


cdef int set_memory_fraction(void* self, double fraction, int device) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    if not is_fraction(fraction) or not enter(engine):
        return 0
    engine_limit_share(engine, fraction)
    engine_leave(engine)
    return 1


cdef int begin_allocate_to_pool(void* self, uint64_t first, uint64_t second, filter_t accepts, drop_t drop,
                                void* accepting) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef Filter filter
    cdef Failure failure
    cdef bint ok
    filter.kind = FILTER_ALL if accepts == NULL else FILTER_FUNCTION
    filter.value = 0
    filter.accepts = accepts
    filter.drop = drop
    filter.self = accepting
    if not enter(engine):
        return 0
    ok = route_begin(engine, first, second, filter, &failure)
    engine_leave(engine)
    return 1 if ok else note(&failure)


cdef int end_allocate_to_pool(void* self, uint64_t first, uint64_t second) noexcept nogil:
    cdef Context* context = <Context*> self
    cdef uint32_t stack = context_here(context, EVERYTHING)
    cdef Failure failure
    cdef bint ok
    if not enter(context.engine):
        return 0
    ok = engine_end_routing(context.engine, first, second, stack, &failure)
    engine_leave(context.engine)
    return 1 if ok else note(&failure)


cdef int release_pool(void* self, uint64_t first, uint64_t second) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef Failure failure
    cdef bint ok
    if not enter(engine):
        return 0
    ok = pool_release(engine, first, second, &failure)
    engine_leave(engine)
    return 1 if ok else note(&failure)


cdef int on_out_of_memory(void* self, step_t step, void* stepping, int tries) noexcept with gil:
    try:
        return c_step_add(<object> (<Context*> self).allocator, step, stepping, tries) if step != NULL else 0
    except BaseException as error:
        report(error, <object> (<Context*> self).allocator)
        return 0


cdef int remove_step(void* self, int step) noexcept with gil:
    try:
        return c_step_remove(step)
    except BaseException as error:
        report(error, <object> (<Context*> self).allocator)
        return 0


cdef size_t last_error(void* self, char* text, size_t capacity) noexcept nogil:
    """Copy the text of the calling thread's last failure, cut to `capacity`; return its length."""
    cdef const Failure* failure = last_failure()
    cdef char words[256]
    cdef int length
    if failure.reason == FAILED_OUT_OF_MEMORY:
        length = snprintf(
            words, sizeof(words), b"out of memory: tried to allocate %llu bytes; %llu free on the device, "
            b"%llu reserved here, of which %llu in use", <unsigned long long> failure.segment,
            <unsigned long long> failure.device_free, <unsigned long long> failure.reserved,
            <unsigned long long> failure.allocated)
    elif failure.reason == FAILED_ADDRESS:
        length = snprintf(words, sizeof(words), b"invalid device pointer: %#llx", <unsigned long long> failure.address)
    elif failure.reason == NO_FAILURE:
        length = snprintf(words, sizeof(words), b"the allocator was called from inside itself")
    else:
        length = snprintf(words, sizeof(words), b"the device refused (reason %d)", failure.reason)
    length = min(length, <int> capacity)
    memcpy(text, words, length)
    return length


cdef int entry_points_drop(EntryPoints* table) except -1:
    cdef Context* context = <Context*> table.context
    cdef Allocator owner = <Allocator> context.allocator
    free(context)
    free(table)
    owner.pointer_holders -= 1
    Py_DECREF(owner)
    return 0


cdef EntryPoints* entry_points_of(object allocator) except NULL:
    cdef Tenant tenant = allocator if isinstance(allocator, Tenant) else None
    cdef Allocator owner
    cdef EntryPoints* table
    cdef Context* context
    if tenant is None and not isinstance(allocator, Allocator):
        raise TypeError(f"only a caching Allocator or a Tenant has entry points, not {type(allocator).__name__}")
    owner = allocator if tenant is None else tenant.allocator
    table = <EntryPoints*> calloc(1, sizeof(EntryPoints))
    context = <Context*> calloc(1, sizeof(Context))
    if table == NULL or context == NULL:
        free(table)
        free(context)
        raise MemoryError("the host has no memory for the entry points")
    context.engine = owner.engine
    context.allocator = <void*> owner
    context.tenant = 0 if tenant is None else tenant.context
    context.level = &owner.level
    context.gather = &owner.gather
    owner.pointer_holders += 1
    Py_INCREF(owner)
    owner.engine.interpreter_guards = False
    lock_allow_bias(&owner.engine.lock)
    table.size = sizeof(EntryPoints)
    table.version = ENTRY_VERSION
    table.context = context
    table.allocate = allocate
    table.free = free_address
    table.record_stream = record_stream
    table.empty_cache = empty_cache
    table.base_allocation = base_allocation
    table.set_memory_fraction = set_memory_fraction
    table.last_error = last_error
    table.begin_allocate_to_pool = begin_allocate_to_pool
    table.end_allocate_to_pool = end_allocate_to_pool
    table.release_pool = release_pool
    table.on_out_of_memory = on_out_of_memory
    table.remove_step = remove_step
    return table


cdef object last_exception(const EntryPoints* table):
    cdef Allocator owner = <Allocator> (<Context*> table.context).allocator
    cdef Failure* failure = last_failure()
    if failure.reason == NO_FAILURE:
        return RequestError(
            "the allocator was called from inside itself; a tracker, a filter and its device may only free")
    if failure.reason == FAILED_OUT_OF_MEMORY:      # other failures do not contain what was requested
        try:
            owner.checked_size(failure.requested)
        except AllotmentError as error:
            return error
    return owner.failed(failure)


def entry_points(allocator: Allocator | Tenant) -> Any:
    """Return the C functions of an `Allocator`, or of a `Tenant`, as a capsule named "allotment.entry_points".

    Their form is the struct of entry_points.pxd. C code may call them at any time and on any thread, with or without
    the interpreter lock. So the allocator then lives as long as the process, and a hit from Python acquires the
    engine's lock too. Raises TypeError for any other object.
    """
    return PyCapsule_New(entry_points_of(allocator), b"allotment.entry_points", NULL)


def entry_points_address(allocator: Allocator | Tenant) -> int:
    """Return the address of the same table, for ctypes and foreign runtimes; see `entry_points`."""
    return <size_t> entry_points_of(allocator)
