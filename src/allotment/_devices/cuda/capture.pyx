from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc

from allotment._core.contract.table cimport CAN_CAPTURE, DEVICE_ERROR, OK
from allotment._core.contract.types cimport capture_t, graph_t, node_t, stream_t
from allotment._devices.cuda.context cimport Visit, context_in, enter, leave
from allotment._devices.cuda.driver cimport (
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_STATUS_ACTIVE,
    CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, CUDA_SUCCESS, CUgraphEdgeData, CUgraphNode, CUresult,
    CUstreamCaptureMode, CUstreamCaptureStatus, cuuint64_t, driver)
from allotment._devices.cuda.streams cimport driver_stream, is_legacy, is_parked, refuse_parked

cdef extern from *:
    """
    static __thread int allotment_relaxed_depth;    /* how often this thread asked for relaxed capture */
    static __thread int allotment_strict_mode;      /* the mode it had before it did */
    """
    int relaxed_depth "allotment_relaxed_depth"
    int strict_mode "allotment_strict_mode"

cdef enum:
    STACK_EDGES = 16            # more predecessors are rare, and need a malloc


cdef void fill_capture(DeviceTable* table) noexcept:
    table.capabilities |= CAN_CAPTURE
    table.capture_begin = capture_begin
    table.capture_end = capture_end
    table.capture_status = capture_status
    table.capture_terminals = capture_terminals
    table.node_predecessors = node_predecessors
    table.capture_relaxed = capture_relaxed
    table.graph_launch = graph_launch
    table.graph_destroy = graph_destroy


# Captures.

cdef CUresult capture_info(stream_t stream, capture_t* capture, const CUgraphNode** nodes,
                           size_t* count) noexcept nogil:
    """Return the capture that a stream is in and, if `nodes` is not NULL, its last nodes.

    Returns 0 and no nodes if the stream is in no capture, or in an invalidated one.
    """
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef const CUgraphEdgeData* edges = NULL
    cdef cuuint64_t identity = 0
    cdef const CUgraphEdgeData** wanted_edges = &edges if nodes != NULL else NULL
    cdef CUresult result
    if driver.cuStreamGetCaptureInfo_v3 != NULL:
        result = driver.cuStreamGetCaptureInfo_v3(
            driver_stream(stream), &status, &identity, NULL, nodes, wanted_edges, count)
    else:
        result = driver.cuStreamGetCaptureInfo_v2(driver_stream(stream), &status, &identity, NULL, nodes, count)
    if result == CUDA_SUCCESS:
        capture[0] = identity if status == CU_STREAM_CAPTURE_STATUS_ACTIVE else 0
    return result


cdef status_t capture_begin(void* self, stream_t stream, capture_t* capture) noexcept nogil:
    cdef Visit visit
    cdef CUgraph graph = NULL
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    # Thread-local: in global mode, a device malloc of any other thread would invalidate the capture.
    cdef CUresult result = driver.cuStreamBeginCapture_v2(driver_stream(stream), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    if result != CUDA_SUCCESS:
        return leave(&visit, b"cuStreamBeginCapture", result)
    result = capture_info(stream, capture, NULL, NULL)
    if result != CUDA_SUCCESS and driver.cuStreamEndCapture(driver_stream(stream), &graph) == CUDA_SUCCESS:
        driver.cuGraphDestroy(graph)
    return leave(&visit, b"cuStreamGetCaptureInfo", result)


cdef status_t capture_end(void* self, stream_t stream, graph_t* graph) noexcept nogil:
    cdef Visit visit
    cdef CudaWork* work = NULL
    cdef CUgraph found = NULL
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuStreamEndCapture(driver_stream(stream), &found)
    if result == CUDA_SUCCESS:
        work = <CudaWork*> calloc(1, sizeof(CudaWork))
        if work == NULL:
            driver.cuGraphDestroy(found)
            result = CUDA_ERROR_OUT_OF_MEMORY
        else:
            work.graph = found
            graph[0] = <graph_t> work
    return leave(&visit, b"cuStreamEndCapture", result)


cdef status_t capture_status(void* self, stream_t stream, capture_t* capture) noexcept nogil:
    cdef Visit visit
    if is_legacy(stream):
        capture[0] = 0
        return OK
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuStreamGetCaptureInfo", capture_info(stream, capture, NULL, NULL))


cdef status_t capture_terminals(void* self, stream_t stream, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Visit visit
    cdef const CUgraphNode* found = NULL
    cdef size_t found_count = 0
    cdef capture_t capture = 0
    if is_legacy(stream):
        count[0] = 0
        return OK
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = capture_info(stream, &capture, &found, &found_count)
    if result == CUDA_SUCCESS:
        if capture == 0:
            found_count = 0
        # The next call on the stream invalidates the driver's list.
        write_nodes(nodes, found, min(found_count, capacity))
        count[0] = found_count
    return leave(&visit, b"cuStreamGetCaptureInfo", result)


cdef void write_nodes(node_t* nodes, const CUgraphNode* found, size_t count) noexcept nogil:
    cdef size_t at
    for at in range(count):
        nodes[at] = <node_t> <uintptr_t> found[at]


cdef status_t node_predecessors(void* self, node_t node, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    cdef Visit visit
    cdef size_t there = 0
    cdef size_t wanted
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = dependencies(<CUgraphNode> node, NULL, NULL, &there)
    wanted = min(there, capacity)
    if result == CUDA_SUCCESS and wanted > 0:
        result = fetch_dependencies(<CUgraphNode> node, nodes, wanted)
    if result == CUDA_SUCCESS:
        count[0] = there
    return leave(&visit, b"cuGraphNodeGetDependencies", result)


cdef CUresult dependencies(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges,
                           size_t* count) noexcept nogil:
    if driver.cuGraphNodeGetDependencies_v2 != NULL:
        return driver.cuGraphNodeGetDependencies_v2(node, nodes, edges, count)
    return driver.cuGraphNodeGetDependencies(node, nodes, count)


cdef CUresult fetch_dependencies(CUgraphNode node, node_t* nodes, size_t count) noexcept nogil:
    """Fetch exactly `count` dependencies. The driver insists on returning their edge data too."""
    cdef CUgraphEdgeData[STACK_EDGES] few
    cdef CUgraphEdgeData* edges = few
    cdef CUresult result
    if count > STACK_EDGES:
        edges = <CUgraphEdgeData*> malloc(count * sizeof(CUgraphEdgeData))
        if edges == NULL:
            return CUDA_ERROR_OUT_OF_MEMORY
    result = dependencies(node, <CUgraphNode*> nodes, edges, &count)
    if edges != few:
        free(edges)
    return result


cdef status_t capture_relaxed(void* self, bint relaxed) noexcept nogil:
    global relaxed_depth, strict_mode
    cdef Visit visit
    cdef CUstreamCaptureMode mode
    cdef CUresult result = CUDA_SUCCESS
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    if relaxed and relaxed_depth == 0:
        mode = CU_STREAM_CAPTURE_MODE_RELAXED
        result = driver.cuThreadExchangeStreamCaptureMode(&mode)
        strict_mode = mode
    elif not relaxed and relaxed_depth == 1:
        mode = strict_mode
        result = driver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == CUDA_SUCCESS:
        relaxed_depth = relaxed_depth + 1 if relaxed else max(relaxed_depth - 1, 0)
    return leave(&visit, b"cuThreadExchangeStreamCaptureMode", result)


# Graphs.

cdef status_t count_nodes(CudaContext* context, CudaWork* work, size_t* count) noexcept nogil:
    cdef Visit visit
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuGraphGetNodes", driver.cuGraphGetNodes(work.graph, NULL, count))


cdef status_t instantiate(CudaContext* context, CudaWork* work) noexcept nogil:
    cdef Visit visit
    if work.executable != NULL:
        return OK
    if not enter(context, &visit):
        return DEVICE_ERROR
    # Lets the graph's next launch free what the graph allocated and did not free; otherwise that launch fails.
    return leave(&visit, b"cuGraphInstantiate", driver.cuGraphInstantiateWithFlags(
        &work.executable, work.graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))


cdef status_t graph_launch(void* self, graph_t graph, stream_t stream) noexcept nogil:
    cdef CudaWork* work = <CudaWork*> graph
    cdef Visit visit
    if is_parked(context_in(self), stream):
        return refuse_parked()
    cdef status_t status = instantiate(context_in(self), work)
    if status != OK:
        return status
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuGraphLaunch", driver.cuGraphLaunch(work.executable, driver_stream(stream)))


cdef status_t graph_destroy(void* self, graph_t graph) noexcept nogil:
    cdef CudaWork* work = <CudaWork*> graph
    cdef CUresult result = CUDA_SUCCESS
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    if work.executable != NULL:
        result = driver.cuGraphExecDestroy(work.executable)
    if result == CUDA_SUCCESS:
        result = driver.cuGraphDestroy(work.graph)
    free(work)
    return leave(&visit, b"cuGraphDestroy", result)
