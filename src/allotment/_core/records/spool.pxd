"""Records on their way to a file: batches that the engine fills and a writer takes.

The trace asks for the place of its next record (`spool_place`), under whatever guards the trace; a full batch goes
into a queue, under a short lock of the spool's own, and the writer is woken. So the engine never waits for a file. The
memory is bounded because requests wait instead, before they enter the engine (`spool_pace`): as long as more than
`MOST_FULL` batches are in the queue. What cannot be kept at all, because the host has no memory for a batch or the
file has failed, is counted in `lost`.

A child of fork has no writer: its records are lost, and nothing waits for them.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock

cdef extern from "pythread.h":
    ctypedef void* PyThread_type_lock

cdef enum:
    BATCH = 2048                # records
    MOST_FULL = 128             # batches in the queue before requests wait: 16 MiB

cdef struct Batch:
    Batch* next
    size_t count
    TraceRecord records[BATCH]

cdef struct Bell:
    # What one thread waits for and others ring; rung twice it wakes once.
    PyThread_type_lock lock     # held but for the time between a ring and the waking
    bint rung

cdef struct Spool:
    Batch* filling              # guarded as the trace is; all others by `lock`
    Lock lock
    Batch* first                # full ones, oldest first
    Batch* last
    size_t full
    Batch* spare
    uint64_t lost
    bint closed                 # no one takes batches any more
    int paced                   # threads that wait for the writer
    Bell work, room
    ForkGuard fork_guard

cdef bint spool_init(Spool* spool) noexcept nogil
cdef void spool_clear(Spool* spool) noexcept nogil
cdef void spool_close(Spool* spool) noexcept nogil

# The side of the engine.
cdef TraceRecord* spool_place(void* spool) noexcept nogil
cdef void spool_flush(Spool* spool) noexcept nogil      # what is filled so far. pre: as `spool_place`
cdef void spool_pace(Spool* spool) noexcept nogil       # pre: outside of the engine

# The side of the writer.
cdef Batch* spool_take(Spool* spool, long long patience_us) noexcept nogil
cdef void spool_return(Spool* spool, Batch* batch) noexcept nogil


cdef inline bint spool_is_behind(const Spool* spool) noexcept nogil:
    return spool.full > MOST_FULL and not spool.closed
