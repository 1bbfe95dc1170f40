"""The shape of host streams: queues, positions in them, captures.

A *queue* implements a stream: it holds the stream's work in the order of submission, and has a worker thread while
there is any. Its items are numbered; `submitted` is the number of the last one submitted, `completed` of the last one
done:

    item      1   2   3   4   5   6   7   8
              done        |running|  waiting
              completed = 3           submitted = 8

An *event* is a position: recording one on this queue stores "8", and a query compares 8 with `completed`. Nothing is
added to the queue. Queue and position form one number, a *ticket*, so that one thread can record an event and another
query it without a lock. A queue's positions never go back, even when a destroyed stream's queue serves a new stream:
old tickets stay done.

A queue can only wait for a position that was submitted before the wait, so queues never wait for each other in a cycle.

While a stream is captured, its tasks become nodes of the capture's graph instead. `last_nodes` are the nodes on which
its next node will depend. An event recorded then stands for these nodes, and a stream that waits for it joins the
capture.

Locks. One mutex in the scheduler guards everything here that is not marked atomic. A thread holds it for a few
instructions at a time. Under it a thread never waits for a task, the interpreter lock or a destructor, so a thread that
holds the interpreter lock may acquire it.
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
    ticket_t wait_for               # 0: run the task. Else the item has no task, and the queue waits for this ticket
    Task task

cdef struct Queue:
    Handle handle                   # its index is 0 for the default stream
    Scheduler* scheduler
    Work* first
    Work* last
    uint64_t submitted
    uint64_t completed              # atomic
    pthread_cond_t arrived          # the worker waits here for work
    pthread_cond_t progress         # other threads wait here for `completed`
    uint32_t waiting                # number of those threads
    bint running                    # it has a worker
    pthread_t worker
    Queue* awaits                   # the queue that the worker waits for now, or NULL
    uint64_t search                 # the last search that has come here, see `would_wait_for_itself`
    Queue* next_found               # by that search
    bint initialised                # the conditions are initialised
    bint destroyed                  # the stream is gone; the worker finishes its work and ends
    bint inherited                  # the stream belongs to the process that forked this one
    PyObject* exception             # the first exception that a function raised, until a caller fetches it
    Capture* capture
    NodeSet last_nodes
    Queue* next_member              # of the same capture

cdef struct Event:
    Handle handle
    ticket_t ticket                 # atomic
    uint64_t capture                # if the ticket is CAPTURED: the capture, and the nodes it stands for
    NodeSet nodes

cdef struct Capture:
    uint64_t id
    Graph* graph
    Queue* origin                   # the stream on which it began
    Queue* members                  # all its streams, with the origin
    const char* fault               # why it cannot yield a graph any more; NULL while it can
    Capture* next

cdef struct Scheduler:
    pthread_mutex_t mutex
    pthread_cond_t idle             # signalled when `pending` falls to 0
    uint64_t pending                # items not completed
    bint closed                     # accepts no more work; workers end when theirs is done
    Queue default_queue
    Handles queues
    Handles events
    Capture* captures               # the current ones
    uint64_t last_capture
    uint64_t searches               # the number of searches for a cycle of waits
    bint orphaned                   # the device is gone
    ForkGuard fork_guard
    uint64_t references             # the device and each worker; this and all below under the thread pool's mutex
    bint is_finishing               # a thread waits for its work at exit
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
