from libc.stddef cimport size_t

from allotment._allocators.host_cache.system_memory cimport ALIGNMENT, NO_FILL, Fill, System

cdef extern from *:
    """
    #if defined(_WIN32)
    #include <malloc.h>
    static void* allotment_aligned_allocate(size_t alignment, size_t size) { return _aligned_malloc(size, alignment); }
    static void allotment_aligned_free(void* memory) { _aligned_free(memory); }
    #else
    #include <stdlib.h>
    static void* allotment_aligned_allocate(size_t alignment, size_t size) {
        void* memory = NULL;
        return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
    }
    static void allotment_aligned_free(void* memory) { free(memory); }
    #endif
    """
    void* allotment_aligned_allocate(size_t alignment, size_t size) noexcept nogil
    void allotment_aligned_free(void* memory) noexcept nogil


cdef void* aligned_allocate(void* self, size_t size) noexcept nogil:
    return allotment_aligned_allocate(ALIGNMENT, size) if size != 0 else NULL


cdef void aligned_free(void* self, void* memory) noexcept nogil:
    allotment_aligned_free(memory)


fill = Fill(NO_FILL, NO_FILL)
aligned_memory = System(NULL, aligned_allocate, aligned_free)
