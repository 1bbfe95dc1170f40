"""The threads behind host streams: when they start and end, what they do in between.

A queue has a worker from its first item until the worker has had nothing to do for a second; the next item starts
another. So a stream that is never destroyed costs a record, not a thread.

At exit, after the functions that were registered later, everything submitted is finished, then all workers are
joined and streams take no more work. Ctrl-C gives up waiting. When a device is collected its workers finish what
they have and end on their own.

In a child of fork there are no workers. The parent's streams are dead there, except the default stream, which
starts anew; what was queued is not done, and events recorded before count as done, because nothing in the child
will touch the memory that they guard.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t
from allotment._devices.host.queue cimport Queue, Scheduler, Work

cdef Scheduler* scheduler_new() noexcept nogil

# The device lets go of it. Captures must be gone.
cdef void scheduler_release(Scheduler* scheduler) noexcept nogil

# pre, for all that follow: the scheduler's mutex is held.

cdef void queue_open(Scheduler* scheduler, Queue* queue) noexcept nogil

# On OK the work is the queue's.
cdef status_t queue_put(Queue* queue, Work* work) noexcept nogil

# The stream is gone: the worker ends when it has done its work, and the record can serve another stream.
cdef void queue_end(Queue* queue) noexcept nogil

# Wait for a position; others may take the mutex meanwhile.
cdef void queue_await(Queue* queue, uint64_t position) noexcept nogil

# Whether the calling thread is the queue's worker, so that waiting for the queue would be waiting for itself.
cdef bint is_own_worker(const Queue* queue) noexcept nogil
