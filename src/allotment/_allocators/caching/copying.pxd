"""Copies paused memory to the host and back, as fast as the bus goes.

The contents of a pool lie in a copy one run behind the other, and the copy is cut into spans. Several threads each take
the next span, have the device copy it through one of their two pinned buffers, and meanwhile work on the other one. All
copies are on one stream, because a device takes long to change between streams:

    save       device ──copy──> buffer ──store──> host memory, whose pages the system finds at this moment
                                       └─write──> file, with a checksum of the span
    restore    host memory or file ──> buffer ──copy──> device

So finding pages, which takes longer than the bus, is done by all threads at once, and only the buffers are pinned. The
buffers are the ring: they are made at the first pause, and stay with the allocator until it is closed. Memory that the
device reaches directly, because it is the host itself, needs no buffer.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, event_t, stream_t

cdef struct Run:
    address_t address           # on the device
    bytes_t offset              # in the copy
    bytes_t size

cdef enum Task:
    SAVE, RESTORE
    FORGET                      # releases the pages of a copy in memory to the system; runs mean nothing then

cdef struct Job:
    Task task
    DeviceTable* table
    const Run* runs             # in order of their offsets
    size_t run_count
    bytes_t total               # bytes that will be moved, for progress
    bytes_t size                # of the copy
    bytes_t span
    char* memory                # where the copy is: memory, or NULL: a file
    int descriptor
    uint64_t* checksums         # of a file: one for each span
    bint direct                 # the device reaches `memory` without a buffer
    stream_t stream             # of all copies
    # Changed by several threads at once.
    uint64_t next               # span
    uint64_t end                # first span that is not to be taken
    uint64_t done               # bytes
    uint64_t stop               # not 0: take no further spans

cdef struct Side:               # what one thread works with
    void* memory                # of both buffers; NULL: not allocated yet
    bint pinned                 # the device made it
    char* buffers[2]            # aligned for direct I/O
    event_t events[2]           # for the end of the copies of each buffer
    int event_count
    bint recorded[2]            # and not waited for yet
    stream_t stream             # of the jobs that begin with this lane
    bint has_stream
    # The reason why a thread stopped.
    status_t status
    const char* operation       # of the device
    int error                   # errno of the file
    bint changed                # a span of the file is not what was written
    bint lost                   # the device cannot tell whether copies are still under way: never used or freed again

cdef class Lane:
    cdef Device device
    cdef bytes_t span
    cdef Side side
    cdef void close(self) noexcept

cdef class Ring:
    cdef Device device
    cdef list idle              # lanes
    cdef bint closed

    cdef Lane idle_lane(self)           # taken from them; None if there is none
    cdef int close_idle(self) except -1
    cdef list take(self, size_t count, bytes_t span)
    cdef int give(self, list lanes) except -1
    cdef int close(self) except -1
    # `progress`: None, or called with (bytes done, bytes in total). Raises what the device and the file say, and what
    # `progress` raises; no thread and no copy is under way then.
    cdef int run(self, Job* job, object progress) except -1
    cdef int run_here(self, Job* job, Lane lane, object progress) except -1
    cdef int run_in_threads(self, Job* job, list lanes, object progress) except -1

cdef Ring new_ring(Device device)
cdef bytes_t span_size() noexcept
