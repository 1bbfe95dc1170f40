from allotment._core.contract.raising cimport check_status, require
from allotment._core.contract.table cimport INVALID, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t, stream_t
from allotment._core.tools.arguments cimport read_stream, refuse_pickling

from allotment.errors import DeviceError


cdef class DeviceGraph:
    """DeviceGraph()\n--\n
    Work recorded by a capture. It may be replayed any number of times, also after its streams are gone.

    Created by ending a capture. Safe to use from several threads.
    """

    def __init__(self):
        raise TypeError("a DeviceGraph is created by ending a capture, not by calling the class")

    @property
    def device(self) -> Device:
        """Device that it was captured on."""
        return self.device

    @property
    def handle(self) -> int:
        """Handle of the graph on its device, 0 once destroyed."""
        return self.handle

    def __reduce__(self):
        return refuse_pickling(self, "a graph belongs to this process; capture one in the other process")

    # A finalizer, not a deallocator: during a garbage collection the device still exists.
    def __del__(self):
        destroy(self)

    def replay(self, stream: Stream | int) -> None:
        """Run the captured work again on a stream, as one piece of the stream's work, in the order of its dependencies.

        Raises StreamError if the stream is not one of the graph's device, DeviceError if the graph was destroyed.
        """
        cdef DeviceTable* table = &self.device.table
        cdef graph_t graph = self.living("graph_launch")
        cdef stream_t on = read_stream(stream, self.device)
        cdef status_t status
        with nogil:
            status = table.graph_launch(table.self, graph, on)
        check_status(self.device, status, "graph_launch")

    def destroy(self) -> None:
        """Destroy the graph; does nothing the second time. Work replayed before still runs to its end."""
        check_status(self.device, destroy(self), "graph_destroy")

    cdef graph_t living(self, str operation) except 0:
        if self.handle == 0:
            raise DeviceError(f"{self.device.name}: this graph was destroyed", operation=operation, status=INVALID)
        return self.handle


cdef status_t destroy(DeviceGraph graph) noexcept:
    cdef DeviceTable* table
    cdef graph_t handle = graph.handle
    cdef status_t status = 0
    if handle != 0:
        graph.handle = 0
        table = &graph.device.table
        with nogil:
            status = table.graph_destroy(table.self, handle)
    return status


def begin_capture(Device device not None, stream: Stream | int) -> int:
    """Begin a capture and return its identity: from now on work given to the stream is recorded, not run.

    Raises UnsupportedError if the device cannot capture.
    """
    cdef DeviceTable* table = &device.table
    cdef stream_t on = read_stream(stream, device)
    cdef capture_t capture = 0
    cdef status_t status
    require(device, table.capture_begin != NULL, "capture_begin")
    with nogil:
        status = table.capture_begin(table.self, on, &capture)
    check_status(device, status, "capture_begin")
    return capture


def end_capture(Device device not None, stream: Stream | int) -> DeviceGraph:
    """End the capture of a stream and return its graph.

    Raises DeviceError if a forbidden call invalidated the capture, or if a stream that joined was not joined back; even
    then the capture has ended.
    """
    return end_capture_into(DeviceGraph.__new__(DeviceGraph), device, stream)


cdef DeviceGraph end_capture_into(DeviceGraph graph, Device device, object stream):
    cdef DeviceTable* table = &device.table
    cdef stream_t on = read_stream(stream, device)
    cdef graph_t handle = 0
    cdef status_t status
    require(device, table.capture_end != NULL, "capture_end")
    with nogil:
        status = table.capture_end(table.self, on, &handle)
    check_status(device, status, "capture_end")
    graph.device = device
    graph.handle = handle
    return graph
