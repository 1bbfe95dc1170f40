"""The threads behind host streams: when they start and end, and what they do.

A queue has a worker from its first item until the worker has been idle for a second; the next item starts another
worker. So a stream that is never destroyed costs a record, not a thread.

At exit, after the exit functions that were registered later, the process finishes all submitted work; then it joins all
workers, and streams accept no more work. Ctrl-C stops the waiting. When a device is collected, its workers finish their
work and end on their own.

A child of fork has no workers. The parent's streams are dead there, except the default stream, which starts anew. The
child does not do queued work, and events recorded before count as done, because nothing in the child will touch the
memory that they guard.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t
from allotment._devices.host.queue cimport Queue, Scheduler, Work

cdef Scheduler* scheduler_new() noexcept nogil

# Called when the device is deallocated. pre: no captures
cdef void scheduler_release(Scheduler* scheduler) noexcept nogil

# pre, for everything below: the scheduler's mutex is held.

cdef void queue_open(Scheduler* scheduler, Queue* queue) noexcept nogil

# On OK the queue owns the work.
cdef status_t queue_put(Queue* queue, Work* work) noexcept nogil

# The stream is gone: the worker ends when its work is done, and the record can serve another stream.
cdef void queue_end(Queue* queue) noexcept nogil

# Waits for a position; releases the mutex meanwhile.
cdef void queue_await(Queue* queue, uint64_t position) noexcept nogil

# Whether the calling thread is the queue's worker: waiting for the queue would then be a deadlock.
cdef bint is_own_worker(const Queue* queue) noexcept nogil

# Whether the calling thread is a worker and waiting for the queue would never end, because the queue waits for this
# worker's queue, directly or through others. Conservative: considers everything that is queued. Linear in the number of
# queued items.
cdef bint would_wait_for_itself(Queue* queue) noexcept nogil

# Returns the queue whose worker is the calling thread, or NULL, and whether more work is queued behind the current
# item. Acquires the mutex.
cdef Queue* queue_of_caller(bint* has_more) noexcept nogil
