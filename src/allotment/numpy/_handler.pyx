from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strcpy

from allotment._allocators.caching.entry_points cimport (
    Lent, allocate_block, block_size, entry_points_drop, entry_points_of, free_block, last_exception)
from allotment._core.contract.types cimport bytes_t
from allotment._devices.shared.posix cimport (
    ACQ_REL, RELAXED, atomic_add, atomic_load, atomic_store, atomic_subtract)

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
    ALIGNMENT = 512                 # of every block: see whereabouts in the header
    # From here on zeros are left to the system. Below, memory that is warm is written faster than pages are found anew.
    LAZY_ZEROS = 32 << 20
    # Places in NumPy's table of C functions, which its versions keep.
    SET_HANDLER = 304
    GET_HANDLER = 305
    DEFAULT_HANDLER = 306

ctypedef object (*set_handler_t)(object capsule)
ctypedef object (*get_handler_t)()

cdef set_handler_t set_handler = NULL
cdef get_handler_t get_handler = NULL
cdef DataHandler* default_handler = NULL
cdef DataAllocator system                       # the functions that the default handler had
cdef Cache* installed = NULL                    # what serves the process; NULL: nothing does
cdef Cache* known = NULL                        # all that ever did


cdef int find_numpy() except -1:
    """NumPy's functions for handlers. Raises UnsupportedError if it has none that are known here."""
    global set_handler, get_handler, default_handler, system
    cdef void** functions
    cdef object capsule
    if default_handler != NULL:
        return 0
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
    """A block for an array; NULL, and the cache is noted as having none."""
    global refused_by
    cdef void* address = allocate_block(cache.table, size, NULL, lent)
    if address == NULL:
        refused_by = cache
        return NULL
    raise_to(&cache.peak, atomic_add(&cache.live, lent.size, ACQ_REL))
    return address


cdef bint give_back(Cache* cache, void* address) noexcept nogil:
    """False if it is not a block of this cache."""
    cdef bytes_t size = free_block(cache.table, address)
    if size != 0:
        atomic_subtract(&cache.live, size, ACQ_REL)
    return size != 0


cdef inline bint may_be_block(const void* address) noexcept nogil:
    return (<uintptr_t> address) % ALIGNMENT == 0


cdef void clear(void* address, size_t size, const Lent* lent) noexcept nogil:
    """Make a block zeros. Pages that no one has had are; of others, the system puts zeros there when touched."""
    cdef uintptr_t first = (<uintptr_t> address + PAGE - 1) & ~<uintptr_t> (PAGE - 1)
    cdef uintptr_t end = (<uintptr_t> address + size) & ~<uintptr_t> (PAGE - 1)
    if lent.is_fresh:
        return
    if size < LAZY_ZEROS or not lent.is_plain or madvise(<void*> first, end - first, MADV_DONTNEED) != 0:
        memset(address, 0, size)
        return
    memset(address, 0, first - <uintptr_t> address)
    memset(<void*> end, 0, <uintptr_t> address + size - end)


cdef void* cache_malloc(Cache* cache, size_t size) noexcept nogil:
    cdef Lent lent
    return take(cache, size, &lent)


cdef void* cache_calloc(Cache* cache, size_t size) noexcept nogil:
    cdef Lent lent
    cdef void* address = take(cache, size, &lent)
    if address != NULL:
        clear(address, size, &lent)
    return address


cdef void* cache_realloc(Cache* cache, void* address, bytes_t has, size_t size) noexcept nogil:
    """pre: a block of `has` bytes of this cache"""
    cdef Lent lent
    cdef void* moved
    if size <= has and size >= has / 2:
        return address
    moved = take(cache, size, &lent) if size >= cache.threshold else system.malloc(system.context, size)
    if moved != NULL:
        memcpy(moved, address, min(<size_t> has, size))
        give_back(cache, address)
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
    if address == NULL or not may_be_block(address) or not give_back(<Cache*> self, address):
        system.free(system.context, address, size)


# --- the handler of the process ---

cdef inline Cache* owner_of(void* address, bytes_t* size) noexcept nogil:
    """The cache whose block begins there, of all that were ever installed; NULL: it is the system's."""
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
        if give_back(cache, address):
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
    A memory handler that serves arrays of at least `threshold` bytes in the name of a tenant."""

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
        """In whose name it allocates."""
        return self.tenant

    @property
    def live_bytes(self) -> int:
        """Bytes of blocks that arrays have now."""
        return atomic_load(&self.cache.live, RELAXED)

    def take_peak(self) -> int:
        """The most that arrays had since this was last asked for."""
        cdef uint64_t peak = max(atomic_load(&self.cache.peak, RELAXED), atomic_load(&self.cache.live, RELAXED))
        atomic_store(&self.cache.peak, atomic_load(&self.cache.live, RELAXED), RELAXED)
        return peak

    def enter(self) -> Any:
        """Serve the calling context from now on; gives the handler that did before, for `leave`."""
        return set_handler(self.capsule)

    def leave(self, before: Any) -> None:
        """Let the calling context have the handler that it had before."""
        set_handler(before)

    def install(self) -> None:
        """Serve every context that has no handler of its own."""
        global installed, known
        Py_INCREF(self.capsule)             # its arrays will not tell whose they are
        self.cache.next = known
        known = self.cache
        # Who takes back first: an array may be made by the new functions as soon as one of them is there.
        default_handler.allocator.free = process_free
        default_handler.allocator.realloc = process_realloc
        installed = self.cache
        default_handler.allocator.malloc = process_malloc
        default_handler.allocator.calloc = process_calloc


def uninstall() -> None:
    """Serve no new arrays of the process; those that are there come back here when they go."""
    global installed
    installed = NULL


def is_installed() -> bool:
    """Whether arrays of contexts without a handler of their own are served here."""
    return installed != NULL


def take_refusal() -> str | None:
    """Why the calling thread's last request was refused, once; None if none was."""
    global refused_by
    cdef Cache* cache = <Cache*> refused_by
    if cache == NULL:
        return None
    refused_by = NULL
    return str(last_exception(cache.table))
