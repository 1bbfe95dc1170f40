"""Plain host memory, and how much of it there is.

A segment is one private anonymous mapping, so a forked child that writes to it writes to its own copy, and
giving it back gives the pages back. Pinned memory is the same thing, locked in place where the system permits that.

On a device that shares memory, a segment is a mapping of a file of its own that has no name (memfd): its descriptor
is what another process needs, and shows nothing else. The file can be neither grown nor shrunk, so that no other
process can take pages away. A forked child gets private mappings of the same files, as it does of anonymous memory,
but for what it has not written yet it sees what its parent writes. What was imported a child does not have at all.

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
    bint shareable                  # segments and chunks have files of their own
    bytes_t total                   # atomic; as last read
    bytes_t used                    # atomic; bytes of segments and chunks that exist
    pthread_mutex_t mutex           # guards `segments`
    PointerMap segments             # address -> size, as a pointer
    PointerMap files                # address -> descriptor + 1, of segments that have one
    PointerMap imported             # address -> size, of other processes' segments
    size_t leaving                  # segments on their way back to the system, which may come back into the map
    ForkGuard fork_guard
    int group_count
    LimitFiles[MAX_GROUPS] groups


cdef int memory_open(HostMemory* memory, object groups, bint shareable) except -1
cdef void memory_close(HostMemory* memory) noexcept nogil

# Count `size` more bytes as used, or refuse; uncount them.
cdef status_t memory_take(HostMemory* memory, bytes_t size) noexcept nogil
cdef void memory_return(HostMemory* memory, bytes_t size) noexcept nogil

cdef status_t memory_info(HostMemory* memory, bytes_t* free, bytes_t* total) noexcept nogil
cdef status_t segment_allocate(HostMemory* memory, bytes_t size, address_t* address) noexcept nogil

# A size of 0 stands for whatever size the segment has.
cdef status_t segment_free(HostMemory* memory, address_t address, bytes_t size) noexcept nogil

# The segment's descriptor, 4 bytes; a mapping of all of a file that was passed by descriptor; the end of that.
cdef status_t segment_export(HostMemory* memory, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil
cdef status_t segment_import(HostMemory* memory, const unsigned char* handle, size_t length,
                             address_t* base) noexcept nogil
cdef status_t segment_close(HostMemory* memory, address_t base) noexcept nogil

# A file of its own for a piece of memory, of this size for good; -1 with errno if the system refuses.
cdef int open_sized_file(bytes_t size) noexcept nogil

# Whether a descriptor is that of such a file: nobody can change its size any more. `size` is what it has.
cdef bint is_sized_file(int descriptor, bytes_t* size) noexcept nogil
