"""A device of addresses and capacity alone. Streams finish when told to.

It keeps exact accounts (what is reserved, created, mapped and where) and refuses what a real driver would
refuse, so a test that passes here has not been passed by an obliging stand-in. Addresses are never used
twice. A script (see the stub) can answer instead: addresses, refusals and events of a recording.

Nothing here needs the interpreter lock unless there is a script.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset, strlen

from allotment.backends.simulated_pool cimport clear_pool, fill_pool
from allotment.backends.simulation cimport (
    CAPTURE_BEGIN, CAPTURE_END, CAPTURE_STATUS, CAPTURE_TERMINALS, CHUNK_CREATE, CHUNK_RELEASE, COPY,
    DEVICE_SYNCHRONIZE, EVENT_CREATE, EVENT_DESTROY, EVENT_QUERY, EVENT_RECORD, EVENT_SYNCHRONIZE, GRANULARITY, MAP,
    MEMORY_INFO, NODE_PREDECESSORS, RANGE_RELEASE, RANGE_RESERVE, SEGMENT_ALLOCATE, SEGMENT_FREE, SET_ACCESS,
    STREAM_CREATE, STREAM_DESTROY, STREAM_SYNCHRONIZE, STREAM_WAIT, UNMAP, NodeSet, Refusal, SimCapture, SimChunk,
    SimEvent, SimMoment, Simulation, SimStream, add_node, destroyed, enter, has_come, leave, new_handle, set_add,
    set_clear, stream_at, take_addresses)
from allotment.core.backend cimport (
    CAN_CAPTURE, CAN_COPY, CAN_EVENTS, CAN_PEERS, CAN_SHARE, CAN_VIRTUAL, DEVICE_ERROR, INVALID, NOT_READY, OK,
    OUT_OF_MEMORY, SHARE_DESCRIPTOR, Backend, Device, share_t, status_t)
from allotment.core.forks cimport LONG_LOCK, guard_forks, unguard_forks
from allotment.core.lock cimport lock_give, lock_wait
from allotment.core.pointer_map cimport (
    PointerMap, map_clear, map_get, map_init, map_pop, map_put, map_reserve)
from allotment.core.raising cimport device_error, keep_failure
from allotment.core.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, node_t, stream_t)

import sys

from allotment.errors import RequestError

cdef tuple OPERATION_NAMES = (
    "segment_allocate", "segment_free",
    "range_reserve", "range_release", "chunk_create", "chunk_release", "map", "unmap", "set_access",
    "stream_create", "stream_destroy", "stream_synchronize", "stream_wait", "device_synchronize",
    "event_create", "event_destroy", "event_record", "event_query", "event_synchronize",
    "capture_begin", "capture_end", "capture_status", "capture_terminals", "node_predecessors",
    "memory_info", "copy",
    "ordered_allocate", "ordered_free", "ordered_trim", "ordered_usage", "ordered_reset_high", "ordered_access",
)


cdef inline bytes_t size_at(PointerMap* map, address_t address) noexcept nogil:
    return <bytes_t> <size_t> map_get(map, address)


# --- plain memory ------------------------------------------------------------------------------------------

cdef status_t scripted(Simulation* device, str method, tuple arguments, uint64_t* answer) noexcept with gil:
    """Ask the script, with the device's lock held.

    NOT_READY if it leaves this to the device, OUT_OF_MEMORY if it says None or False.
    """
    try:
        answerer = getattr(<object> device.script, method, None)
        if answerer is None:
            return NOT_READY
        said = answerer(*arguments)
        if said is None or said is False:
            return OUT_OF_MEMORY
        answer[0] = said
        return OK
    except BaseException:
        keep_failure(device, DEVICE_ERROR, sys.exc_info()[1])
        return DEVICE_ERROR


cdef status_t choose_address(Simulation* device, bint reserving, bytes_t size, stream_t stream,
                             address_t* address) noexcept nogil:
    cdef status_t status = NOT_READY
    if device.script != NULL:
        with gil:
            status = scripted(device, "reserve" if reserving else "segment", (size, stream), address)
    if status == NOT_READY:
        address[0] = take_addresses(device, size)
        status = OK
    return status


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_ALLOCATE)
    if status != OK:
        return status
    if size > device.capacity - device.used or not map_reserve(&device.segments):
        return leave(device, OUT_OF_MEMORY)
    status = choose_address(device, False, size, stream, address)
    if status == OK:
        device.used += size
        map_put(&device.segments, address[0], <void*> <size_t> size)
    return leave(device, status)


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_FREE)
    if status != OK:
        return status
    if size_at(&device.segments, address) != size:
        return leave(device, INVALID)
    map_pop(&device.segments, address)
    device.used -= size
    return leave(device, OK)


# --- virtual memory ----------------------------------------------------------------------------------------

cdef status_t range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, RANGE_RESERVE)
    if status != OK:
        return status
    if not map_reserve(&device.ranges):
        return leave(device, OUT_OF_MEMORY)
    status = choose_address(device, True, size, stream, address)
    if status == OK:
        map_put(&device.ranges, address[0], <void*> <size_t> size)
    return leave(device, status)


cdef status_t range_release(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, RANGE_RELEASE)
    cdef size_t i
    if status != OK:
        return status
    if size_at(&device.ranges, address) != size:
        return leave(device, INVALID)
    for i in range(device.mappings.mask + 1):
        if device.mappings.slots[i].key - address < size and device.mappings.slots[i].key != 0:
            return leave(device, INVALID)
    map_pop(&device.ranges, address)
    return leave(device, OK)


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CHUNK_CREATE)
    cdef uint64_t unused = 0
    cdef SimChunk* made
    if status != OK:
        return status
    if size % GRANULARITY != 0:
        return leave(device, INVALID)
    if size > device.capacity - device.used or not map_reserve(&device.chunks):
        return leave(device, OUT_OF_MEMORY)
    if device.script != NULL:
        with gil:
            status = scripted(device, "create", (size,), &unused)
        if status != OK and status != NOT_READY:
            return leave(device, status)
    made = <SimChunk*> calloc(1, sizeof(SimChunk))
    if made == NULL:
        return leave(device, OUT_OF_MEMORY)
    made.size = size
    device.used += size
    chunk[0] = new_handle(device)
    map_put(&device.chunks, chunk[0], made)
    return leave(device, OK)


cdef void drop_if_unused(Simulation* device, SimChunk* chunk) noexcept nogil:
    if chunk.released and chunk.views == 0:
        device.used -= chunk.size
        free(chunk)


cdef status_t chunk_release(void* self, chunk_t handle, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CHUNK_RELEASE)
    cdef SimChunk* chunk
    if status != OK:
        return status
    chunk = <SimChunk*> map_get(&device.chunks, handle)
    if chunk == NULL or chunk.size != size:
        return leave(device, INVALID)
    map_pop(&device.chunks, handle)
    chunk.released = True
    drop_if_unused(device, chunk)
    return leave(device, OK)


cdef bint is_reserved(Simulation* device, address_t address, bytes_t size) noexcept nogil:
    cdef size_t i
    cdef address_t base
    for i in range(device.ranges.mask + 1):
        base = device.ranges.slots[i].key
        if base != 0 and base <= address and address + size <= base + size_at(&device.ranges, base):
            return True
    return False


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, MAP)
    cdef SimChunk* chunk
    if status != OK:
        return status
    chunk = <SimChunk*> map_get(&device.chunks, handle)
    if chunk == NULL or chunk.size != size or not is_reserved(device, address, size):
        return leave(device, INVALID)
    if map_get(&device.mappings, address) != NULL:
        return leave(device, INVALID)
    if not map_reserve(&device.mappings):
        return leave(device, OUT_OF_MEMORY)
    chunk.views += 1
    map_put(&device.mappings, address, chunk)
    return leave(device, OK)


cdef status_t unmap_chunk(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, UNMAP)
    cdef SimChunk* chunk
    if status != OK:
        return status
    chunk = <SimChunk*> map_get(&device.mappings, address)
    if chunk == NULL or chunk.size != size:
        return leave(device, INVALID)
    map_pop(&device.mappings, address)
    chunk.views -= 1
    drop_if_unused(device, chunk)
    return leave(device, OK)


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t peer) noexcept nogil:
    """Everything in [address, address + size) must be mapped."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SET_ACCESS)
    cdef address_t end = address + size
    cdef SimChunk* chunk
    if status != OK:
        return status
    while address < end:
        chunk = <SimChunk*> map_get(&device.mappings, address)
        if chunk == NULL:
            return leave(device, INVALID)
        address += chunk.size
    return leave(device, OK if address == end else INVALID)


cdef status_t granularity(void* self, bytes_t* size) noexcept nogil:
    size[0] = GRANULARITY
    return OK


# --- streams and events ------------------------------------------------------------------------------------

cdef status_t stream_create(void* self, stream_t* stream) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, STREAM_CREATE)
    if status != OK:
        return status
    stream[0] = new_handle(device)
    return leave(device, OK if stream_at(device, stream[0]) != NULL else OUT_OF_MEMORY)


cdef status_t stream_destroy(void* self, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, STREAM_DESTROY)
    cdef SimStream* stream
    if status != OK:
        return status
    stream = stream_at(device, handle)
    if stream == NULL:
        return leave(device, INVALID)
    # The record stays for events that refer to it; a destroyed stream's work goes on to its end.
    stream.finished = stream.launched
    map_put(&device.streams, handle + 1, destroyed())
    return leave(device, OK)


cdef status_t stream_query(void* self, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, STREAM_SYNCHRONIZE)
    cdef SimStream* stream
    if status != OK:
        return status
    stream = stream_at(device, handle)
    if stream == NULL:
        return leave(device, INVALID)
    return leave(device, OK if stream.finished >= stream.launched else NOT_READY)


cdef status_t stream_synchronize(void* self, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, STREAM_SYNCHRONIZE)
    cdef SimStream* stream
    if status != OK:
        return status
    stream = stream_at(device, handle)
    if stream == NULL:
        return leave(device, INVALID)
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
    cdef status_t status = enter(device, EVENT_RECORD)
    cdef SimEvent* event
    cdef SimStream* stream
    if status != OK:
        return status
    event = <SimEvent*> map_get(&device.events, handle)
    stream = stream_at(device, on)
    if event == NULL or stream == NULL:
        return leave(device, INVALID)
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


cdef bint await_moment(SimStream* stream, SimStream* other, uint64_t tick) noexcept nogil:
    """The stream's later work comes after the other's, and after all that the other has to wait for."""
    cdef SimMoment* larger
    cdef size_t count = 0
    cdef size_t room = stream.awaited_count + other.awaited_count + 1
    cdef size_t i
    if room > stream.awaited_room:
        larger = <SimMoment*> realloc(stream.awaited, 2 * room * sizeof(SimMoment))
        if larger == NULL:
            return False
        stream.awaited = larger
        stream.awaited_room = 2 * room
    for i in range(stream.awaited_count):
        if not has_come(&stream.awaited[i]):
            stream.awaited[count] = stream.awaited[i]
            count += 1
    for i in range(other.awaited_count if other != stream else 0):
        stream.awaited[count + i] = other.awaited[i]
    count += other.awaited_count if other != stream else 0
    stream.awaited[count].stream = other
    stream.awaited[count].tick = tick
    stream.awaited_count = count + 1
    return True


cdef status_t stream_wait(void* self, stream_t handle, event_t on) noexcept nogil:
    """Inside a capture this joins the stream to it. Outside, frees in the pool respect it; when the stream's own
    work is done is left to who finishes it."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, STREAM_WAIT)
    cdef SimEvent* event
    cdef SimStream* stream
    if status != OK:
        return status
    event = <SimEvent*> map_get(&device.events, on)
    stream = stream_at(device, handle)
    if event == NULL or stream == NULL:
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
    cdef status_t status = enter(device, CAPTURE_BEGIN)
    cdef SimStream* stream
    cdef SimCapture* made
    if status != OK:
        return status
    stream = stream_at(device, handle)
    if stream == NULL or stream.capture != NULL:
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
    while place[0] != capture:
        place = &place[0].next
    place[0] = capture.next
    free(capture)


cdef bint comes_before(Simulation* device, NodeSet* later, node_t node) noexcept nogil:
    """Whether `node` is one of `later`, or anything one of them waited for."""
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


cdef status_t capture_end(void* self, stream_t handle, void** graph) noexcept nogil:
    """Ends the capture also where it fails: broken, or a stream that joined has work nobody waited for."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CAPTURE_END)
    cdef SimCapture* capture
    cdef SimStream* stream
    cdef SimStream* origin
    cdef size_t i, j
    cdef bint whole
    if status != OK:
        return status
    origin = stream_at(device, handle)
    if origin == NULL or origin.capture == NULL or origin.capture.origin != handle:
        return leave(device, INVALID)
    capture = origin.capture
    whole = not capture.broken
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
    if whole and graph != NULL:
        graph[0] = NULL
    return leave(device, OK if whole else DEVICE_ERROR)


cdef status_t capture_status(void* self, stream_t handle, capture_t* capture) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CAPTURE_STATUS)
    cdef SimStream* stream
    if status != OK:
        return status
    stream = stream_at(device, handle)
    if stream == NULL:
        return leave(device, INVALID)
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
    cdef status_t status = enter(device, CAPTURE_TERMINALS)
    cdef SimStream* stream
    if status != OK:
        return status
    stream = stream_at(device, handle)
    if stream == NULL:
        return leave(device, INVALID)
    return answer_nodes(device, &stream.terminals, nodes, capacity, count)


cdef status_t node_predecessors(void* self, node_t node, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, NODE_PREDECESSORS)
    if status != OK:
        return status
    return answer_nodes(device, <NodeSet*> map_get(&device.nodes, node), nodes, capacity, count)


cdef status_t capture_relaxed(void* self, bint relaxed) noexcept nogil:
    return OK


# --- the whole device --------------------------------------------------------------------------------------

cdef status_t memory_info(void* self, bytes_t* free_bytes, bytes_t* total) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, MEMORY_INFO)
    cdef uint64_t said = 0
    if status != OK:
        return status
    total[0] = device.capacity
    free_bytes[0] = device.capacity - device.used
    if device.script != NULL:
        with gil:
            if scripted(device, "free_memory", (), &said) == OK:
                free_bytes[0] = said
    return leave(device, OK)


cdef status_t copy(void* self, address_t destination, address_t source, bytes_t size, device_t source_device,
                   stream_t stream) noexcept nogil:
    """There is no content: a copy is a unit of work."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, COPY)
    cdef SimStream* on
    if status != OK:
        return status
    on = stream_at(device, stream)
    if on == NULL:
        return leave(device, INVALID)
    on.launched += 1
    return leave(device, OK)


cdef status_t peer_enable(void* self, device_t other) noexcept nogil:
    return OK


cdef status_t segment_export(void* self, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil:
    """Handles have the driver's form; nobody can open one, since there is nothing behind it."""
    cdef Simulation* device = <Simulation*> self
    if size_at(&device.segments, base) == 0 or capacity < 64:
        return INVALID
    memset(handle, 0, 64)
    memcpy(handle, &base, sizeof(address_t))
    length[0] = 64
    return OK


cdef status_t chunk_export(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                           size_t* length) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    if map_get(&device.chunks, chunk) == NULL or kind != SHARE_DESCRIPTOR or capacity < 4:
        return INVALID
    memcpy(handle, &chunk, 4)
    length[0] = 4
    return OK


cdef size_t describe(void* self, char* text, size_t capacity) noexcept nogil:
    cdef const char* words = b"the simulated device refused"
    cdef size_t length = min(strlen(words), capacity)
    memcpy(text, words, length)
    return length


cdef Refusal refusal_of(uint64_t times, uint64_t after, bint out_of_memory) noexcept:
    cdef Refusal refusal
    refusal.after = after
    refusal.times = times
    refusal.status = OUT_OF_MEMORY if out_of_memory else DEVICE_ERROR
    return refusal


@cython.no_gc_clear     # an allocator that is collected with the device gives its memory back to it
cdef class SimulatedDevice(Device):
    def __cinit__(self, capacity, index=0, script=None):
        cdef Backend* table = &self.table
        cdef Simulation* sim = &self.simulation
        memset(sim, 0, sizeof(Simulation))
        guard_forks(&sim.fork_guard, LONG_LOCK, &sim.lock)
        table.self = sim
        if not 0 < capacity < 1 << 60:
            raise RequestError(f"a simulated device needs a capacity between 1 byte and 2**60, not {capacity}")
        sim.capacity = capacity
        self.script = script
        sim.next_address = <address_t> 1 << 40
        sim.last_handle = <uint64_t> 1 << 20
        if not (map_init(&sim.segments) and map_init(&sim.ranges) and map_init(&sim.chunks)
                and map_init(&sim.mappings) and map_init(&sim.streams) and map_init(&sim.events)
                and map_init(&sim.nodes)):
            raise MemoryError("no memory for a simulated device's records")
        self.name = f"sim:{capacity}" + (f"#{index}" if index else "")
        table.device = index
        table.capabilities = CAN_VIRTUAL | CAN_EVENTS | CAN_CAPTURE | CAN_PEERS | CAN_SHARE | CAN_COPY
        table.segment_allocate = segment_allocate
        table.segment_free = segment_free
        table.range_reserve = range_reserve
        table.range_release = range_release
        table.chunk_create = chunk_create
        table.chunk_release = chunk_release
        table.map = map_chunk
        table.unmap = unmap_chunk
        table.set_access = set_access
        table.granularity = granularity
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
        table.memory_info = memory_info
        table.copy = copy
        table.peer_enable = peer_enable
        table.segment_export = segment_export
        table.chunk_export = chunk_export
        table.describe = describe
        if not fill_pool(table, &sim.pool):
            raise MemoryError("no memory for a simulated device's records")

    def __dealloc__(self):
        cdef Simulation* sim = &self.simulation
        cdef size_t i
        cdef SimStream* stream
        cdef SimChunk* chunk
        unguard_forks(&sim.fork_guard)
        while sim.newest_stream != NULL:
            stream = sim.newest_stream
            sim.newest_stream = stream.older
            set_clear(&stream.terminals)
            free(stream.awaited)
            free(stream)
        while sim.first_capture != NULL:
            forget_capture(sim, sim.first_capture)
        for i in range(sim.events.mask + 1 if sim.events.slots != NULL else 0):
            if sim.events.slots[i].key != 0:
                set_clear(&(<SimEvent*> sim.events.slots[i].value).nodes)
                free(sim.events.slots[i].value)
        for i in range(sim.nodes.mask + 1 if sim.nodes.slots != NULL else 0):
            if sim.nodes.slots[i].key != 0:
                set_clear(<NodeSet*> sim.nodes.slots[i].value)
                free(sim.nodes.slots[i].value)
        for i in range(sim.chunks.mask + 1 if sim.chunks.slots != NULL else 0):
            chunk = <SimChunk*> sim.chunks.slots[i].value
            if sim.chunks.slots[i].key != 0:
                free(chunk)
        clear_pool(&sim.pool)
        map_clear(&sim.segments)
        map_clear(&sim.ranges)
        map_clear(&sim.chunks)
        map_clear(&sim.mappings)
        map_clear(&sim.streams)
        map_clear(&sim.events)
        map_clear(&sim.nodes)

    @property
    def script(self):
        return self.answerer

    @script.setter
    def script(self, script):
        self.answerer = script
        self.simulation.script = <void*> script if script is not None else NULL

    @property
    def capacity(self) -> int:
        return self.simulation.capacity

    @property
    def used(self) -> int:
        return self.simulation.used

    @property
    def calls(self) -> dict:
        return {name: self.simulation.called[<int> operation] for operation, name in enumerate(OPERATION_NAMES)}

    def refuse(self, operation, times=1, after=0, *, out_of_memory=True):
        if operation not in OPERATION_NAMES:
            raise RequestError(f"{operation!r} is no operation of this device: {', '.join(OPERATION_NAMES)}")
        self.simulation.refusals[<int> OPERATION_NAMES.index(operation)] = refusal_of(times, after, out_of_memory)

    def refuse_calls(self, times=1, after=0, *, out_of_memory=True):
        self.simulation.refusal = refusal_of(times, after, out_of_memory)

    def launch(self, stream_t stream):
        cdef Simulation* sim = &self.simulation
        cdef SimStream* on
        cdef node_t node = 0
        with nogil:
            lock_wait(&sim.lock)
            on = stream_at(&self.simulation, stream)
            if on != NULL and on.capture != NULL:
                node = add_node(sim, on)
            elif on != NULL:
                on.launched += 1
            lock_give(&sim.lock)
        self.raise_unless(OK if on != NULL else INVALID, "launch")
        return node

    def finish(self, stream=None):
        cdef SimStream* which
        if stream is None:
            self.raise_unless(device_synchronize(&self.simulation), "device_synchronize")
            return
        which = stream_at(&self.simulation, stream)
        self.raise_unless(OK if which != NULL else INVALID, "stream_synchronize")
        which.finished = which.launched

    def create_stream(self):
        cdef stream_t stream = 0
        self.raise_unless(stream_create(&self.simulation, &stream), "stream_create")
        return stream

    def destroy_stream(self, stream_t stream):
        self.raise_unless(stream_destroy(&self.simulation, stream), "stream_destroy")

    def wait(self, stream_t stream, stream_t on):
        cdef event_t event = 0
        self.raise_unless(event_create(&self.simulation, &event), "event_create")
        try:
            self.raise_unless(event_record(&self.simulation, event, on), "event_record")
            self.raise_unless(stream_wait(&self.simulation, stream, event), "stream_wait")
        finally:
            event_destroy(&self.simulation, event)

    def begin_capture(self, stream_t stream):
        cdef capture_t capture = 0
        self.raise_unless(capture_begin(&self.simulation, stream, &capture), "capture_begin")
        return capture

    def end_capture(self, stream_t stream):
        self.raise_unless(capture_end(&self.simulation, stream, NULL), "capture_end")

    def break_capture(self, stream_t stream):
        cdef SimStream* which = stream_at(&self.simulation, stream)
        if which == NULL or which.capture == NULL:
            raise RequestError(f"stream {stream} is not being captured")
        which.capture.broken = True

    def capture_of(self, stream_t stream):
        cdef capture_t capture = 0
        self.raise_unless(capture_status(&self.simulation, stream, &capture), "capture_status")
        return capture

    cdef int raise_unless(self, status_t status, str operation) except -1:
        if status != OK:
            raise device_error(&self.table, status, operation)
        return 0
