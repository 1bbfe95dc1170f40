# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a scheduler's mutex must never wait for that.
"""The rules of capturing host streams."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.table cimport DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY
from allotment._core.tools.arrays cimport make_room
from allotment._devices.host.queue cimport captured_ticket
from allotment._devices.host.work cimport graph_add, graph_ends_in, graph_new
from allotment._devices.shared.posix cimport RELEASE, atomic_store
from allotment._devices.shared.refusal cimport refuse, refuse_number


cdef status_t capture_start(Scheduler* scheduler, Queue* queue, capture_t* capture) noexcept nogil:
    cdef Capture* started
    if queue.capture != NULL:
        return refuse(DEVICE_ERROR, b"the stream is being captured already")
    started = <Capture*> calloc(1, sizeof(Capture))
    if started != NULL:
        started.graph = graph_new()
    if started == NULL or started.graph == NULL:
        free(started)
        return refuse(OUT_OF_MEMORY, b"no memory to record a capture")
    scheduler.last_capture += 1
    started.id = scheduler.last_capture
    started.origin = queue
    started.next = scheduler.captures
    scheduler.captures = started
    join(started, queue)
    capture[0] = started.id
    return OK


cdef void join(Capture* capture, Queue* queue) noexcept nogil:
    queue.capture = capture
    queue.last_nodes.count = 0
    queue.next_member = capture.members
    capture.members = queue


cdef Graph* capture_dissolve(Scheduler* scheduler, Capture* capture) noexcept nogil:
    cdef Queue* queue = capture.members
    cdef Capture** link = &scheduler.captures
    cdef Graph* graph = capture.graph
    while queue != NULL:
        queue.capture = NULL
        queue.last_nodes.count = 0
        queue = queue.next_member
    while link[0] != capture:
        link = &link[0].next
    link[0] = capture.next
    free(capture)
    return graph


cdef status_t capture_finish(Scheduler* scheduler, Queue* queue, Graph** graph, Graph** waste) noexcept nogil:
    cdef Capture* capture = queue.capture
    cdef status_t status = OK
    waste[0] = NULL
    if capture == NULL:
        return refuse(DEVICE_ERROR, b"the stream is not being captured")
    if capture.origin != queue:
        return refuse(DEVICE_ERROR, b"a capture must end on the stream on which it began")
    if capture.fault != NULL:
        status = refuse(DEVICE_ERROR, capture.fault)
    elif not graph_ends_in(capture.graph, queue.last_nodes.nodes, queue.last_nodes.count):
        status = refuse(DEVICE_ERROR, b"a stream that joined the capture was not joined back to the one it began on")
    if status == OK:
        graph[0] = capture_dissolve(scheduler, capture)
    else:
        waste[0] = capture_dissolve(scheduler, capture)
    return status


cdef status_t capture_task(Queue* queue, const Task* task) noexcept nogil:
    cdef Capture* capture = queue.capture
    cdef uint32_t node = <uint32_t> capture.graph.node_count
    if capture.fault != NULL:
        return refuse(DEVICE_ERROR, capture.fault)
    # Make room for the one node of the set first, so that nothing can fail half-way.
    if not make_room(<void**> &queue.last_nodes.nodes, &queue.last_nodes.capacity, 0, sizeof(uint32_t)):
        return refuse(OUT_OF_MEMORY, b"no memory for another captured task")
    if not graph_add(capture.graph, task, queue.last_nodes.nodes, queue.last_nodes.count):
        return refuse(OUT_OF_MEMORY, b"no memory for another captured task")
    queue.last_nodes.nodes[0] = node
    queue.last_nodes.count = 1
    return OK


cdef status_t capture_event(Queue* queue, Event* event) noexcept nogil:
    if queue.capture.fault != NULL:
        return refuse(DEVICE_ERROR, queue.capture.fault)
    event.nodes.count = 0
    if not node_set_add(&event.nodes, &queue.last_nodes):
        return refuse(OUT_OF_MEMORY, b"no memory for a captured event")
    event.capture = queue.capture.id
    atomic_store(&event.ticket, captured_ticket(), RELEASE)
    return OK


cdef status_t capture_wait(Scheduler* scheduler, Queue* queue, Event* event) noexcept nogil:
    cdef Capture* theirs
    if event.ticket != captured_ticket():
        if event.ticket == 0:
            return OK
        return forbidden(queue.capture, b"a captured stream cannot wait for work outside the capture")
    theirs = capture_with(scheduler, event.capture)
    if theirs == NULL:
        return refuse(DEVICE_ERROR, b"the event was recorded in a capture that has ended")
    if theirs.fault != NULL:
        return refuse(DEVICE_ERROR, theirs.fault)
    if queue.capture == NULL:
        join(theirs, queue)
    elif queue.capture != theirs:
        forbidden(theirs, b"a stream of another capture waited for this one")
        return forbidden(queue.capture, b"one capture cannot wait for another")
    if not node_set_add(&queue.last_nodes, &event.nodes):
        return forbidden(theirs, b"no memory for a captured wait")
    return OK


cdef status_t forbidden(Capture* capture, const char* what) noexcept nogil:
    if capture.fault == NULL:
        capture.fault = what
    return refuse(DEVICE_ERROR, what)


cdef status_t forbidden_for_event(Scheduler* scheduler, Event* event, const char* what) noexcept nogil:
    cdef Capture* capture = capture_with(scheduler, event.capture)
    if capture == NULL:
        return refuse(DEVICE_ERROR, b"the event was recorded in a capture that has ended")
    return forbidden(capture, what)


cdef Graph* capture_leave(Scheduler* scheduler, Queue* queue) noexcept nogil:
    cdef Capture* capture = queue.capture
    cdef Queue** link
    if capture == NULL:
        return NULL
    if capture.origin == queue:
        return capture_dissolve(scheduler, capture)
    forbidden(capture, b"a captured stream was destroyed")
    link = &capture.members
    while link[0] != queue:
        link = &link[0].next_member
    link[0] = queue.next_member
    queue.capture = NULL
    queue.last_nodes.count = 0
    return NULL


cdef node_t node_of(Capture* capture, uint64_t index) noexcept nogil:
    return (capture.id << 32) | (index + 1)


cdef Capture* capture_with(Scheduler* scheduler, uint64_t id) noexcept nogil:
    cdef Capture* capture = scheduler.captures
    while capture != NULL and capture.id != id:
        capture = capture.next
    return capture


cdef status_t find_node(Scheduler* scheduler, node_t node, Capture** capture, uint64_t* index) noexcept nogil:
    cdef uint64_t number = node & <uint64_t> 0xFFFF_FFFF
    capture[0] = capture_with(scheduler, node >> 32)
    if capture[0] == NULL or number == 0 or number > capture[0].graph.node_count:
        return refuse_number(INVALID, b"%#llx is not a node of a current capture", node)
    index[0] = number - 1
    return OK


# Adds the nodes that are missing. A set has one node for each stream that joins here.
cdef bint node_set_add(NodeSet* nodes, const NodeSet* more) noexcept nogil:
    cdef size_t before = nodes.count
    for at in range(more.count):
        if contains(nodes.nodes, before, more.nodes[at]):
            continue
        if not make_room(<void**> &nodes.nodes, &nodes.capacity, nodes.count, sizeof(uint32_t)):
            nodes.count = before
            return False
        nodes.nodes[nodes.count] = more.nodes[at]
        nodes.count += 1
    return True


cdef bint contains(const uint32_t* nodes, size_t count, uint32_t node) noexcept nogil:
    for at in range(count):
        if nodes[at] == node:
            return True
    return False


cdef void node_set_clear(NodeSet* nodes) noexcept nogil:
    free(nodes.nodes)
    nodes.nodes = NULL
    nodes.count = nodes.capacity = 0
