"""Virtual memory on the host: addresses apart from the memory behind them.

    addresses   range  |  view  |  view  |......|  view  |..............|      reserved with PROT_NONE
                           |        |               |
    memory      arena  | chunk  | chunk  |  hole  | chunk  | ...               one file that has no name

A *range* is reserved addresses. A *chunk* is a piece of the arena, a memory file; its handle is a number. A *view* is
one mapping of a whole chunk inside a range; a chunk may have several. A chunk lives until its handle is released and
its last view is gone. Then the arena punches a hole in its place, and the system has the memory again.

Why one file: with a file for each chunk, some ten thousand chunks would reach the limit on open descriptors. Offsets in
a file cost nothing, so the arena keeps a chunk's place for the next chunk of its size. It uses new and recycled places
from the lowest up. Chunks that are created one after another and mapped side by side are then adjacent in the file too,
and the system keeps one mapping for all of them. It allows 65,530 mappings, which 128 GiB of scattered 2 MiB chunks
would use up.

Shareable chunks: a descriptor gives access to all of its file. So where memory is shared each chunk has its own file,
as each plain segment has (see memory). The file is closed with the chunk, and the arena never punches a hole in it. A
descriptor imports a chunk of another process; the descriptor is closed when the handle is released, while the views
stay.

Cost in microseconds per chunk (called from Python; best of several runs on a busy virtual machine, Linux 6.18). The
calls are cheap; the pages cost, when they are first touched and when they are released:

               create   map   set access   unmap   release
    2 MiB         0.2     2            1       2       0.5
    20 MiB        0.2     4            1       2       0.7

    if touched           first touch     unmap   release
    2 MiB                       2300       200       300
    20 MiB                     25000      1800      3500

Fork: a child shares the file and must not write into its parent's memory. In the child every view becomes private: the
child writes to its own copy. Where it has not written yet, it still sees the parent's file, which the parent keeps
changing; so it can rely only on memory that it fills itself. The child's new chunks come from a file of its own. It can
unmap and release its parent's chunks, but not map them. It does not have views of other processes' chunks at all.

One mutex guards everything here; a thread holds it during system calls, and takes no other lock under it.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.table cimport share_t, status_t
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._devices.host.memory cimport HostMemory
from allotment._devices.shared.handles cimport Handle, Handles
from allotment._devices.shared.posix cimport pthread_mutex_t

cdef struct Chunk:
    Handle handle
    uint64_t offset                 # in the arena
    int file                        # its own, or -1: it is in the arena, or its file is not needed any more
    bint imported                   # of another process, for which its memory counts
    bytes_t size
    uint32_t views
    bint released                   # its handle is gone; the last view releases the memory
    bint inherited                  # it is in the file of the process that forked this one

cdef struct View:
    Handle handle
    address_t address
    Chunk* chunk
    bint accessible                 # set_access was called
    bint mapped                     # False for records that wait to be reused

cdef struct Range:
    address_t base
    bytes_t size
    uint64_t views
    # The index of the view on each page, 0 if none. The table is address space like the range itself: it takes memory,
    # 4 bytes a page, only for the pages that something is mapped on.
    uint32_t* view_at

cdef struct FreeList:                  # places in the arena for chunks of one size
    bytes_t size
    uint64_t next                   # unused places: next, next + size, ... below end
    uint64_t end
    uint64_t* places                # a heap of places to reuse, lowest offset first
    size_t count
    size_t capacity

cdef struct Arena:
    pthread_mutex_t mutex
    HostMemory* memory
    int file                        # -1 until the first chunk
    uint64_t end                    # of the file
    FreeList* free_lists                  # by size
    size_t free_list_count
    size_t free_list_capacity
    Range* ranges                   # by address
    size_t range_count
    size_t range_capacity
    Handles chunks
    Handles views
    ForkGuard fork_guard


cdef void arena_open(Arena* arena, HostMemory* memory) noexcept nogil

# Closes the file. Ranges and views stay: code may still hold addresses in them.
cdef void arena_close(Arena* arena) noexcept nogil

cdef status_t range_reserve(Arena* arena, bytes_t size, address_t* address) noexcept nogil
cdef status_t range_release(Arena* arena, address_t address, bytes_t size) noexcept nogil
cdef status_t chunk_create(Arena* arena, bytes_t size, chunk_t* chunk) noexcept nogil
cdef status_t chunk_release(Arena* arena, chunk_t handle, bytes_t size) noexcept nogil
cdef status_t map_chunk(Arena* arena, address_t address, bytes_t size, chunk_t handle) noexcept nogil
cdef status_t unmap(Arena* arena, address_t address, bytes_t size) noexcept nogil
cdef status_t set_access(Arena* arena, address_t address, bytes_t size) noexcept nogil

# Returns the descriptor of a chunk's own file (4 bytes); makes a chunk of another process's descriptor.
cdef status_t chunk_export(Arena* arena, chunk_t handle, share_t kind, unsigned char* written, size_t capacity,
                           size_t* length) noexcept nogil
cdef status_t chunk_import(Arena* arena, share_t kind, const unsigned char* written, size_t length, bytes_t size,
                           chunk_t* handle) noexcept nogil
