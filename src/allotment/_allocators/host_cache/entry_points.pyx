from libc.stddef cimport size_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from allotment._allocators.host_cache.allocation_map cimport ALREADY_FREE, DONE, NOT_ALLOCATED, OUT_OF_MEMORY, Outcome
from allotment._allocators.host_cache.default_cache cimport default_allocate, default_free, record_free
from allotment._allocators.host_cache.entry_points cimport CPU_ENTRY_VERSION, CpuEntryPoints
from allotment._allocators.host_cache.exact_cache cimport Cache, cache_allocate, cache_free
from allotment._core.contract.types cimport address_t

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #define ALLOTMENT_THREAD __declspec(thread)
    #else
    #define ALLOTMENT_THREAD __thread
    #endif
    static ALLOTMENT_THREAD int allotment_last_outcome;
    static ALLOTMENT_THREAD unsigned long long allotment_last_figure;
    """
    Outcome last_outcome "allotment_last_outcome"
    unsigned long long last_figure "allotment_last_figure"      # the size or the address that was refused


cdef int note(Outcome outcome, unsigned long long figure) noexcept nogil:
    """Store the outcome for `last_error`; return 1 for success."""
    global last_outcome, last_figure
    if outcome == DONE:
        return 1
    last_outcome = outcome
    last_figure = figure
    return 0


# The context is a Cache, or NULL for the default allocator.

cdef void* entry_allocate(void* context, size_t size) noexcept nogil:
    cdef address_t address = 0
    cdef Outcome outcome = (
        cache_allocate(<Cache*> context, size, &address) if context != NULL else default_allocate(size, &address))
    return <void*> address if note(outcome, size) else NULL


cdef int entry_free(void* context, void* memory) noexcept nogil:
    cdef address_t address = <address_t> memory
    return note(cache_free(<Cache*> context, address) if context != NULL else default_free(address), address)


cdef int entry_record_free(void* context, void* memory) noexcept nogil:
    return note(record_free(<address_t> memory), <address_t> memory)


cdef size_t entry_last_error(void* context, char* text, size_t capacity) noexcept nogil:
    """Copy the text of the calling thread's last failure, cut to `capacity`; return its length, 0 if there was none."""
    cdef char words[128]
    cdef size_t length = 0
    if last_outcome == OUT_OF_MEMORY:
        length = snprintf(words, sizeof(words), b"out of memory: tried to allocate %llu bytes", last_figure)
    elif last_outcome == NOT_ALLOCATED:
        length = snprintf(words, sizeof(words), b"%#llx is not the start of memory in use", last_figure)
    elif last_outcome == ALREADY_FREE:
        length = snprintf(words, sizeof(words), b"%#llx is free already", last_figure)
    length = min(length, capacity)
    memcpy(text, words, length)
    return length


cdef CpuEntryPoints entry_points_of(Cache* cache) noexcept nogil:
    return CpuEntryPoints(
        sizeof(CpuEntryPoints), CPU_ENTRY_VERSION, cache, entry_allocate, entry_free, entry_record_free,
        entry_last_error)
