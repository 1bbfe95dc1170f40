from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.table cimport OK, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t, node_t, stream_t
from allotment._core.mechanism.block cimport complete_free
from allotment._core.mechanism.capturing cimport capture_of
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.streams cimport deferral_init, undefer, uses_drop
from allotment._core.model.model cimport (
    FAILED_STILL_CAPTURING, Block, CaptureStore, Deferred, Engine, Failure, StreamUse, VisitedNodes)
from allotment._core.tools.arrays cimport make_room_for
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_put, map_reserve
from allotment._core.tools.slab cimport slab_give, slab_reserve, slab_take


cdef struct NodeList:
    node_t* nodes
    size_t count, room

ctypedef status_t (*list_nodes_t)(void* self, uint64_t of, node_t* nodes, size_t capacity,
                                  size_t* count) noexcept nogil


cdef bint append_nodes(Engine* engine, list_nodes_t ask, uint64_t of, NodeList* list, const char* operation,
                       Failure* failure) noexcept nogil:
    """Append the result of capture_terminals or node_predecessors to a list."""
    cdef status_t status
    cdef size_t count = 0
    while True:
        status = ask(engine.table.self, of, list.nodes + list.count, list.room - list.count, &count)
        if status != OK:
            return device_failed(failure, status, operation)
        if list.count + count <= list.room:
            list.count += count
            return True
        if not make_room_for(<void**> &list.nodes, &list.room, list.count + count, sizeof(node_t)):
            return host_memory_failed(failure)


cdef bint markers_gather(Engine* engine, Deferred* deferred, Failure* failure) noexcept nogil:
    """Gather the last captured nodes of every stream that uses the block; none if they are not all in one capture."""
    cdef NodeList list
    cdef StreamUse* use = deferred.block.uses
    cdef stream_t stream = deferred.block.free_list.stream.handle
    cdef capture_t capture = 0
    cdef capture_t other
    cdef bint ok = capture_of(engine, stream, &capture, failure)
    list.nodes = NULL
    list.count = list.room = 0
    other = capture
    while ok and capture != 0 and capture == other:
        ok = append_nodes(engine, engine.table.capture_terminals, stream, &list, b"capture_terminals", failure)
        if use == NULL:
            break
        stream = use.stream.handle
        use = use.next
        ok = ok and capture_of(engine, stream, &other, failure)
    if not ok or capture == 0 or capture != other:
        free(list.nodes)
        return ok
    deferred.capture = capture
    deferred.marker_count = list.count
    deferred.markers = list.nodes
    return True


cdef Deferred* deferral_prepare(Engine* engine, Block* block, bint captured, Failure* failure) noexcept nogil:
    """Do the part of deferring a block that can fail, before any change; NULL if it failed."""
    cdef Deferred* deferred
    if not slab_reserve(&engine.deferred_slab, 1):
        host_memory_failed(failure)
        return NULL
    deferred = <Deferred*> slab_take(&engine.deferred_slab)
    deferral_init(deferred, block)
    deferred.outside = not captured
    if captured and engine.tuning.stream_reuse and not markers_gather(engine, deferred, failure):
        slab_give(&engine.deferred_slab, deferred)
        return NULL
    return deferred


cdef VisitedNodes* visited_by(Engine* engine, capture_t capture, stream_t stream) noexcept nogil:
    """Return the nodes known to come before `stream` in a capture; creates the record on first use."""
    cdef CaptureStore* store = engine.captures
    cdef VisitedNodes* visited
    while store != NULL and store.capture != capture:
        store = store.next
    if store == NULL:
        store = <CaptureStore*> calloc(1, sizeof(CaptureStore))
        if store == NULL:
            return NULL
        store.capture = capture
        store.next = engine.captures
        engine.captures = store
    visited = store.streams
    while visited != NULL and visited.stream != stream:
        visited = visited.next
    if visited == NULL:
        visited = <VisitedNodes*> calloc(1, sizeof(VisitedNodes))
        if visited == NULL or not map_init(&visited.nodes):
            free(visited)
            return NULL
        visited.stream = stream
        visited.next = store.streams
        store.streams = visited
    return visited


cdef bint visit(Engine* engine, VisitedNodes* visited, NodeList* stack, Failure* failure) noexcept nogil:
    """Mark all predecessors of `stack`, each node once."""
    cdef node_t node
    while stack.count > 0:
        stack.count -= 1
        node = stack.nodes[stack.count]
        if map_get(&visited.nodes, node + 1) != NULL:
            continue
        if not map_reserve(&visited.nodes):
            return host_memory_failed(failure)
        if not append_nodes(engine, engine.table.node_predecessors, node, stack, b"node_predecessors", failure):
            return False
        map_put(&visited.nodes, node + 1, visited)
    return True


cdef bint all_visited(const VisitedNodes* visited, const Deferred* deferred) noexcept nogil:
    cdef size_t i
    for i in range(deferred.marker_count):
        if map_get(&visited.nodes, deferred.markers[i] + 1) == NULL:
            return False
    return deferred.marker_count > 0


cdef bint reuse_in_capture(Engine* engine, stream_t stream, uint32_t context, Failure* failure) noexcept nogil:
    """Free the deferred blocks of `stream` whose uses all come before what it captures next."""
    cdef VisitedNodes* visited
    cdef NodeList stack
    cdef Block* block
    cdef Deferred* deferred
    cdef Deferred* previous = NULL
    cdef Deferred* following
    cdef capture_t capture
    cdef bint ok
    if engine.first_deferred == NULL:
        return True
    if not capture_of(engine, stream, &capture, failure):
        return False
    if capture == 0:
        return True
    stack.nodes = NULL
    stack.count = stack.room = 0
    ok = append_nodes(engine, engine.table.capture_terminals, stream, &stack, b"capture_terminals", failure)
    if not ok or stack.count == 0:
        free(stack.nodes)
        return ok
    visited = visited_by(engine, capture, stream)
    ok = visit(engine, visited, &stack, failure) if visited != NULL else host_memory_failed(failure)
    free(stack.nodes)
    if not ok:
        return False
    deferred = engine.first_deferred
    while deferred != NULL:
        following = deferred.next
        block = deferred.block
        if (deferred.capture == capture and not deferred.awaited and block.free_list.stream.handle == stream
                and all_visited(visited, deferred)):
            undefer(engine, previous, deferred)
            uses_drop(engine, block)
            complete_free(engine, block, context)
        else:
            previous = deferred
        deferred = following
    return True


cdef bint forget_capture(Engine* engine, capture_t capture, Failure* failure) noexcept nogil:
    """Drop the data of an ended capture; fail while a stream that allocated in it is still in it."""
    cdef CaptureStore** link = &engine.captures
    cdef CaptureStore* store
    cdef VisitedNodes* visited
    cdef capture_t now
    while link[0] != NULL and link[0].capture != capture:
        link = &link[0].next
    store = link[0]
    if store == NULL:
        return True
    visited = store.streams
    while visited != NULL:
        # A stream whose status cannot be queried was destroyed, and so has left the capture.
        if capture_of(engine, visited.stream, &now, failure) and now == capture:
            failure.reason = FAILED_STILL_CAPTURING
            return False
        visited = visited.next
    link[0] = store.next
    capture_store_free(store)
    return True


cdef void capture_store_free(CaptureStore* store) noexcept nogil:
    cdef VisitedNodes* visited
    while store.streams != NULL:
        visited = store.streams
        store.streams = visited.next
        map_clear(&visited.nodes)
        free(visited)
    free(store)


cdef void captures_clear(Engine* engine) noexcept nogil:
    cdef CaptureStore* store
    while engine.captures != NULL:
        store = engine.captures
        engine.captures = store.next
        capture_store_free(store)


cdef bint relax_capture(Engine* engine, stream_t stream) noexcept nogil:
    """Let this thread allocate device memory while the stream is being captured, which a strict capture forbids.

    Returns whether that was necessary; pass the result to `end_relaxed_capture`.
    """
    cdef DeviceTable* table = engine.table
    cdef capture_t capture = 0
    if engine.routes == NULL or table.capture_relaxed == NULL or table.capture_status == NULL:
        return False
    if table.capture_status(table.self, stream, &capture) != OK or capture == 0:
        return False
    return table.capture_relaxed(table.self, True) == OK


cdef void end_relaxed_capture(Engine* engine, bint relaxed) noexcept nogil:
    if relaxed:
        engine.table.capture_relaxed(engine.table.self, False)
