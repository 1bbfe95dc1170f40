"""Large pages for the engine's own records, once there are many.

A million blocks and the map of their addresses take 200 MiB. With pages of 4 KiB, nearly every lookup there misses the
TLB, in addition to the caches. Linux provides pages of 2 MiB to programs that ask for them, if the system allows it.
"""

from libc.stddef cimport size_t

cdef extern from *:
    """
    #ifndef ALLOTMENT_LARGE_PAGES
    #define ALLOTMENT_LARGE_PAGES
    #if defined(__linux__)
    #include <stdlib.h>
    #include <sys/mman.h>
    #endif
    #define ALLOTMENT_LARGE_PAGE ((size_t) 2 << 20)
    /* Advice: whether it is followed changes nothing but the speed. */
    static inline void allotment_advise_large_pages(void* memory, size_t size) {
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        size_t first = ((size_t) memory + ALLOTMENT_LARGE_PAGE - 1) & ~(ALLOTMENT_LARGE_PAGE - 1);
        size_t end = ((size_t) memory + size) & ~(ALLOTMENT_LARGE_PAGE - 1);
        if (first < end) madvise((void*) first, end - first, MADV_HUGEPAGE);
    #endif
    }
    /* To be freed with `free`. */
    static inline void* allotment_large_page(void) {
    #if defined(__linux__)
        void* memory = 0;
        if (posix_memalign(&memory, ALLOTMENT_LARGE_PAGE, ALLOTMENT_LARGE_PAGE) != 0) return 0;
        allotment_advise_large_pages(memory, ALLOTMENT_LARGE_PAGE);
        return memory;
    #else
        return malloc(ALLOTMENT_LARGE_PAGE);
    #endif
    }
    #endif
    """
    size_t LARGE_PAGE "ALLOTMENT_LARGE_PAGE"
    void advise_large_pages "allotment_advise_large_pages"(void* memory, size_t size) noexcept nogil
    void* large_page "allotment_large_page"() noexcept nogil     # NULL without host memory for it
