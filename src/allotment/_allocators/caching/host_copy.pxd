"""Host memory that holds the contents of paused memory.

Pages are found when they are first written, large ones where the system has any. They may stay for the next pause
(`keep_host`). They are never pinned: that takes longer than a copy, and later copies were hardly faster with it.
"""

from allotment._core.contract.types cimport bytes_t

cdef class HostCopy:
    cdef object pages           # mmap
    cdef char* start            # of `size` bytes, where a large page begins
    cdef bytes_t size
    cdef bytes_t skipped        # of `pages`, before `start`

    cdef bint fits(self, bytes_t size) noexcept         # exactly enough, but for a hundredth
    cdef object view(self, bytes_t offset, bytes_t size)    # read-only, and valid as long as it exists
    cdef int close(self) except -1                      # no code may use it any more

# Raises MemoryError. Children of a fork that cannot use the device get no share of the pages, which would keep them.
cdef HostCopy host_copy(bytes_t size, bint for_children)
