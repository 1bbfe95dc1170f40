from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_COPY, CAN_EVENTS, CAPTURE_BEGIN, CAPTURE_END, CAPTURE_RELAXED, CAPTURE_STATUS, CAPTURE_TERMINALS,
    COPY, DEVICE_ERROR, DEVICE_SYNCHRONIZE, EVENT_CREATE, EVENT_DESTROY, EVENT_QUERY, EVENT_RECORD, EVENT_SYNCHRONIZE,
    GRAPH_DESTROY, GRAPH_LAUNCH, INVALID, NODE_PREDECESSORS, NOT_READY, OK, OUT_OF_MEMORY, STREAM_CREATE,
    STREAM_DESTROY, STREAM_QUERY, STREAM_SYNCHRONIZE, STREAM_WAIT, status_t)
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, device_t, event_t, graph_t, node_t, stream_t)
from allotment._core.tools.arrays cimport make_room_for
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve
from allotment._devices.simulated.simulation cimport (
    NodeSet, SimCapture, SimEvent, SimMoment, SimStream, add_node, destroyed, enter, enter_on, has_come, leave,
    new_handle, scripted, set_add, set_clear, stream_at)


cdef bint fill_streams(DeviceTable* table, Simulation* device) noexcept:
    table.capabilities |= CAN_EVENTS | CAN_CAPTURE | CAN_COPY
    table.stream_create = stream_create
    table.stream_destroy = stream_destroy
    table.stream_query = stream_query
    table.stream_synchronize = stream_synchronize
    table.stream_wait = stream_wait
    table.device_synchronize = device_synchronize
    table.event_create = event_create
    table.event_destroy = event_destroy
    table.event_record = event_record
    table.event_query = event_query
    table.event_synchronize = event_synchronize
    table.capture_begin = capture_begin
    table.capture_end = capture_end
    table.capture_status = capture_status
    table.capture_terminals = capture_terminals
    table.node_predecessors = node_predecessors
    table.capture_relaxed = capture_relaxed
    table.graph_launch = graph_launch
    table.graph_destroy = graph_destroy
    table.copy = copy
    return (map_init(&device.streams) and map_init(&device.events) and map_init(&device.nodes)
            and map_init(&device.graphs))


cdef void clear_streams(Simulation* device) noexcept:
    cdef SimStream* stream
    cdef size_t i
    while device.newest_stream != NULL:
        stream = device.newest_stream
        device.newest_stream = stream.older
        set_clear(&stream.terminals)
        free(stream.awaited)
        free(stream)
    while device.first_capture != NULL:
        forget_capture(device, device.first_capture)
    for i in range(device.events.mask + 1 if device.events.slots != NULL else 0):
        if device.events.slots[i].key != 0:
            set_clear(&(<SimEvent*> device.events.slots[i].value).nodes)
            free(device.events.slots[i].value)
    for i in range(device.nodes.mask + 1 if device.nodes.slots != NULL else 0):
        if device.nodes.slots[i].key != 0:
            set_clear(<NodeSet*> device.nodes.slots[i].value)
            free(device.nodes.slots[i].value)
    map_clear(&device.streams)
    map_clear(&device.events)
    map_clear(&device.nodes)
    map_clear(&device.graphs)


# --- streams and events ------------------------------------------------------------------------------------

cdef status_t stream_create(void* self, stream_t* stream) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, STREAM_CREATE)
    cdef SimStream* unused
    if status != OK:
        return status
    unused = device.unused_streams
    if unused != NULL:
        device.unused_streams = unused.next_unused
        map_put(&device.streams, unused.handle + 1, unused)
        stream[0] = unused.handle
        return leave(device, OK)
    stream[0] = new_handle(device)
    return leave(device, OK if stream_at(device, stream[0]) != NULL else OUT_OF_MEMORY)


cdef status_t stream_destroy(void* self, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, STREAM_DESTROY, handle, &stream)
    if status != OK:
        return status
    # A destroyed stream's work continues to its end. Events that refer to the record are done by then, and stay so: the
    # record's next user continues the count.
    stream.finished = stream.launched
    map_put(&device.streams, handle + 1, destroyed())
    if stream.capture == NULL:
        stream.awaited_count = 0
        stream.next_unused = device.unused_streams
        device.unused_streams = stream
    return leave(device, OK)


cdef status_t stream_query(void* self, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, STREAM_QUERY, handle, &stream)
    if status != OK:
        return status
    return leave(device, OK if stream.finished >= stream.launched else NOT_READY)


cdef status_t stream_synchronize(void* self, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, STREAM_SYNCHRONIZE, handle, &stream)
    if status != OK:
        return status
    if stream.capture != NULL:
        stream.capture.broken = True
        return leave(device, DEVICE_ERROR)
    stream.finished = stream.launched
    return leave(device, OK)


cdef status_t device_synchronize(void* self) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, DEVICE_SYNCHRONIZE)
    if status != OK:
        return status
    finish_all(device)
    return leave(device, OK)


cdef void finish_all(Simulation* device) noexcept nogil:
    cdef SimStream* stream
    cdef size_t i
    for i in range(device.streams.mask + 1):
        stream = <SimStream*> device.streams.slots[i].value
        if device.streams.slots[i].key != 0 and stream != destroyed():
            stream.finished = stream.launched


cdef status_t event_create(void* self, event_t* event) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, EVENT_CREATE)
    cdef SimEvent* made
    if status != OK:
        return status
    made = <SimEvent*> calloc(1, sizeof(SimEvent))
    if made == NULL or not map_reserve(&device.events):
        free(made)
        return leave(device, OUT_OF_MEMORY)
    event[0] = new_handle(device)
    map_put(&device.events, event[0], made)
    return leave(device, OK)


cdef status_t event_destroy(void* self, event_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, EVENT_DESTROY)
    cdef SimEvent* event
    if status != OK:
        return status
    event = <SimEvent*> map_pop(&device.events, handle)
    if event == NULL:
        return leave(device, INVALID)
    set_clear(&event.nodes)
    free(event)
    return leave(device, OK)


cdef status_t event_record(void* self, event_t handle, stream_t on) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream
    cdef status_t status = enter(device, EVENT_RECORD)
    cdef SimEvent* event
    if status != OK:
        return status
    event = <SimEvent*> map_get(&device.events, handle)
    if event == NULL:
        return leave(device, INVALID)
    stream = stream_at(device, on)
    if stream == NULL:
        if map_get(&device.streams, on + 1) == NULL:
            return leave(device, OUT_OF_MEMORY)
        event.stream = NULL     # all work of a destroyed stream is done
        event.capture = NULL
        return leave(device, OK)
    event.stream = stream
    event.tick = stream.launched
    event.capture = stream.capture
    event.nodes.count = 0
    if stream.capture != NULL and not set_add(&event.nodes, stream.terminals.nodes, stream.terminals.count):
        return leave(device, OUT_OF_MEMORY)
    return leave(device, OK)


cdef inline bint is_finished(const SimEvent* event) noexcept nogil:
    return event.stream == NULL or event.stream.finished >= event.tick


cdef status_t event_query(void* self, event_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, EVENT_QUERY)
    cdef uint64_t answer = 0
    cdef SimEvent* event
    if status != OK:
        return status
    event = <SimEvent*> map_get(&device.events, handle)
    if event == NULL:
        return leave(device, INVALID)
    if device.script != NULL:
        with gil:
            status = scripted(device, "event_finished", (handle,), &answer)
        if status == OUT_OF_MEMORY:
            return leave(device, NOT_READY)
        if status != NOT_READY:
            return leave(device, status)
    return leave(device, OK if is_finished(event) else NOT_READY)


cdef status_t event_synchronize(void* self, event_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, EVENT_SYNCHRONIZE)
    cdef SimEvent* event
    if status != OK:
        return status
    event = <SimEvent*> map_get(&device.events, handle)
    if event == NULL:
        return leave(device, INVALID)
    if event.stream != NULL and not is_finished(event):
        event.stream.finished = event.tick
    return leave(device, OK)


cdef void note_awaited(SimStream* stream, SimStream* other, uint64_t tick) noexcept nogil:
    """Keep only the latest moment of each stream: with mutual waits the list would otherwise grow without bound."""
    cdef size_t i
    for i in range(stream.awaited_count):
        if stream.awaited[i].stream == other:
            stream.awaited[i].tick = max(stream.awaited[i].tick, tick)
            return
    stream.awaited[stream.awaited_count].stream = other
    stream.awaited[stream.awaited_count].tick = tick
    stream.awaited_count += 1


cdef bint await_moment(SimStream* stream, SimStream* other, uint64_t tick) noexcept nogil:
    """Order the stream's later work after the other's, and after everything that the other waits for."""
    cdef size_t most = stream.awaited_count + other.awaited_count + 1
    cdef size_t i
    if not make_room_for(<void**> &stream.awaited, &stream.awaited_room, most, sizeof(SimMoment)):
        return False
    for i in range(other.awaited_count if other != stream else 0):
        if not has_come(&other.awaited[i]):
            note_awaited(stream, other.awaited[i].stream, other.awaited[i].tick)
    note_awaited(stream, other, tick)
    return True


cdef status_t stream_wait(void* self, stream_t handle, event_t on) noexcept nogil:
    """Inside a capture, join the stream to it.

    Outside, frees in the pool respect the wait; only `finish` decides when the stream's own work is done.
    """
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, STREAM_WAIT, handle, &stream)
    cdef SimEvent* event
    if status != OK:
        return status
    event = <SimEvent*> map_get(&device.events, on)
    if event == NULL:
        return leave(device, INVALID)
    if event.capture == NULL:
        if not is_finished(event) and not await_moment(stream, event.stream, event.tick):
            return leave(device, OUT_OF_MEMORY)
        return leave(device, OK)
    if stream.capture != NULL and stream.capture != event.capture:
        stream.capture.broken = event.capture.broken = True
        return leave(device, DEVICE_ERROR)
    stream.capture = event.capture
    if not set_add(&stream.terminals, event.nodes.nodes, event.nodes.count):
        return leave(device, OUT_OF_MEMORY)
    return leave(device, OK)


# --- capture -----------------------------------------------------------------------------------------------

cdef status_t capture_begin(void* self, stream_t handle, capture_t* capture) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, CAPTURE_BEGIN, handle, &stream)
    cdef SimCapture* made
    if status != OK:
        return status
    if stream.capture != NULL:
        return leave(device, INVALID)
    made = <SimCapture*> calloc(1, sizeof(SimCapture))
    if made == NULL:
        return leave(device, OUT_OF_MEMORY)
    made.id = capture[0] = new_handle(device)
    made.origin = handle
    made.next = device.first_capture
    device.first_capture = made
    stream.capture = made
    return leave(device, OK)


cdef void forget_capture(Simulation* device, SimCapture* capture) noexcept nogil:
    cdef SimCapture** place = &device.first_capture
    cdef NodeSet* before
    cdef size_t i
    while place[0] != capture:
        place = &place[0].next
    place[0] = capture.next
    for i in range(capture.made.count):
        before = <NodeSet*> map_pop(&device.nodes, capture.made.nodes[i])
        set_clear(before)
        free(before)
    set_clear(&capture.made)
    free(capture)


cdef bint comes_before(Simulation* device, NodeSet* later, node_t node) noexcept nogil:
    """Whether `node` is one of `later`, or a direct or indirect predecessor of one."""
    cdef NodeSet seen
    cdef NodeSet* before
    cdef size_t next_one = 0
    cdef bint found = False
    memset(&seen, 0, sizeof(NodeSet))
    if not set_add(&seen, later.nodes, later.count):
        return False
    while next_one < seen.count and not found:
        found = seen.nodes[next_one] == node
        before = <NodeSet*> map_get(&device.nodes, seen.nodes[next_one])
        if before != NULL and not set_add(&seen, before.nodes, before.count):
            break
        next_one += 1
    set_clear(&seen)
    return found


cdef status_t capture_end(void* self, stream_t handle, graph_t* graph) noexcept nogil:
    """End the capture even on failure: it is broken, or a stream that joined has work that was not waited for."""
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* origin = NULL
    cdef status_t status = enter_on(device, CAPTURE_END, handle, &origin)
    cdef SimCapture* capture
    cdef SimStream* stream
    cdef size_t i, j
    cdef bint whole
    if status != OK:
        return status
    if origin.capture == NULL or origin.capture.origin != handle:
        return leave(device, INVALID)
    capture = origin.capture
    whole = not capture.broken and map_reserve(&device.graphs)
    for i in range(device.streams.mask + 1):
        stream = <SimStream*> device.streams.slots[i].value
        if device.streams.slots[i].key == 0 or stream.capture != capture or stream == origin:
            continue
        for j in range(stream.terminals.count):
            whole = whole and comes_before(device, &origin.terminals, stream.terminals.nodes[j])
        stream.capture = NULL
        stream.terminals.count = 0
    origin.capture = NULL
    origin.terminals.count = 0
    for i in range(device.events.mask + 1):
        if device.events.slots[i].key != 0 and (<SimEvent*> device.events.slots[i].value).capture == capture:
            (<SimEvent*> device.events.slots[i].value).capture = NULL
    forget_capture(device, capture)
    if whole:
        graph[0] = new_handle(device)
        map_put(&device.graphs, graph[0], device)
    return leave(device, OK if whole else DEVICE_ERROR)


cdef status_t capture_status(void* self, stream_t handle, capture_t* capture) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, CAPTURE_STATUS, handle, &stream)
    if status != OK:
        return status
    capture[0] = stream.capture.id if stream.capture != NULL and not stream.capture.broken else 0
    return leave(device, OK)


cdef status_t answer_nodes(Simulation* device, const NodeSet* set, node_t* nodes, size_t capacity,
                           size_t* count) noexcept nogil:
    count[0] = set.count if set != NULL else 0
    if count[0] > 0 and capacity > 0:
        memcpy(nodes, set.nodes, min(count[0], capacity) * sizeof(node_t))
    return leave(device, OK)


cdef status_t capture_terminals(void* self, stream_t handle, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, CAPTURE_TERMINALS, handle, &stream)
    if status != OK:
        return status
    return answer_nodes(device, &stream.terminals, nodes, capacity, count)


cdef status_t node_predecessors(void* self, node_t node, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, NODE_PREDECESSORS)
    if status != OK:
        return status
    return answer_nodes(device, <NodeSet*> map_get(&device.nodes, node), nodes, capacity, count)


cdef status_t capture_relaxed(void* self, bint relaxed) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CAPTURE_RELAXED)
    return status if status != OK else leave(device, OK)


cdef status_t graph_launch(void* self, graph_t graph, stream_t handle) noexcept nogil:
    """Submit a graph as one unit of work, whatever it contains."""
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, GRAPH_LAUNCH, handle, &stream)
    if status != OK:
        return status
    if map_get(&device.graphs, graph) == NULL:
        return leave(device, INVALID)
    if stream.capture == NULL:
        stream.launched += 1
    elif add_node(device, stream) == 0:
        return leave(device, OUT_OF_MEMORY)
    return leave(device, OK)


cdef status_t graph_destroy(void* self, graph_t graph) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, GRAPH_DESTROY)
    if status != OK:
        return status
    return leave(device, OK if map_pop(&device.graphs, graph) != NULL else INVALID)


# --- copying -----------------------------------------------------------------------------------------------

cdef status_t copy(void* self, address_t destination, address_t source, bytes_t size, device_t destination_device,
                   device_t source_device, stream_t stream) noexcept nogil:
    """Submit a unit of work; there is no content to copy."""
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* on = NULL
    cdef status_t status = enter_on(device, COPY, stream, &on)
    if status != OK:
        return status
    on.launched += 1
    return leave(device, OK)
