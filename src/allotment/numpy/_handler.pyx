cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcpy

from allotment._allocators.caching.entry_points cimport (
    Lent, allocate_block, block_size, default_stream_has_work, entry_points_drop, entry_points_of, free_block,
    last_exception)
from allotment._core.contract.types cimport bytes_t
from allotment._devices.shared.posix cimport (
    ACQ_REL, RELAXED, atomic_add, atomic_load, atomic_store, atomic_subtract)

from allotment._allocators.arrays import require_numpy
from allotment.errors import UnsupportedError

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* address, size_t length, int advice)
    int MADV_DONTNEED

cdef extern from *:
    """
    static __thread void* allotment_refused_by;
    static inline void allotment_raise_to(uint64_t* place, uint64_t value) {
        uint64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
        while (seen < value
               && !__atomic_compare_exchange_n(place, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    }
    """
    void* refused_by "allotment_refused_by"             # the cache that had no memory for this thread
    void raise_to "allotment_raise_to"(uint64_t* place, uint64_t value) nogil

cdef enum:
    PAGE = 4096
    ALIGNMENT = 512                 # of every block: see the header
    # From here on the system supplies zeros. Below, writing to warm memory is faster than mapping new pages.
    LAZY_ZEROS = 32 << 20
    # Indexes into NumPy's table of C functions, stable across its versions.
    SET_HANDLER = 304
    GET_HANDLER = 305
    DEFAULT_HANDLER = 306

ctypedef object (*set_handler_t)(object capsule)
ctypedef object (*get_handler_t)()

cdef set_handler_t set_handler = NULL
cdef get_handler_t get_handler = NULL
cdef DataHandler* default_handler = NULL
cdef DataAllocator system                       # the default handler's original functions
cdef Cache* installed = NULL                    # the cache that serves the process, or NULL
cdef Cache* known = NULL                        # all that ever served it
cdef object guard = object()                    # its critical section, to add one to them


cdef int find_numpy() except -1:
    """Find NumPy's functions for handlers. Raises UnsupportedError for an unknown version."""
    global set_handler, get_handler, default_handler, system
    cdef void** functions
    cdef object capsule
    if default_handler != NULL:
        return 0
    require_numpy()
    import numpy

    try:
        from numpy._core import _multiarray_umath as compiled
    except ImportError:
        from numpy.core import _multiarray_umath as compiled    # before NumPy 2
    functions = <void**> PyCapsule_GetPointer(compiled._ARRAY_API, NULL)
    capsule = <object> (<void**> functions[DEFAULT_HANDLER])[0]
    found = <DataHandler*> PyCapsule_GetPointer(capsule, b"mem_handler")
    if found.version != 1:
        raise UnsupportedError(
            f"NumPy {numpy.__version__} has memory handlers of version {found.version}; version 1 is supported")
    set_handler = <set_handler_t> functions[SET_HANDLER]
    get_handler = <get_handler_t> functions[GET_HANDLER]
    system = found.allocator
    default_handler = found
    return 0


# --- blocks ---

cdef void* take(Cache* cache, size_t size, Lent* lent) noexcept nogil:
    """Allocate a block for an array; on failure return NULL, and remember the cache as the one that refused."""
    global refused_by
    cdef void* address = allocate_block(cache.table, size, NULL, lent)
    if address == NULL:
        refused_by = cache
        return NULL
    raise_to(&cache.peak, atomic_add(&cache.live, lent.size, ACQ_REL))
    return address


cdef bint free_array(Cache* cache, void* address) noexcept nogil:
    """Free a block; return False if it is not this cache's."""
    cdef bytes_t size = free_block(cache.table, address)
    if size != 0:
        atomic_subtract(&cache.live, size, ACQ_REL)
    return size != 0


cdef inline bint may_be_block(const void* address) noexcept nogil:
    return (<uintptr_t> address) % ALIGNMENT == 0


cdef void clear(void* address, size_t size, const Lent* lent) noexcept nogil:
    """Zero a block. New pages are zero already; for large blocks, let the system supply zero pages when touched."""
    cdef uintptr_t first = (<uintptr_t> address + PAGE - 1) & ~<uintptr_t> (PAGE - 1)
    cdef uintptr_t end = (<uintptr_t> address + size) & ~<uintptr_t> (PAGE - 1)
    if lent.is_fresh:
        return
    if size < LAZY_ZEROS or not lent.is_plain or madvise(<void*> first, end - first, MADV_DONTNEED) != 0:
        memset(address, 0, size)
        return
    memset(address, 0, first - <uintptr_t> address)
    memset(<void*> end, 0, <uintptr_t> address + size - end)


cdef bint is_ready(Cache* cache, void* address, const Lent* lent) noexcept nogil:
    """Whether an array may use a block at once. If queued work may still use the block, frees it.

    NumPy's caller may hold a lock that this work needs, so waiting could deadlock: use the system's memory instead.
    """
    if address == NULL or lent.is_fresh or not default_stream_has_work(cache.table):
        return True
    free_array(cache, address)
    return False


cdef void* cache_malloc(Cache* cache, size_t size) noexcept nogil:
    cdef Lent lent
    cdef void* address = take(cache, size, &lent)
    return address if is_ready(cache, address, &lent) else system.malloc(system.context, size)


cdef void* cache_calloc(Cache* cache, size_t size) noexcept nogil:
    cdef Lent lent
    cdef void* address = take(cache, size, &lent)
    if not is_ready(cache, address, &lent):
        return system.calloc(system.context, 1, size)
    if address != NULL:
        clear(address, size, &lent)
    return address


cdef void* cache_realloc(Cache* cache, void* address, bytes_t has, size_t size) noexcept nogil:
    """pre: a block of `has` bytes of this cache"""
    cdef void* moved
    if size <= has and size >= has / 2:
        return address
    moved = cache_malloc(cache, size) if size >= cache.threshold else system.malloc(system.context, size)
    if moved != NULL:
        memcpy(moved, address, min(<size_t> has, size))
        free_array(cache, address)
    return moved


cdef inline bint overflows(size_t count, size_t each) noexcept nogil:
    return each != 0 and count > (~<size_t> 0) / each


# --- a handler for a context ---

cdef void* context_malloc(void* self, size_t size) noexcept nogil:
    cdef Cache* cache = <Cache*> self
    return system.malloc(system.context, size) if size < cache.threshold else cache_malloc(cache, size)


cdef void* context_calloc(void* self, size_t count, size_t each) noexcept nogil:
    cdef Cache* cache = <Cache*> self
    if overflows(count, each) or count * each < cache.threshold:
        return system.calloc(system.context, count, each)
    return cache_calloc(cache, count * each)


cdef void* context_realloc(void* self, void* address, size_t size) noexcept nogil:
    cdef Cache* cache = <Cache*> self
    cdef bytes_t has = block_size(cache.table, address) if may_be_block(address) and address != NULL else 0
    if has == 0:
        return context_malloc(self, size) if address == NULL else system.realloc(system.context, address, size)
    return cache_realloc(cache, address, has, size)


cdef void context_free(void* self, void* address, size_t size) noexcept nogil:
    if address == NULL or not may_be_block(address) or not free_array(<Cache*> self, address):
        system.free(system.context, address, size)


# --- the handler of the process ---

cdef inline Cache* owner_of(void* address, bytes_t* size) noexcept nogil:
    """Return the cache whose block begins there, of all that were ever installed; NULL: it is the system's."""
    cdef Cache* cache = known if may_be_block(address) and address != NULL else NULL
    while cache != NULL:
        size[0] = block_size(cache.table, address)
        if size[0] != 0:
            break
        cache = cache.next
    return cache


cdef void* process_malloc(void* self, size_t size) noexcept nogil:
    cdef Cache* cache = installed
    if cache == NULL or size < cache.threshold:
        return system.malloc(system.context, size)
    return cache_malloc(cache, size)


cdef void* process_calloc(void* self, size_t count, size_t each) noexcept nogil:
    cdef Cache* cache = installed
    if cache == NULL or overflows(count, each) or count * each < cache.threshold:
        return system.calloc(system.context, count, each)
    return cache_calloc(cache, count * each)


cdef void* process_realloc(void* self, void* address, size_t size) noexcept nogil:
    cdef bytes_t has = 0
    cdef Cache* cache = owner_of(address, &has)
    if cache != NULL:
        return cache_realloc(cache, address, has, size)
    return process_malloc(self, size) if address == NULL else system.realloc(system.context, address, size)


cdef void process_free(void* self, void* address, size_t size) noexcept nogil:
    cdef Cache* cache = known if may_be_block(address) and address != NULL else NULL
    while cache != NULL:
        if free_array(cache, address):
            return
        cache = cache.next
    system.free(system.context, address, size)


# --- for Python ---

cdef void drop_cache(object capsule) noexcept:
    cdef Cache* cache = <Cache*> PyCapsule_GetPointer(capsule, b"mem_handler")
    global refused_by
    if refused_by == cache:
        refused_by = NULL
    entry_points_drop(cache.table)
    free(cache)


cdef class NumpyCache:
    """NumpyCache(tenant, threshold)\n--\n
    A memory handler that serves arrays of at least `threshold` bytes for a tenant."""

    def __init__(self, tenant: Any, threshold: int):
        find_numpy()
        self.tenant = tenant
        self.cache = <Cache*> calloc(1, sizeof(Cache))
        if self.cache == NULL:
            raise MemoryError("the host has no memory for the records of a NumPy handler")
        self.cache.threshold = max(<size_t> threshold, <size_t> 1)
        strcpy(self.cache.handler.name, b"allotment")
        self.cache.handler.version = 1
        self.cache.handler.allocator.context = self.cache
        self.cache.handler.allocator.malloc = context_malloc
        self.cache.handler.allocator.calloc = context_calloc
        self.cache.handler.allocator.realloc = context_realloc
        self.cache.handler.allocator.free = context_free
        self.cache.table = entry_points_of(tenant)
        self.capsule = PyCapsule_New(self.cache, b"mem_handler", drop_cache)

    @property
    def tenant(self) -> Any:
        """Tenant that it allocates for."""
        return self.tenant

    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that arrays have now."""
        return atomic_load(&self.cache.live, RELAXED)

    def take_peak(self) -> int:
        """Return the peak of `live_bytes` since the last call."""
        cdef uint64_t peak = max(atomic_load(&self.cache.peak, RELAXED), atomic_load(&self.cache.live, RELAXED))
        atomic_store(&self.cache.peak, atomic_load(&self.cache.live, RELAXED), RELAXED)
        return peak

    def enter(self) -> Any:
        """Serve the calling context from now on; return the previous handler, for `leave`."""
        return set_handler(self.capsule)

    def leave(self, before: Any) -> None:
        """Restore the calling context's previous handler."""
        set_handler(before)

    def install(self) -> None:
        """Serve every context that has no handler of its own."""
        global installed, known
        Py_INCREF(self.capsule)             # its arrays will not tell whose they are
        with cython.critical_section(guard):
            self.cache.next = known
            known = self.cache
        # Set free and realloc first: as soon as malloc is replaced, an array may come from it.
        default_handler.allocator.free = process_free
        default_handler.allocator.realloc = process_realloc
        installed = self.cache
        default_handler.allocator.malloc = process_malloc
        default_handler.allocator.calloc = process_calloc


def uninstall() -> None:
    """Stop serving new arrays of the process; existing ones are freed here."""
    global installed
    installed = NULL


def is_installed() -> bool:
    """Whether arrays of contexts without their own handler are served here."""
    return installed != NULL


def take_refusal() -> str | None:
    """Return why the calling thread's last request was refused, once; None if none was."""
    global refused_by
    cdef Cache* cache = <Cache*> refused_by
    if cache == NULL:
        return None
    refused_by = NULL
    return str(last_exception(cache.table))
