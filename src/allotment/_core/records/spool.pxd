"""Records on their way to a file: batches that the engine fills and a writer consumes.

The trace asks for the place of its next record (`spool_place`), under the lock that guards the trace. A full batch goes
into a queue, under a short lock of the spool, which then wakes the writer. So the engine never waits for a file.
Requests wait instead, before they enter the engine (`spool_pace`), while more than `MOST_FULL` batches are queued; that
bounds the memory. `lost` counts the records that could not be kept, because the host had no memory for a batch or the
file failed.

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
    # One thread waits for the bell and others ring it; two rings wake the thread once.
    PyThread_type_lock lock     # held except between a ring and the wake-up
    bint rung

cdef struct Spool:
    Batch* filling              # guarded by the trace's lock; the other fields by `lock`
    Lock lock
    Batch* first                # full ones, oldest first
    Batch* last
    size_t full
    Batch* spare
    uint64_t lost
    bint closed                 # no writer takes batches any more
    int paced                   # threads that wait for the writer
    Bell work, room
    ForkGuard fork_guard

cdef bint spool_init(Spool* spool) noexcept nogil
cdef void spool_clear(Spool* spool) noexcept nogil
cdef void spool_close(Spool* spool) noexcept nogil

# The functions that the engine calls:
cdef TraceRecord* spool_place(void* spool) noexcept nogil
cdef void spool_flush(Spool* spool) noexcept nogil      # queues the records written so far. pre: as for `spool_place`
# Waits briefly while the writer is behind; returns whether the writer has caught up. A caller that holds the
# interpreter lock checks for signals before it calls again, because the disk may have stalled for good. pre: outside
# the engine
cdef bint spool_pace(Spool* spool) noexcept nogil

# The functions that the writer thread calls:
cdef Batch* spool_take(Spool* spool, long long patience_us) noexcept nogil
cdef void spool_return(Spool* spool, Batch* batch) noexcept nogil


cdef inline bint spool_is_behind(const Spool* spool) noexcept nogil:
    return spool.full > MOST_FULL and not spool.closed
