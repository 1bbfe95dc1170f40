"""The host device: its contract table, and operations beyond it."""

cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free as free_memory
from libc.string cimport memset

from allotment._core.contract.raising cimport described, device_error
from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_COPY, CAN_EVENTS, CAN_PINNED, CAN_SHARE, CAN_VIRTUAL, INVALID, IS_HOST, OK, UNSUPPORTED, Device,
    share_t, status_t)
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, graph_t, node_t, stream_t)
from allotment._core.tools.arguments cimport read_arguments, read_device_index
from allotment._core.tools.weak_references cimport clear_weak_references_first
from allotment._devices.graphs cimport DeviceGraph, end_capture_into
from allotment._devices.host cimport memory as host_memory
from allotment._devices.host cimport streams as host_streams
from allotment._devices.host cimport virtual as host_virtual
from allotment._devices.host.faults cimport forget_asleep, note_asleep
from allotment._devices.host.memory cimport memory_close, memory_open
from allotment._devices.host.virtual cimport arena_close, arena_open
from allotment._devices.host.work cimport TASK_CALL, TASK_COPY, TASK_REPLAY, Graph, Task, graph_drop, graph_keep
from allotment._devices.host.queue cimport Queue
from allotment._devices.host.workers cimport queue_of_caller, scheduler_new, scheduler_release
from allotment._devices.shared.handles cimport handle_of
from allotment._devices.shared.posix cimport RELAXED, atomic_add, atomic_load
from allotment._devices.shared.refusal cimport forget_refusal, last_refusal, refuse_number

from allotment._devices.graphs import begin_capture
from allotment._devices.host.cgroups import memory_groups
from allotment.errors import StreamError

cdef extern from "<sys/mman.h>" nogil:
    int mlock(const void* address, size_t length)


cdef object asleep_guard = object()     # its critical section guards the process's list of memory that is paused


cdef class HostDevice(Device):
    """HostDevice(index=0, *, shareable=False)\n--\n
    This machine's memory as a device: "host". Linux only.

    Each stream is a queue with a worker thread, so its work really runs in parallel to the caller. Virtual memory,
    events and capture are real too. In a child of `fork` the parent's streams are dead (StreamError); new ones and the
    default stream work.

    `index` is the device's number in reports; it distinguishes two host devices of one process. With `shareable` each
    segment, and each page of an expandable one, has a memory file and thus its own descriptor, so that other processes
    can open it (`Allocator.share`). Safe to use from several threads.
    """

    _runs_by_itself = True      # see allotment/_devices/streams.pyx

    def __cinit__(self, *args, **kwargs):
        given = read_arguments(HostDevice, args, kwargs)
        cdef device_t index = read_device_index(given["index"], self)
        self.host = <Host*> calloc(1, sizeof(Host))
        if self.host == NULL:
            raise MemoryError("the host has no memory for the records of the host device")
        self.host.scheduler = scheduler_new()
        if self.host.scheduler == NULL:
            raise MemoryError("the host has no memory for the records of the host device")
        memory_open(&self.host.memory, memory_groups(), given["shareable"])
        arena_open(&self.host.arena, &self.host.memory)
        self.is_open = True
        self.host.index = index
        self.family = "host"
        self.name = "host" if index == 0 else f"host:{index}"
        self.table.self = self.host
        self.table.device = index
        fill_table(self)

    @cython.embedsignature(False)    # the class has it
    def __init__(self, index: int = 0, *, shareable: bool = False):
        pass    # `__cinit__` has read it, so that every object is complete

    def __dealloc__(self):
        if self.host == NULL:
            return
        if self.host.scheduler != NULL:
            host_streams.captures_give_up(self.host.scheduler)
            scheduler_release(self.host.scheduler)
        if self.is_open:
            arena_close(&self.host.arena)
            memory_close(&self.host.memory)
        free_memory(self.host)

    @property
    def shareable(self) -> bool:
        """Whether other processes can open its memory."""
        return self.host.memory.shareable

    @property
    def used(self) -> int:
        """Bytes of existing segments and chunks."""
        return atomic_load(&self.host.memory.used, RELAXED)

    @property
    def unlocked(self) -> int:
        """Number of pinned blocks that the system refused to lock in memory (`ulimit -l`), so that it may swap them."""
        return atomic_load(&self.host.unlocked, RELAXED)

    def register_host(self, address_t address, bytes_t size) -> None:
        """Lock memory of this process in place. If the system refuses, `unlocked` counts it, without an error."""
        cdef int failed
        with nogil:
            failed = mlock(<void*> address, size)
        if failed != 0:
            atomic_add(&self.host.unlocked, 1, RELAXED)

    def unregister_host(self, address_t address) -> None:
        """Undo `register_host`; the lock ends with the memory."""

    def _note_asleep(self, ranges: list[tuple[int, int]], words: str) -> None:
        """Set the owner that is named when a thread touches these (address, size), until `_forget_asleep`."""
        cdef bytes encoded = words.encode()
        for base, size in ranges:
            with cython.critical_section(asleep_guard):
                note_asleep(base, size, encoded)

    def _forget_asleep(self, ranges: list[tuple[int, int]]) -> None:
        for base, _ in ranges:
            with cython.critical_section(asleep_guard):
                forget_asleep(base)

    def submit(self, stream_t stream, function: Callable[..., object], tuple arguments not None=()) -> None:
        """Run a function in stream order; `Stream.submit` is the convenient form."""
        cdef Task task
        cdef status_t status
        if not callable(function):
            raise TypeError(f"the submitted function must be callable, not {type(function).__name__}")
        memset(&task, 0, sizeof(Task))
        task.kind = TASK_CALL
        task.function = <PyObject*> function
        task.arguments = <PyObject*> arguments
        Py_INCREF(function)
        Py_INCREF(arguments)
        status = host_streams.stream_submit(self.host.scheduler, stream, &task)
        if status != OK:
            Py_DECREF(function)
            Py_DECREF(arguments)
            raise submit_error(self, status)

    def take_exception(self, stream_t stream) -> BaseException | None:
        """Return what a function submitted to the stream raised, once."""
        cdef PyObject* exception = host_streams.take_exception(self.host.scheduler, stream)
        if exception == NULL:
            return None
        taken = <object> exception
        Py_DECREF(taken)
        return taken

    def _stream_of_caller(self) -> tuple[int, bool] | None:
        """Return (stream whose function the calling thread runs, whether more work is queued there), or None."""
        cdef bint has_more = False
        cdef Queue* queue
        with nogil:
            queue = queue_of_caller(&has_more)
        if queue == NULL or queue.scheduler != self.host.scheduler:
            return None
        return 0 if queue == &self.host.scheduler.default_queue else handle_of(&queue.handle), has_more

    def begin_capture(self, stream: Stream | int) -> int:
        """Begin a capture and return its identity: from now on work given to the stream is recorded, not run."""
        return begin_capture(self, stream)

    def end_capture(self, stream: Stream | int) -> HostGraph:
        """End the capture and return its graph.

        Raises DeviceError if a forbidden call invalidated the capture or if a stream that joined was not joined back;
        the capture has ended all the same.
        """
        return end_capture_into(HostGraph.__new__(HostGraph), self, stream)


clear_weak_references_first(HostDevice)


cdef class HostGraph(DeviceGraph):
    """HostGraph()\n--\n
    Work recorded by a capture. It may be replayed any number of times, also after its streams are gone.
    """

    @property
    def node_count(self) -> int:
        """Number of tasks in the graph."""
        return (<Graph*> self.living("node_count")).node_count


# `submit` is no contract operation, but for it too a stream is the only handle.
cdef object submit_error(Device device, status_t status):
    if status == INVALID:
        return StreamError(f"{device.name}: submit failed: {described(&device.table)}")
    return device_error(device, status, "submit")


# The contract

cdef void fill_table(HostDevice device):
    device.table.capabilities = CAN_VIRTUAL | CAN_EVENTS | CAN_CAPTURE | CAN_COPY | CAN_PINNED | IS_HOST
    device.table.segment_allocate = segment_allocate
    device.table.segment_free = segment_free
    device.table.range_reserve = range_reserve
    device.table.range_release = range_release
    device.table.chunk_create = chunk_create
    device.table.chunk_release = chunk_release
    device.table.map = map_chunk
    device.table.unmap = unmap
    device.table.set_access = set_access
    device.table.granularity = granularity
    device.table.stream_create = stream_create
    device.table.stream_destroy = stream_destroy
    device.table.stream_query = stream_query
    device.table.stream_synchronize = stream_synchronize
    device.table.stream_wait = stream_wait
    device.table.device_synchronize = device_synchronize
    device.table.event_create = event_create
    device.table.event_destroy = event_destroy
    device.table.event_record = event_record
    device.table.event_query = event_query
    device.table.event_synchronize = event_synchronize
    device.table.capture_begin = capture_begin
    device.table.capture_end = capture_end
    device.table.capture_status = capture_status
    device.table.capture_terminals = capture_terminals
    device.table.node_predecessors = node_predecessors
    device.table.capture_relaxed = capture_relaxed
    device.table.graph_launch = graph_launch
    device.table.graph_destroy = graph_destroy
    device.table.memory_info = memory_info
    device.table.clear_error = clear_error
    device.table.describe = describe
    device.table.copy = copy
    device.table.pinned_allocate = pinned_allocate
    device.table.pinned_free = pinned_free
    if device.host.memory.shareable:
        device.table.capabilities |= CAN_SHARE
        device.table.segment_export = segment_export
        device.table.segment_import = segment_import
        device.table.segment_close = segment_close
        device.table.chunk_export = chunk_export
        device.table.chunk_import = chunk_import


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    return host_memory.segment_allocate(&(<Host*> self).memory, size, address)


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    # Like a driver's free, it waits: work queued before the free may still have to run.
    cdef status_t status = host_streams.await_everything((<Host*> self).scheduler)
    if status != OK:
        return status
    return host_memory.segment_free(&(<Host*> self).memory, address, size)


cdef status_t range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    return host_virtual.range_reserve(&(<Host*> self).arena, size, address)


cdef status_t range_release(void* self, address_t address, bytes_t size) noexcept nogil:
    return host_virtual.range_release(&(<Host*> self).arena, address, size)


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    return host_virtual.chunk_create(&(<Host*> self).arena, size, chunk)


cdef status_t chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept nogil:
    return host_virtual.chunk_release(&(<Host*> self).arena, chunk, size)


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil:
    return host_virtual.map_chunk(&(<Host*> self).arena, address, size, chunk)


cdef status_t unmap(void* self, address_t address, bytes_t size) noexcept nogil:
    return host_virtual.unmap(&(<Host*> self).arena, address, size)


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t device) noexcept nogil:
    if device != (<Host*> self).index:
        return refuse_number(UNSUPPORTED, b"device %llu cannot be given access to host memory", device)
    return host_virtual.set_access(&(<Host*> self).arena, address, size)


cdef status_t granularity(void* self, bytes_t* size) noexcept nogil:
    size[0] = (<Host*> self).memory.page
    return OK


cdef status_t stream_create(void* self, stream_t* stream) noexcept nogil:
    return host_streams.stream_create((<Host*> self).scheduler, stream)


cdef status_t stream_destroy(void* self, stream_t stream) noexcept nogil:
    return host_streams.stream_destroy((<Host*> self).scheduler, stream)


cdef status_t stream_query(void* self, stream_t stream) noexcept nogil:
    return host_streams.stream_query((<Host*> self).scheduler, stream)


cdef status_t stream_synchronize(void* self, stream_t stream) noexcept nogil:
    return host_streams.stream_synchronize((<Host*> self).scheduler, stream)


cdef status_t stream_wait(void* self, stream_t stream, event_t event) noexcept nogil:
    return host_streams.stream_wait((<Host*> self).scheduler, stream, event)


cdef status_t device_synchronize(void* self) noexcept nogil:
    return host_streams.device_synchronize((<Host*> self).scheduler)


cdef status_t event_create(void* self, event_t* event) noexcept nogil:
    return host_streams.event_create((<Host*> self).scheduler, event)


cdef status_t event_destroy(void* self, event_t event) noexcept nogil:
    return host_streams.event_destroy((<Host*> self).scheduler, event)


cdef status_t event_record(void* self, event_t event, stream_t stream) noexcept nogil:
    return host_streams.event_record((<Host*> self).scheduler, event, stream)


cdef status_t event_query(void* self, event_t event) noexcept nogil:
    return host_streams.event_query((<Host*> self).scheduler, event)


cdef status_t event_synchronize(void* self, event_t event) noexcept nogil:
    return host_streams.event_synchronize((<Host*> self).scheduler, event)


cdef status_t capture_begin(void* self, stream_t stream, capture_t* capture) noexcept nogil:
    return host_streams.capture_begin((<Host*> self).scheduler, stream, capture)


cdef status_t capture_end(void* self, stream_t stream, graph_t* graph) noexcept nogil:
    cdef Graph* made = NULL
    cdef status_t status = host_streams.capture_end((<Host*> self).scheduler, stream, &made)
    if status == OK:
        graph[0] = <graph_t> made
    return status


cdef status_t capture_status(void* self, stream_t stream, capture_t* capture) noexcept nogil:
    return host_streams.capture_status((<Host*> self).scheduler, stream, capture)


cdef status_t capture_terminals(void* self, stream_t stream, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    return host_streams.capture_terminals((<Host*> self).scheduler, stream, nodes, capacity, count)


cdef status_t node_predecessors(void* self, node_t node, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil:
    return host_streams.node_predecessors((<Host*> self).scheduler, node, nodes, capacity, count)


# Allocating memory never disturbs a capture here, so there is no strictness to relax.
cdef status_t capture_relaxed(void* self, bint relaxed) noexcept nogil:
    return OK


cdef status_t graph_launch(void* self, graph_t graph, stream_t stream) noexcept nogil:
    cdef Task task
    cdef status_t status
    memset(&task, 0, sizeof(Task))
    task.kind = TASK_REPLAY
    task.graph = <Graph*> graph
    graph_keep(task.graph)
    status = host_streams.stream_submit((<Host*> self).scheduler, stream, &task)
    if status != OK:
        graph_drop(task.graph)
    return status


cdef status_t graph_destroy(void* self, graph_t graph) noexcept nogil:
    graph_drop(<Graph*> graph)
    return OK


cdef status_t memory_info(void* self, bytes_t* free, bytes_t* total) noexcept nogil:
    return host_memory.memory_info(&(<Host*> self).memory, free, total)


cdef status_t clear_error(void* self) noexcept nogil:
    forget_refusal()
    return OK


cdef size_t describe(void* self, char* text, size_t capacity) noexcept nogil:
    return last_refusal(text, capacity)


cdef status_t copy(void* self, address_t destination, address_t source, bytes_t size, device_t destination_device,
                   device_t source_device, stream_t stream) noexcept nogil:
    cdef Task task
    if source_device != (<Host*> self).index:
        return refuse_number(UNSUPPORTED, b"the host cannot copy from device %llu", source_device)
    if destination_device != (<Host*> self).index:
        return refuse_number(UNSUPPORTED, b"the host cannot copy to device %llu", destination_device)
    memset(&task, 0, sizeof(Task))
    task.kind = TASK_COPY
    task.destination = destination
    task.source = source
    task.size = size
    return host_streams.stream_submit((<Host*> self).scheduler, stream, &task)


cdef status_t pinned_allocate(void* self, bytes_t size, address_t* address) noexcept nogil:
    cdef status_t status = host_memory.segment_allocate(&(<Host*> self).memory, size, address)
    if status == OK and mlock(<void*> address[0], size) != 0:
        atomic_add(&(<Host*> self).unlocked, 1, RELAXED)
    return status


cdef status_t pinned_free(void* self, address_t address) noexcept nogil:
    return host_memory.segment_free(&(<Host*> self).memory, address, 0)


cdef status_t segment_export(void* self, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil:
    return host_memory.segment_export(&(<Host*> self).memory, base, handle, capacity, length)


cdef status_t segment_import(void* self, const unsigned char* handle, size_t length, address_t* base) noexcept nogil:
    return host_memory.segment_import(&(<Host*> self).memory, handle, length, base)


cdef status_t segment_close(void* self, address_t base) noexcept nogil:
    return host_memory.segment_close(&(<Host*> self).memory, base)


cdef status_t chunk_export(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                           size_t* length) noexcept nogil:
    return host_virtual.chunk_export(&(<Host*> self).arena, chunk, kind, handle, capacity, length)


cdef status_t chunk_import(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                           chunk_t* chunk) noexcept nogil:
    return host_virtual.chunk_import(&(<Host*> self).arena, kind, handle, length, size, chunk)
