"""Plain host memory, and how much of it there is.

A segment is one private anonymous mapping, so a forked child that writes to it writes to its own copy, and freeing the
segment releases the pages. Pinned memory is the same, but locked in memory where the system permits that.

On a device that shares memory, a segment maps its own unnamed file (memfd). Another process needs only its descriptor,
which gives access to nothing else. The file can neither grow nor shrink, so no other process can take pages away. A
forked child gets private mappings of the same files, as of anonymous memory; but where the child has not written yet,
it sees what its parent writes. A child does not have imported memory at all.

This module keeps track of the existing segments, because the system would unmap any memory at a wrong address.

`total` is the lesser of the machine's memory and the limits of the control groups around the process. Linux promises
more memory than it has and kills a process that relies on the promise. So that a request is refused instead, segments
and chunks together never exceed `total`.
"""

from libc.stddef cimport size_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.pointer_map cimport PointerMap
from allotment._devices.shared.posix cimport pthread_mutex_t

cdef enum:
    MAX_GROUPS = 32                 # control groups are rarely nested deeper than a handful

cdef struct LimitFiles:             # of one control group; see cgroups.py
    char* limit
    char* usage
    char* details
    char* reclaimable

cdef struct HostMemory:
    bytes_t page
    bint shareable                  # segments and chunks have their own files
    bytes_t total                   # atomic; the last value read
    bytes_t used                    # atomic; bytes of existing segments and chunks
    pthread_mutex_t mutex           # guards `segments`
    PointerMap segments             # address -> size, as a pointer
    PointerMap files                # address -> descriptor + 1, of segments that have one
    PointerMap imported             # address -> size, of other processes' segments
    size_t leaving                  # segments being unmapped, which return to the map if that fails
    ForkGuard fork_guard
    int group_count
    LimitFiles[MAX_GROUPS] groups


cdef int memory_open(HostMemory* memory, object groups, bint shareable) except -1
cdef void memory_close(HostMemory* memory) noexcept nogil

# Counts `size` more bytes as used, or refuses; the second function undoes that.
cdef status_t memory_take(HostMemory* memory, bytes_t size) noexcept nogil
cdef void memory_return(HostMemory* memory, bytes_t size) noexcept nogil

cdef status_t memory_info(HostMemory* memory, bytes_t* free, bytes_t* total) noexcept nogil
cdef status_t segment_allocate(HostMemory* memory, bytes_t size, address_t* address) noexcept nogil

# A size of 0 means the segment's own size.
cdef status_t segment_free(HostMemory* memory, address_t address, bytes_t size) noexcept nogil

# Returns the segment's descriptor (4 bytes); maps the whole file behind such a descriptor; unmaps it.
cdef status_t segment_export(HostMemory* memory, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil
cdef status_t segment_import(HostMemory* memory, const unsigned char* handle, size_t length,
                             address_t* base) noexcept nogil
cdef status_t segment_close(HostMemory* memory, address_t base) noexcept nogil

# Creates a file for a piece of memory, of fixed size; -1 with errno if the system refuses.
cdef int open_sized_file(bytes_t size) noexcept nogil

# Whether a descriptor belongs to such a file, whose size nobody can change; stores the size in `size`.
cdef bint is_sized_file(int descriptor, bytes_t* size) noexcept nogil
