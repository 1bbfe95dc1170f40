from libc.stddef cimport size_t

from allotment.core.allocation_map cimport ALREADY_FREE, DONE, NOT_ALLOCATED, OUT_OF_MEMORY, Outcome
from allotment.core.cpu_entry_points cimport (
    ENTRY_ALREADY_FREE, ENTRY_NOT_ALLOCATED, ENTRY_OK, ENTRY_OUT_OF_MEMORY, ENTRY_POINTS_VERSION, EntryError,
    EntryPoints)
from allotment.core.default_cache cimport default_allocate, default_free, record_free
from allotment.core.exact_cache cimport Cache, cache_allocate, cache_free
from allotment.core.types cimport address_t

cdef extern from *:
    """
    #if defined(_MSC_VER)
    static __declspec(thread) int allotment_entry_error;
    #else
    static __thread int allotment_entry_error;
    #endif
    """
    int last_error "allotment_entry_error"


cdef EntryError entry_error(Outcome outcome) noexcept nogil:
    if outcome == OUT_OF_MEMORY:
        return ENTRY_OUT_OF_MEMORY
    if outcome == NOT_ALLOCATED:
        return ENTRY_NOT_ALLOCATED
    if outcome == ALREADY_FREE:
        return ENTRY_ALREADY_FREE
    return ENTRY_OK


cdef void* entry_allocate(void* ctx, size_t size) noexcept nogil:
    global last_error
    cdef address_t address = 0
    cdef Outcome outcome = (
        cache_allocate(<Cache*> ctx, size, &address) if ctx != NULL else default_allocate(size, &address))
    if outcome != DONE:
        last_error = entry_error(outcome)
        return NULL
    return <void*> address


cdef void entry_free(void* ctx, void* memory) noexcept nogil:
    global last_error
    cdef address_t address = <address_t> memory
    cdef Outcome outcome = cache_free(<Cache*> ctx, address) if ctx != NULL else default_free(address)
    if outcome != DONE:
        last_error = entry_error(outcome)


cdef void entry_record_free(void* ctx, void* memory) noexcept nogil:
    global last_error
    cdef Outcome outcome = record_free(<address_t> memory)
    if outcome != DONE:
        last_error = entry_error(outcome)


cdef int entry_take_error(void* ctx) noexcept nogil:
    global last_error
    cdef int error = last_error
    last_error = ENTRY_OK
    return error


cdef EntryPoints entry_points_of(Cache* cache) noexcept nogil:
    return EntryPoints(
        sizeof(EntryPoints), ENTRY_POINTS_VERSION, cache, entry_allocate, entry_free, entry_record_free,
        entry_take_error)
