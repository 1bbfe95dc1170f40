cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uintptr_t

from allotment._core.contract.types cimport bytes_t

from contextlib import suppress

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #endif
    #if defined(MADV_WIPEONFORK)
    static void allotment_keep_from_children(void* start, size_t size) {
        (void) !madvise(start, size, MADV_WIPEONFORK);      /* an old system may not know it */
    }
    #else
    static void allotment_keep_from_children(void* start, size_t size) {}
    #endif
    """
    void keep_from_children "allotment_keep_from_children"(void* start, size_t size) noexcept nogil

cdef enum:
    LARGE_PAGE = 2 << 20


@cython.final
cdef class HostCopy:
    """Pages of the host, for the contents of paused memory."""

    cdef bint fits(self, bytes_t size) noexcept:
        return size <= self.size <= size + size // 100 + LARGE_PAGE

    cdef object view(self, bytes_t offset, bytes_t size):
        cdef object pages = self.pages
        if pages is None:
            return None
        offset += self.skipped
        return memoryview(pages)[offset:offset + size].toreadonly()

    cdef int close(self) except -1:
        pages, self.pages = self.pages, None
        if pages is not None:
            try:
                pages.close()
            except BufferError:     # a view that still exists keeps the pages
                pass
        return 0

    def __del__(self):
        self.close()


cdef HostCopy host_copy(bytes_t size, bint for_children):
    cdef HostCopy copy = HostCopy.__new__(HostCopy)
    cdef unsigned char[::1] view
    cdef uintptr_t first
    import mmap     # imported late: few programs need it

    copy.size = size
    try:
        copy.pages = mmap.mmap(-1, size + LARGE_PAGE, **(
            {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}))
    except (OSError, OverflowError) as error:
        raise MemoryError(f"the host has no memory for {size} bytes of paused memory: {error}") from error
    view = copy.pages
    first = <uintptr_t> &view[0]
    copy.start = <char*> ((first + LARGE_PAGE - 1) // LARGE_PAGE * LARGE_PAGE)
    copy.skipped = <uintptr_t> copy.start - first
    # Only whole large pages: the last one would waste up to 2 MiB.
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= LARGE_PAGE:
        with suppress(OSError):         # a system without large pages
            copy.pages.madvise(mmap.MADV_HUGEPAGE, copy.skipped, size // LARGE_PAGE * LARGE_PAGE)
    if not for_children:
        keep_from_children(<void*> first, size + LARGE_PAGE)
    return copy
