# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a scheduler's mutex must never wait for that.
"""The stream operations of the contract on host queues."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.table cimport DEVICE_ERROR, INVALID, NOT_READY, OK, OUT_OF_MEMORY
from allotment._devices.host.capture cimport (
    capture_dissolve, capture_event, capture_finish, capture_leave, capture_start, capture_task, capture_wait,
    find_node, forbidden, forbidden_for_event, node_of)
from allotment._devices.host.queue cimport (
    MAX_QUEUES, Capture, Event, Queue, Work, captured_ticket, is_done, position_of, queue_of, ticket_for, ticket_t)
from allotment._devices.host.work cimport Node, graph_drop, report_exception
from allotment._devices.host.workers cimport (
    is_own_worker, queue_await, queue_end, queue_open, queue_put, would_wait_for_itself)
from allotment._devices.shared.handles cimport (
    former_record_of, handle_of, handles_new, handles_recycle, handles_retire, record_at, record_of)
from allotment._devices.shared.posix cimport (
    ACQUIRE, RELEASE, atomic_load, atomic_store, pthread_mutex_lock, pthread_mutex_unlock)
from allotment._devices.shared.refusal cimport refuse, refuse_number


cdef void captures_give_up(Scheduler* scheduler) noexcept nogil:
    cdef Graph* waste
    while True:
        waste = NULL
        pthread_mutex_lock(&scheduler.mutex)
        if scheduler.captures != NULL:
            waste = capture_dissolve(scheduler, scheduler.captures)
        pthread_mutex_unlock(&scheduler.mutex)
        if waste == NULL:
            break
        graph_drop(waste)


# Streams

# Returns the queue of a stream; NULL, with the reason kept, if the stream is gone. pre: the mutex is held
cdef Queue* find_queue(Scheduler* scheduler, stream_t stream) noexcept nogil:
    cdef Queue* queue
    if stream == 0:
        return &scheduler.default_queue
    queue = <Queue*> record_of(&scheduler.queues, stream)
    if queue == NULL:
        refuse_number(INVALID, b"%#llx is not a stream of this device, or it was destroyed", stream)
    elif queue.inherited:
        refuse_number(INVALID, b"stream %#llx belongs to the process that forked this one; make a new one", stream)
        return NULL
    return queue


cdef status_t stream_create(Scheduler* scheduler, stream_t* stream) noexcept nogil:
    cdef Queue* queue = NULL
    pthread_mutex_lock(&scheduler.mutex)
    if scheduler.queues.first_free != 0 or scheduler.queues.count < MAX_QUEUES - 1:
        queue = <Queue*> handles_new(&scheduler.queues)
    if queue != NULL:
        queue_open(scheduler, queue)
        stream[0] = handle_of(&queue.handle)
    pthread_mutex_unlock(&scheduler.mutex)
    return OK if queue != NULL else refuse(OUT_OF_MEMORY, b"no room for another stream")


cdef status_t stream_destroy(Scheduler* scheduler, stream_t stream) noexcept nogil:
    cdef Queue* queue
    cdef Graph* waste
    cdef PyObject* exception
    if stream == 0:
        return refuse(INVALID, b"the default stream cannot be destroyed")
    pthread_mutex_lock(&scheduler.mutex)
    queue = <Queue*> record_of(&scheduler.queues, stream)
    if queue == NULL:
        pthread_mutex_unlock(&scheduler.mutex)
        return refuse_number(INVALID, b"%#llx is not a stream of this device, or it was destroyed", stream)
    waste = capture_leave(scheduler, queue)
    exception = queue.exception
    queue.exception = NULL
    handles_retire(&queue.handle)
    queue_end(queue)
    pthread_mutex_unlock(&scheduler.mutex)
    if waste != NULL:
        graph_drop(waste)
    if exception != NULL:
        report_exception(exception)
    return OK


cdef status_t stream_query(Scheduler* scheduler, stream_t stream) noexcept nogil:
    cdef Queue* queue
    cdef status_t status
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    if queue == NULL:
        status = INVALID
    elif queue.capture != NULL:
        status = forbidden(queue.capture, b"a captured stream was queried")
    else:
        status = OK if queue.completed == queue.submitted else NOT_READY
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef status_t stream_synchronize(Scheduler* scheduler, stream_t stream) noexcept nogil:
    cdef Queue* queue
    cdef status_t status
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    if queue == NULL:
        status = INVALID
    elif queue.capture != NULL:
        status = forbidden(queue.capture, b"a captured stream was synchronized")
    else:
        status = await_position(queue, queue.submitted)
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef status_t await_position(Queue* queue, uint64_t position) noexcept nogil:
    if queue.completed < position and is_own_worker(queue):
        return refuse(DEVICE_ERROR, b"a function running on a stream waits for that stream, and so for itself")
    if queue.completed < position and would_wait_for_itself(queue):
        return refuse(DEVICE_ERROR, b"a function running on a stream waits for another stream, which waits for it")
    queue_await(queue, position)
    return OK


cdef status_t device_synchronize(Scheduler* scheduler) noexcept nogil:
    cdef Capture* capture
    cdef Queue* queue
    cdef uint64_t index
    cdef status_t status = OK
    pthread_mutex_lock(&scheduler.mutex)
    capture = scheduler.captures
    while capture != NULL:
        status = forbidden(capture, b"the device was synchronized while a stream was being captured")
        capture = capture.next
    if status == OK:
        status = await_position(&scheduler.default_queue, scheduler.default_queue.submitted)
    index = 1
    while status == OK and index <= scheduler.queues.count:
        queue = <Queue*> record_at(&scheduler.queues, index)
        status = await_position(queue, queue.submitted)
        index += 1
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef status_t await_everything(Scheduler* scheduler) noexcept nogil:
    """Wait for everything submitted so far. Does not affect captures: work that they record is not submitted.

    A function that runs on a stream cannot wait: others may wait for it, or do the same. If there is work, the wait is
    refused.
    """
    cdef uint64_t index = 0
    cdef Queue* queue
    cdef bint is_worker = False
    cdef bint is_idle = True
    pthread_mutex_lock(&scheduler.mutex)
    while index <= scheduler.queues.count:
        queue = queue_at(scheduler, index)
        if is_own_worker(queue):
            is_worker = True
            if queue.completed + 1 < queue.submitted:
                is_idle = False         # work queued behind the asking function may use the memory
        elif queue.completed < queue.submitted:
            is_idle = False
        index += 1
    index = 0
    while not is_worker and index <= scheduler.queues.count:
        queue_await(queue_at(scheduler, index), queue_at(scheduler, index).submitted)
        index += 1
    pthread_mutex_unlock(&scheduler.mutex)
    if is_worker and not is_idle:
        return refuse(DEVICE_ERROR, b"a function on a stream cannot release memory while work is queued, which "
                      b"may use that memory or wait for the function")
    return OK


cdef inline Queue* queue_at(Scheduler* scheduler, uint64_t index) noexcept nogil:
    return &scheduler.default_queue if index == 0 else <Queue*> record_at(&scheduler.queues, index)


cdef status_t stream_submit(Scheduler* scheduler, stream_t stream, const Task* task) noexcept nogil:
    cdef Work* work = <Work*> calloc(1, sizeof(Work))
    cdef Queue* queue
    cdef status_t status
    cdef bint is_captured = False
    if work == NULL:
        return refuse(OUT_OF_MEMORY, b"no memory for another task")
    work.task = task[0]
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    if queue == NULL:
        status = INVALID
    elif queue.capture != NULL:
        is_captured = True
        status = capture_task(queue, task)
    else:
        status = queue_put(queue, work)
    pthread_mutex_unlock(&scheduler.mutex)
    if is_captured or status != OK:
        free(work)
    return status


cdef status_t stream_wait(Scheduler* scheduler, stream_t stream, event_t event) noexcept nogil:
    cdef Work* work = <Work*> calloc(1, sizeof(Work))
    cdef Queue* queue
    cdef Event* found
    cdef status_t status
    if work == NULL:
        return refuse(OUT_OF_MEMORY, b"no memory for another wait")
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    found = <Event*> record_of(&scheduler.events, event)
    if queue == NULL:
        status = INVALID
    elif found == NULL:
        status = not_an_event(event)
    elif queue.capture != NULL or found.ticket == captured_ticket():
        status = capture_wait(scheduler, queue, found)
    elif is_done(scheduler, found.ticket) or queue_of(scheduler, found.ticket) == queue:
        status = OK
    else:
        work.wait_for = found.ticket
        status = queue_put(queue, work)
        if status == OK:
            work = NULL
    pthread_mutex_unlock(&scheduler.mutex)
    free(work)
    return status


cdef PyObject* take_exception(Scheduler* scheduler, stream_t stream) noexcept nogil:
    cdef Queue* queue = &scheduler.default_queue
    cdef PyObject* exception = NULL
    pthread_mutex_lock(&scheduler.mutex)
    if stream != 0:
        queue = <Queue*> record_of(&scheduler.queues, stream)
    if queue != NULL:
        exception = queue.exception
        queue.exception = NULL
    pthread_mutex_unlock(&scheduler.mutex)
    return exception


# Events

cdef status_t not_an_event(event_t event) noexcept nogil:
    return refuse_number(INVALID, b"%#llx is not an event of this device, or it was destroyed", event)


cdef status_t event_create(Scheduler* scheduler, event_t* event) noexcept nogil:
    cdef Event* made
    pthread_mutex_lock(&scheduler.mutex)
    made = <Event*> handles_new(&scheduler.events)
    if made != NULL:
        atomic_store(&made.ticket, 0, RELEASE)
        event[0] = handle_of(&made.handle)
    pthread_mutex_unlock(&scheduler.mutex)
    return OK if made != NULL else refuse(OUT_OF_MEMORY, b"no memory for another event")


cdef status_t event_destroy(Scheduler* scheduler, event_t event) noexcept nogil:
    cdef Event* found
    pthread_mutex_lock(&scheduler.mutex)
    found = <Event*> record_of(&scheduler.events, event)
    if found != NULL:
        handles_retire(&found.handle)
        handles_recycle(&scheduler.events, &found.handle)
    pthread_mutex_unlock(&scheduler.mutex)
    return OK if found != NULL else not_an_event(event)


# The remaining work of a destroyed stream. Its queue may serve another stream by now; then this waits for that stream's
# work too. That is conservative: it may wait longer than needed, never too short. The ticket is 0, which is done, for
# streams of the process that forked this one. Returns False if the stream never existed. pre: the mutex is held
cdef bint work_left(Scheduler* scheduler, stream_t stream, ticket_t* ticket) noexcept nogil:
    cdef Queue* queue = <Queue*> record_of(&scheduler.queues, stream)
    ticket[0] = 0
    if queue != NULL:
        return queue.inherited
    queue = <Queue*> former_record_of(&scheduler.queues, stream)
    if queue != NULL:
        ticket[0] = ticket_for(queue, queue.submitted)
    return queue != NULL


cdef status_t event_record(Scheduler* scheduler, event_t event, stream_t stream) noexcept nogil:
    cdef Queue* queue
    cdef Event* found
    cdef ticket_t ticket = 0
    cdef status_t status = OK
    pthread_mutex_lock(&scheduler.mutex)
    found = <Event*> record_of(&scheduler.events, event)
    if found != NULL and stream != 0 and work_left(scheduler, stream, &ticket):
        atomic_store(&found.ticket, ticket, RELEASE)
        pthread_mutex_unlock(&scheduler.mutex)
        return OK
    queue = find_queue(scheduler, stream)
    if queue == NULL:
        status = INVALID
    elif found == NULL:
        status = not_an_event(event)
    elif queue.capture != NULL:
        status = capture_event(queue, found)
    else:
        atomic_store(&found.ticket, ticket_for(queue, queue.submitted), RELEASE)
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef status_t event_query(Scheduler* scheduler, event_t event) noexcept nogil:
    cdef Event* found = <Event*> record_of(&scheduler.events, event)
    cdef ticket_t ticket
    cdef status_t status
    if found == NULL:
        return not_an_event(event)
    ticket = atomic_load(&found.ticket, ACQUIRE)
    if ticket != captured_ticket():
        return OK if is_done(scheduler, ticket) else NOT_READY
    pthread_mutex_lock(&scheduler.mutex)
    status = forbidden_for_event(scheduler, found, b"an event of a captured stream was queried")
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef status_t event_synchronize(Scheduler* scheduler, event_t event) noexcept nogil:
    cdef Event* found
    cdef status_t status
    pthread_mutex_lock(&scheduler.mutex)
    found = <Event*> record_of(&scheduler.events, event)
    if found == NULL:
        status = not_an_event(event)
    elif found.ticket == captured_ticket():
        status = forbidden_for_event(scheduler, found, b"an event of a captured stream was synchronized")
    else:
        status = await_position(queue_of(scheduler, found.ticket), position_of(found.ticket))
    pthread_mutex_unlock(&scheduler.mutex)
    return status


# Capture

cdef status_t capture_begin(Scheduler* scheduler, stream_t stream, capture_t* capture) noexcept nogil:
    cdef Queue* queue
    cdef status_t status
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    status = INVALID if queue == NULL else capture_start(scheduler, queue, capture)
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef status_t capture_end(Scheduler* scheduler, stream_t stream, Graph** graph) noexcept nogil:
    cdef Queue* queue
    cdef Graph* waste = NULL
    cdef status_t status
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    status = INVALID if queue == NULL else capture_finish(scheduler, queue, graph, &waste)
    pthread_mutex_unlock(&scheduler.mutex)
    if waste != NULL:
        graph_drop(waste)
    return status


cdef status_t capture_status(Scheduler* scheduler, stream_t stream, capture_t* capture) noexcept nogil:
    cdef Queue* queue
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    if queue != NULL:
        capture[0] = queue.capture.id if queue.capture != NULL else 0
    pthread_mutex_unlock(&scheduler.mutex)
    return OK if queue != NULL else INVALID


cdef status_t capture_terminals(Scheduler* scheduler, stream_t stream, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Queue* queue
    pthread_mutex_lock(&scheduler.mutex)
    queue = find_queue(scheduler, stream)
    if queue != NULL:
        write_nodes(queue.capture, queue.last_nodes.nodes, queue.last_nodes.count, nodes, capacity, count)
    pthread_mutex_unlock(&scheduler.mutex)
    return OK if queue != NULL else INVALID


cdef status_t node_predecessors(Scheduler* scheduler, node_t node, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Capture* capture
    cdef uint64_t index
    cdef Node* found
    cdef status_t status
    pthread_mutex_lock(&scheduler.mutex)
    status = find_node(scheduler, node, &capture, &index)
    if status == OK:
        found = &capture.graph.nodes[index]
        write_nodes(capture, capture.graph.edges + found.first_edge, found.edge_count, nodes, capacity, count)
    pthread_mutex_unlock(&scheduler.mutex)
    return status


cdef void write_nodes(Capture* capture, const uint32_t* found, size_t found_count, node_t* nodes, size_t capacity,
                      size_t* count) noexcept nogil:
    for at in range(min(found_count, capacity)):
        nodes[at] = node_of(capture, found[at])
    count[0] = found_count
