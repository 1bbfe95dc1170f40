"""C entry points: see the header, entry.pxd."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from allotment.allocator cimport Allocator
from allotment.core.engine cimport (
    allocate_direct, engine_base, engine_empty_cache, engine_enter, engine_is_inside, engine_leave,
    engine_record_stream, engine_try_enter, free_address, serve)
from allotment.core.frees cimport free_later
from allotment.core.model cimport (
    FAILED_ADDRESS, FAILED_OUT_OF_MEMORY, NO_FAILURE, Block, Engine, Failure, Request)
from allotment.core.types cimport address_t, bytes_t, stream_t
from allotment.entry cimport ENTRY_VERSION, EntryPoints

cdef extern from *:
    """
    #ifdef _MSC_VER
    #define ALLOTMENT_THREAD __declspec(thread)
    #else
    #define ALLOTMENT_THREAD __thread
    #endif
    static ALLOTMENT_THREAD int allotment_last_reason = 0;
    static ALLOTMENT_THREAD unsigned long long allotment_last_figures[4];
    """
    int last_reason "allotment_last_reason"
    uint64_t last_figures "allotment_last_figures"[4]

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    ctypedef struct PyThreadState
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)
    int snprintf(char* text, size_t capacity, const char* form, ...)


cdef struct Context:
    Engine* engine
    void* allocator         # the Allocator, which is never let go of


cdef inline bint enter(Engine* engine) noexcept nogil:
    """False if this thread is inside already."""
    return engine_try_enter(engine) or enter_slowly(engine)


cdef bint enter_slowly(Engine* engine) noexcept nogil:
    """Whoever holds the interpreter lock lets it go before waiting."""
    cdef PyThreadState* state
    if engine_is_inside(engine):
        return False
    if not PyGILState_Check():
        engine_enter(engine)
        return True
    state = PyEval_SaveThread()
    engine_enter(engine)
    PyEval_RestoreThread(state)
    return True


cdef int note(const Failure* failure) noexcept nogil:
    global last_reason
    last_reason = failure.reason
    if failure.reason == FAILED_OUT_OF_MEMORY:
        last_figures[0] = failure.segment
        last_figures[1] = failure.device_free
        last_figures[2] = failure.reserved
        last_figures[3] = failure.allocated
    else:
        last_figures[0] = failure.address
    return 0


cdef void tell_observers(Context* context, const Failure* failure) noexcept with gil:
    cdef Allocator allocator = <Allocator> context.allocator
    if allocator.observers:
        try:
            allocator.raise_out_of_memory(allocator.failed(failure))
        except BaseException:
            pass    # the error itself goes to the caller as NULL


cdef void* allocate(void* self, size_t size, int device, void* stream) noexcept nogil:
    cdef Context* context = <Context*> self
    cdef Engine* engine = context.engine
    cdef Request request
    cdef Block* block
    cdef address_t address = 0
    if size == 0:
        return NULL
    request.size = size
    request.stream = <stream_t> stream
    request.thread = 0
    request.context = 0
    request.failure.reason = NO_FAILURE
    if (size >> 60) != 0:
        request.failure.reason = FAILED_OUT_OF_MEMORY
        request.failure.segment = size
        request.failure.device_free = request.failure.reserved = request.failure.allocated = 0
        note(&request.failure)
        return NULL
    if not enter(engine):
        request.failure.address = 0
        note(&request.failure)
        return NULL
    if engine.uncached:
        address = allocate_direct(engine, &request)
    else:
        block = serve(engine, &request)
        if block != NULL:
            address = block.address
    engine_leave(engine)
    if address == 0:
        note(&request.failure)
        if request.failure.reason == FAILED_OUT_OF_MEMORY:
            tell_observers(context, &request.failure)
    return <void*> address


cdef int release(void* self, void* address, size_t size, int device, void* stream) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef Failure failure
    cdef bint ok
    if address == NULL:
        return 1
    if not enter(engine):
        return free_later(engine, <address_t> address)
    ok = free_address(engine, <address_t> address, 0, &failure)
    engine_leave(engine)
    return 1 if ok else note(&failure)


cdef int record_stream(void* self, void* address, void* stream) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef Failure failure
    cdef bint ok
    if address == NULL:
        return 1
    if not enter(engine):
        return 0
    ok = engine_record_stream(engine, <address_t> address, <stream_t> stream, &failure)
    engine_leave(engine)
    return 1 if ok else note(&failure)


cdef int empty_cache(void* self) noexcept nogil:
    cdef Engine* engine = (<Context*> self).engine
    cdef Failure failure
    cdef bint ok
    if not enter(engine):
        return 0
    ok = engine_empty_cache(engine, 0, 0, 0, &failure)
    engine_leave(engine)
    return 1 if ok else note(&failure)


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
    if not 0.0 <= fraction <= 1.0 or not enter(engine):
        return 0
    engine.limited = fraction < 1.0
    engine.limit = <bytes_t> (fraction * <double> engine.total_memory)
    engine_leave(engine)
    return 1


cdef size_t last_error(void* self, char* text, size_t capacity) noexcept nogil:
    """The words of the calling thread's last failure; their length, cut to `capacity`."""
    cdef char words[256]
    cdef int length
    if last_reason == FAILED_OUT_OF_MEMORY:
        length = snprintf(
            words, sizeof(words), b"out of memory: tried to allocate %llu bytes; %llu free on the device, "
            b"%llu reserved here, of which %llu in use", last_figures[0], last_figures[1], last_figures[2],
            last_figures[3])
    elif last_reason == FAILED_ADDRESS:
        length = snprintf(words, sizeof(words), b"invalid device pointer: %#llx", last_figures[0])
    elif last_reason == NO_FAILURE:
        length = snprintf(words, sizeof(words), b"the allocator was called from inside itself")
    else:
        length = snprintf(words, sizeof(words), b"the device refused (reason %d)", last_reason)
    length = min(length, <int> capacity)
    memcpy(text, words, length)
    return length


cdef EntryPoints* entry_points_of(object allocator) except NULL:
    """A table for an allocator, which from now on lives as long as the process."""
    cdef Allocator owner = allocator
    cdef EntryPoints* table = <EntryPoints*> calloc(1, sizeof(EntryPoints))
    cdef Context* context = <Context*> calloc(1, sizeof(Context))
    if table == NULL or context == NULL:
        raise MemoryError("the host has no memory for the entry points")
    context.engine = owner.engine
    context.allocator = <void*> owner
    owner.shared_by_pointer = True
    owner.engine.interpreter_guards = False
    immortal.append(owner)
    table.size = sizeof(EntryPoints)
    table.version = ENTRY_VERSION
    table.context = context
    table.allocate = allocate
    table.free = release
    table.record_stream = record_stream
    table.empty_cache = empty_cache
    table.base_allocation = base_allocation
    table.set_memory_fraction = set_memory_fraction
    table.last_error = last_error
    return table


cdef list immortal = []


def entry_points(allocator):
    """The table as a capsule named "allotment.entry_points"."""
    return PyCapsule_New(entry_points_of(allocator), b"allotment.entry_points", NULL)


def entry_points_address(allocator) -> int:
    """The table's address, for ctypes and foreign runtimes."""
    return <size_t> entry_points_of(allocator)
