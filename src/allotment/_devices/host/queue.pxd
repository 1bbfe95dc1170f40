"""The shape of host streams: queues, positions in them, captures.

A *queue* is what stands behind a stream: work in the order it was given, and a worker thread while there is
any. Its items are numbered; `submitted` is the number of the last one given, `completed` of the last one done:

    item      1   2   3   4   5   6   7   8
              done        |running|  waiting
              completed = 3           submitted = 8

An *event* is a position: recording one on this queue writes down "8", and asking whether it is done compares 8
with `completed`. Nothing is put into the queue. Queue and position travel together as one number, a *ticket*, so
an event can be recorded on one thread and asked on another without a lock. A queue's positions never go back, also
when a destroyed stream's queue serves a new stream: old tickets stay done.

A wait can only be for a position that was given before it, so queues never wait for each other in a circle.

While a stream is captured its tasks become nodes of the capture's graph instead. `last_nodes` are those that its
next node will need. An event recorded then stands for these nodes, and a stream that waits for it joins the capture.

Locks. One mutex in the scheduler guards everything here except what is marked atomic. It is held for a few
instructions at a time; neither a task, nor the interpreter lock, nor a destructor is ever waited for under it, so it
may be taken by a thread that holds the interpreter lock.
"""

from cpython.object cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.tools.forks cimport ForkGuard
from allotment._devices.host.work cimport Graph, Task
from allotment._devices.shared.handles cimport Handle, Handles, record_at
from allotment._devices.shared.posix cimport ACQUIRE, atomic_load, pthread_cond_t, pthread_mutex_t, pthread_t

ctypedef uint64_t ticket_t          # index of a queue above POSITION_BITS bits of position in it; 0 is always done

cdef enum:
    POSITION_BITS = 44
    MAX_QUEUES = 1 << 20

cdef struct NodeSet:                # a few indices of nodes, without repeats
    uint32_t* nodes
    size_t count
    size_t capacity

cdef struct Work:                   # one item of a queue
    Work* next
    ticket_t wait_for               # 0: do the task. Otherwise there is none, and the queue waits for the ticket
    Task task

cdef struct Queue:
    Handle handle                   # its index is 0 for the default stream
    Scheduler* scheduler
    Work* first
    Work* last
    uint64_t submitted
    uint64_t completed              # atomic
    pthread_cond_t arrived          # the worker waits here for work
    pthread_cond_t progress         # everybody else waits here for `completed`
    uint32_t waiting                # how many do
    bint running                    # there is a worker
    pthread_t worker
    bint initialised                # the conditions are
    bint destroyed                  # the stream is gone; the worker does what is left and ends
    bint inherited                  # the stream is one of the process that forked this one
    PyObject* exception             # the first that a function raised, until it is raised to a caller
    Capture* capture
    NodeSet last_nodes
    Queue* next_member              # of the same capture

cdef struct Event:
    Handle handle
    ticket_t ticket                 # atomic
    uint64_t capture                # if the ticket is CAPTURED: in which capture, standing for which nodes
    NodeSet nodes

cdef struct Capture:
    uint64_t id
    Graph* graph
    Queue* origin                   # the stream that it was begun on
    Queue* members                  # all streams in it, with the origin
    const char* fault               # why no graph can come of it any more; NULL while one can
    Capture* next

cdef struct Scheduler:
    pthread_mutex_t mutex
    pthread_cond_t idle             # signalled when `pending` falls to 0
    uint64_t pending                # items not completed
    bint closed                     # takes no more work; workers end when theirs is done
    Queue default_queue
    Handles queues
    Handles events
    Capture* captures               # those going on
    uint64_t last_capture
    bint orphaned                   # the device is gone
    ForkGuard fork_guard
    uint64_t references             # the device and each worker; this and what follows under the thread pool's mutex
    bint is_finishing               # somebody waits for its work at exit
    Scheduler* next                 # of all schedulers


# The ticket of an event that was recorded in a capture.
cdef inline ticket_t captured_ticket() noexcept nogil:
    return <uint64_t> 0xFFFF_FFFF_FFFF_FFFF


cdef inline ticket_t ticket_for(const Queue* queue, uint64_t position) noexcept nogil:
    return (<uint64_t> queue.handle.index << POSITION_BITS) | position


cdef inline Queue* queue_of(Scheduler* scheduler, ticket_t ticket) noexcept nogil:
    cdef uint64_t index = ticket >> POSITION_BITS
    if index == 0:
        return &scheduler.default_queue
    return <Queue*> record_at(&scheduler.queues, index)


cdef inline uint64_t position_of(ticket_t ticket) noexcept nogil:
    return ticket & ((<uint64_t> 1 << POSITION_BITS) - 1)


cdef inline bint is_done(Scheduler* scheduler, ticket_t ticket) noexcept nogil:
    return atomic_load(&queue_of(scheduler, ticket).completed, ACQUIRE) >= position_of(ticket)
