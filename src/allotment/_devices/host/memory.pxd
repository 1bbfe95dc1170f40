"""Plain host memory, and how much of it there is.

A segment is one private anonymous mapping, so a forked child that writes to it writes to its own copy, and
giving it back gives the pages back. Pinned memory is the same thing, locked in place where the system permits that.
Which segments exist is remembered, because the
system would let go of anybody's memory at a wrong address.

`total` is the lesser of the machine's memory and the limits of the control groups around the process. Linux
promises more memory than there is and ends a process that takes it at its word; so that a request too many is
refused instead, segments and chunks together never exceed `total`.
"""

from libc.stddef cimport size_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.pointer_map cimport PointerMap
from allotment._devices.shared.posix cimport pthread_mutex_t

cdef enum:
    MAX_GROUPS = 32                 # control groups are rarely nested more than a handful deep

cdef struct LimitFiles:             # of one control group; see cgroups.py
    char* limit
    char* usage
    char* details
    char* reclaimable

cdef struct HostMemory:
    bytes_t page
    bytes_t total                   # atomic; as last read
    bytes_t used                    # atomic; bytes of segments and chunks that exist
    pthread_mutex_t mutex           # guards `segments`
    PointerMap segments             # address -> size, as a pointer
    size_t leaving                  # segments on their way back to the system, which may come back into the map
    ForkGuard fork_guard
    int group_count
    LimitFiles[MAX_GROUPS] groups


cdef int memory_open(HostMemory* memory, object groups) except -1
cdef void memory_close(HostMemory* memory) noexcept nogil

# Count `size` more bytes as used, or refuse; uncount them.
cdef status_t memory_take(HostMemory* memory, bytes_t size) noexcept nogil
cdef void memory_return(HostMemory* memory, bytes_t size) noexcept nogil

cdef status_t memory_info(HostMemory* memory, bytes_t* free, bytes_t* total) noexcept nogil
cdef status_t segment_allocate(HostMemory* memory, bytes_t size, address_t* address) noexcept nogil

# A size of 0 stands for whatever size the segment has.
cdef status_t segment_free(HostMemory* memory, address_t address, bytes_t size) noexcept nogil
