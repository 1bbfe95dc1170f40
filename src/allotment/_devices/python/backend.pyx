"""A device written in Python: a contract table whose functions take the interpreter lock and call methods.

    engine, no interpreter lock          trampoline                        the user's class
    table.memory_info(self, ...)   ->    take the lock, call, check   ->   def memory_info(self): ...
                            status  <-   keep what was raised         <-   a result, or an exception

Nothing a method does gets past its trampoline: every result is checked before it reaches the engine, and
every exception, an interrupt included, becomes a status and stays in the thread's slot (_core/contract/raising.pxd),
where the error that the caller finally sees is chained to it.
"""

import sys

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t

from allotment._core.contract cimport table as contract
from allotment._core.contract.raising cimport Failures, forget_refusal, new_failures
from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_COPY, CAN_EVENTS, CAN_PEERS, CAN_PINNED, CAN_SHARE, CAN_STREAM_ORDERED, CAN_VIRTUAL, IS_HOST, OK,
    UNSUPPORTED, Device, share_t, status_t)
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, node_t, stream_t)
from allotment._devices.python.answers cimport (
    describe, failed, memory, number, put_handle, put_nodes, readiness, wrong_result)

from allotment.errors import UnsupportedError

cdef object is_finalizing = sys.is_finalizing


cdef class Backend(Device):
    cdef Failures failures

    def __cinit__(self, *args, **kwargs):
        self.failures = new_failures(<void*> self)
        self.family = "python"
        self.name = type(self).__name__
        fill_table(&self.table, type(self))

    def __init__(self, *, str name=None, str family=None, device_t index=0, bint host=False):
        if name is not None:
            self.name = name
        if family is not None:
            self.family = family
        self.table.device = index
        if host:
            self.table.capabilities |= IS_HOST

    # A method that a subclass does not define is an operation that its device does not have.

    def allocate(self, size, stream):
        raise lacks(self, "allocate")

    def free(self, address, size):
        raise lacks(self, "free")

    def range_reserve(self, size, stream):
        raise lacks(self, "range_reserve")

    def range_release(self, address, size):
        raise lacks(self, "range_release")

    def chunk_create(self, size):
        raise lacks(self, "chunk_create")

    def chunk_release(self, chunk, size):
        raise lacks(self, "chunk_release")

    def map(self, address, size, chunk):
        raise lacks(self, "map")

    def unmap(self, address, size):
        raise lacks(self, "unmap")

    def set_access(self, address, size, device):
        raise lacks(self, "set_access")

    def granularity(self):
        raise lacks(self, "granularity")

    def stream_create(self):
        raise lacks(self, "stream_create")

    def stream_destroy(self, stream):
        raise lacks(self, "stream_destroy")

    def stream_query(self, stream):
        raise lacks(self, "stream_query")

    def stream_synchronize(self, stream):
        raise lacks(self, "stream_synchronize")

    def stream_wait(self, stream, event):
        raise lacks(self, "stream_wait")

    def device_synchronize(self):
        raise lacks(self, "device_synchronize")

    def event_create(self):
        raise lacks(self, "event_create")

    def event_destroy(self, event):
        raise lacks(self, "event_destroy")

    def event_record(self, event, stream):
        raise lacks(self, "event_record")

    def event_query(self, event):
        raise lacks(self, "event_query")

    def event_synchronize(self, event):
        raise lacks(self, "event_synchronize")

    def capture_begin(self, stream):
        raise lacks(self, "capture_begin")

    def capture_end(self, stream):
        raise lacks(self, "capture_end")

    def capture_status(self, stream):
        raise lacks(self, "capture_status")

    def capture_terminals(self, stream):
        raise lacks(self, "capture_terminals")

    def node_predecessors(self, node):
        raise lacks(self, "node_predecessors")

    def capture_relaxed(self, relaxed):
        raise lacks(self, "capture_relaxed")

    def memory_info(self):
        raise lacks(self, "memory_info")

    def clear_error(self):
        raise lacks(self, "clear_error")

    def copy(self, destination, source, size, source_device, stream):
        raise lacks(self, "copy")

    def peer_enable(self, other):
        raise lacks(self, "peer_enable")

    def segment_export(self, base):
        raise lacks(self, "segment_export")

    def segment_import(self, handle):
        raise lacks(self, "segment_import")

    def segment_close(self, base):
        raise lacks(self, "segment_close")

    def chunk_export(self, chunk, kind):
        raise lacks(self, "chunk_export")

    def chunk_import(self, kind, handle, size):
        raise lacks(self, "chunk_import")

    def pinned_allocate(self, size):
        raise lacks(self, "pinned_allocate")

    def pinned_free(self, address):
        raise lacks(self, "pinned_free")

    def ordered_allocate(self, size, stream):
        raise lacks(self, "ordered_allocate")

    def ordered_free(self, address, stream):
        raise lacks(self, "ordered_free")

    def ordered_trim(self, keep):
        raise lacks(self, "ordered_trim")

    def ordered_usage(self):
        raise lacks(self, "ordered_usage")

    def ordered_reset_high(self):
        raise lacks(self, "ordered_reset_high")

    def ordered_access(self, device):
        raise lacks(self, "ordered_access")


cdef object lacks(Backend device, str method):
    return UnsupportedError(f"{device.name} does not define {method}", operation=method, status=UNSUPPORTED)


# --- What a class offers -------------------------------------------------------------------------------------

cdef int fill_table(contract.DeviceTable* table, type cls) except -1:
    if not offers(cls, ("allocate", "free")):
        raise TypeError(f"{cls.__name__} must define allocate and free")
    table.segment_allocate = call_allocate
    table.segment_free = call_free
    table.describe = describe
    if offers(cls, ("range_reserve", "range_release", "chunk_create", "chunk_release", "map", "unmap", "set_access",
                    "granularity")):
        table.capabilities |= CAN_VIRTUAL
        table.range_reserve = call_range_reserve
        table.range_release = call_range_release
        table.chunk_create = call_chunk_create
        table.chunk_release = call_chunk_release
        table.map = call_map
        table.unmap = call_unmap
        table.set_access = call_set_access
        table.granularity = call_granularity
    if offers(cls, ("stream_create", "stream_destroy")):
        table.stream_create = call_stream_create
        table.stream_destroy = call_stream_destroy
    if offers(cls, ("stream_query", "stream_synchronize", "stream_wait", "device_synchronize", "event_create",
                    "event_destroy", "event_record", "event_query", "event_synchronize")):
        table.capabilities |= CAN_EVENTS
        table.stream_query = call_stream_query
        table.stream_synchronize = call_stream_synchronize
        table.stream_wait = call_stream_wait
        table.device_synchronize = call_device_synchronize
        table.event_create = call_event_create
        table.event_destroy = call_event_destroy
        table.event_record = call_event_record
        table.event_query = call_event_query
        table.event_synchronize = call_event_synchronize
    if offers(cls, ("capture_begin", "capture_end", "capture_status", "capture_terminals", "node_predecessors",
                    "capture_relaxed")):
        table.capabilities |= CAN_CAPTURE
        table.capture_begin = call_capture_begin
        table.capture_end = call_capture_end
        table.capture_status = call_capture_status
        table.capture_terminals = call_capture_terminals
        table.node_predecessors = call_node_predecessors
        table.capture_relaxed = call_capture_relaxed
    if offers(cls, ("memory_info",)):
        table.memory_info = call_memory_info
    if offers(cls, ("clear_error",)):
        table.clear_error = call_clear_error
    if offers(cls, ("copy",)):
        table.capabilities |= CAN_COPY
        table.copy = call_copy
    if offers(cls, ("peer_enable",)):
        table.capabilities |= CAN_PEERS
        table.peer_enable = call_peer_enable
    if offers(cls, ("segment_export", "segment_import", "segment_close")):
        table.capabilities |= CAN_SHARE
        table.segment_export = call_segment_export
        table.segment_import = call_segment_import
        table.segment_close = call_segment_close
    if offers(cls, ("chunk_export", "chunk_import")):
        table.capabilities |= CAN_SHARE
        table.chunk_export = call_chunk_export
        table.chunk_import = call_chunk_import
    if offers(cls, ("pinned_allocate", "pinned_free")):
        table.capabilities |= CAN_PINNED
        table.pinned_allocate = call_pinned_allocate
        table.pinned_free = call_pinned_free
    if offers(cls, ("ordered_allocate", "ordered_free", "ordered_trim", "ordered_usage", "ordered_reset_high",
                    "ordered_access")):
        table.capabilities |= CAN_STREAM_ORDERED
        table.ordered_allocate = call_ordered_allocate
        table.ordered_free = call_ordered_free
        table.ordered_trim = call_ordered_trim
        table.ordered_usage = call_ordered_usage
        table.ordered_reset_high = call_ordered_reset_high
        table.ordered_access = call_ordered_access
    return 0


cdef bint offers(type cls, tuple methods) except -1:
    # Half of what only makes sense together is most likely a misspelt name.
    defined = [method for method in methods if is_defined(cls, method)]
    if 0 < len(defined) < len(methods):
        missing = ", ".join([method for method in methods if method not in defined])
        raise TypeError(f"{cls.__name__} defines {', '.join(defined)} and must then also define {missing}")
    return len(defined) > 0


cdef bint is_defined(type cls, str method) except -1:
    attribute = getattr(cls, method)
    if attribute is None or attribute is getattr(Backend, method):
        return False
    if not callable(attribute):
        raise TypeError(f"{cls.__name__}.{method} is not a method but {attribute!r}")
    return True


# Who is deallocated together with the device, or with the interpreter, may still want something of it. By then its
# methods may have lost what they are made of; calling one could crash the interpreter.
cdef Backend living(void* self):
    cdef Backend device = <Backend> self
    if device.failures is None or device.failures.is_collected or is_finalizing():
        raise ReferenceError(f"{device.name} is gone")
    return device


# --- Trampolines, in the order of the table --------------------------------------------------------------------
# Each is: out-parameter = checked(method(arguments)), and whatever was raised as a status.

cdef status_t call_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).allocate(size, stream), size, "allocate")
        forget_refusal(self)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_free(void* self, address_t address, bytes_t size) noexcept with gil:
    try:
        living(self).free(address, size)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).range_reserve(size, stream), size, "range_reserve")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_range_release(void* self, address_t address, bytes_t size) noexcept with gil:
    try:
        living(self).range_release(address, size)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept with gil:
    try:
        chunk[0] = number(living(self).chunk_create(size), "chunk_create", "a chunk")
        forget_refusal(self)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept with gil:
    try:
        living(self).chunk_release(chunk, size)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_map(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept with gil:
    try:
        living(self).map(address, size, chunk)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_unmap(void* self, address_t address, bytes_t size) noexcept with gil:
    try:
        living(self).unmap(address, size)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_set_access(void* self, address_t address, bytes_t size, device_t device) noexcept with gil:
    try:
        living(self).set_access(address, size, device)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_granularity(void* self, bytes_t* size) noexcept with gil:
    try:
        size[0] = number(living(self).granularity(), "granularity", "a size")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_stream_create(void* self, stream_t* stream) noexcept with gil:
    try:
        stream[0] = number(living(self).stream_create(), "stream_create", "a stream")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_stream_destroy(void* self, stream_t stream) noexcept with gil:
    try:
        living(self).stream_destroy(stream)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_stream_query(void* self, stream_t stream) noexcept with gil:
    try:
        return readiness(living(self).stream_query(stream), "stream_query")
    except BaseException as error:
        return failed(self, error)


cdef status_t call_stream_synchronize(void* self, stream_t stream) noexcept with gil:
    try:
        living(self).stream_synchronize(stream)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_stream_wait(void* self, stream_t stream, event_t event) noexcept with gil:
    try:
        living(self).stream_wait(stream, event)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_device_synchronize(void* self) noexcept with gil:
    try:
        living(self).device_synchronize()
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_event_create(void* self, event_t* event) noexcept with gil:
    try:
        event[0] = number(living(self).event_create(), "event_create", "an event")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_event_destroy(void* self, event_t event) noexcept with gil:
    try:
        living(self).event_destroy(event)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_event_record(void* self, event_t event, stream_t stream) noexcept with gil:
    try:
        living(self).event_record(event, stream)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_event_query(void* self, event_t event) noexcept with gil:
    try:
        return readiness(living(self).event_query(event), "event_query")
    except BaseException as error:
        return failed(self, error)


cdef status_t call_event_synchronize(void* self, event_t event) noexcept with gil:
    try:
        living(self).event_synchronize(event)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_capture_begin(void* self, stream_t stream, capture_t* capture) noexcept with gil:
    try:
        capture[0] = number(living(self).capture_begin(stream), "capture_begin", "a capture")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_capture_end(void* self, stream_t stream, void** graph) noexcept with gil:
    try:
        graph[0] = <void*> <size_t> number(living(self).capture_end(stream), "capture_end", "a graph", 0)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_capture_status(void* self, stream_t stream, capture_t* capture) noexcept with gil:
    try:
        capture[0] = number(living(self).capture_status(stream), "capture_status", "a capture", 0)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_capture_terminals(void* self, stream_t stream, node_t* nodes, size_t capacity,
                                     size_t* count) noexcept with gil:
    try:
        put_nodes(living(self).capture_terminals(stream), nodes, capacity, count, "capture_terminals")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_node_predecessors(void* self, node_t node, node_t* nodes, size_t capacity,
                                     size_t* count) noexcept with gil:
    try:
        put_nodes(living(self).node_predecessors(node), nodes, capacity, count, "node_predecessors")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_capture_relaxed(void* self, bint relaxed) noexcept with gil:
    try:
        living(self).capture_relaxed(relaxed)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_memory_info(void* self, bytes_t* free, bytes_t* total) noexcept with gil:
    cdef bytes_t free_bytes, total_bytes
    try:
        result = living(self).memory_info()
        if not isinstance(result, tuple) or len(result) != 2:
            raise wrong_result(result, "memory_info", "a pair (free, total)")
        free_bytes = number(result[0], "memory_info", "free bytes", 0)
        total_bytes = number(result[1], "memory_info", "total bytes", 0)
        if free_bytes > total_bytes:
            raise wrong_result(result, "memory_info", "a pair (free, total) with free <= total")
        free[0] = free_bytes
        total[0] = total_bytes
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_clear_error(void* self) noexcept with gil:
    try:
        living(self).clear_error()
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_copy(void* self, address_t destination, address_t source, bytes_t size, device_t source_device,
                        stream_t stream) noexcept with gil:
    try:
        living(self).copy(destination, source, size, source_device, stream)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_peer_enable(void* self, device_t other) noexcept with gil:
    try:
        living(self).peer_enable(other)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_segment_export(void* self, address_t base, unsigned char* handle, size_t capacity,
                                  size_t* length) noexcept with gil:
    try:
        put_handle(living(self).segment_export(base), handle, capacity, length, "segment_export")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_segment_import(void* self, const unsigned char* handle, size_t length,
                                  address_t* base) noexcept with gil:
    try:
        data = PyBytes_FromStringAndSize(<const char*> handle, length)
        base[0] = number(living(self).segment_import(data), "segment_import", "an address")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_segment_close(void* self, address_t base) noexcept with gil:
    try:
        living(self).segment_close(base)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_chunk_export(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                                size_t* length) noexcept with gil:
    try:
        put_handle(living(self).chunk_export(chunk, <int> kind), handle, capacity, length, "chunk_export")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_chunk_import(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                                chunk_t* chunk) noexcept with gil:
    try:
        data = PyBytes_FromStringAndSize(<const char*> handle, length)
        chunk[0] = number(living(self).chunk_import(<int> kind, data, size), "chunk_import", "a chunk")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_pinned_allocate(void* self, bytes_t size, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).pinned_allocate(size), size, "pinned_allocate")
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_pinned_free(void* self, address_t address) noexcept with gil:
    try:
        living(self).pinned_free(address)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_ordered_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).ordered_allocate(size, stream), size, "ordered_allocate")
        forget_refusal(self)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_ordered_free(void* self, address_t address, stream_t stream) noexcept with gil:
    try:
        living(self).ordered_free(address, stream)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_ordered_trim(void* self, bytes_t keep) noexcept with gil:
    try:
        living(self).ordered_trim(keep)
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_ordered_usage(void* self, bytes_t* used, bytes_t* used_high, bytes_t* reserved,
                                 bytes_t* reserved_high) noexcept with gil:
    try:
        result = living(self).ordered_usage()
        if not isinstance(result, tuple) or len(result) != 4:
            raise wrong_result(result, "ordered_usage", "(used, used_high, reserved, reserved_high)")
        numbers = [number(figure, "ordered_usage", "bytes", 0) for figure in result]
        used[0], used_high[0], reserved[0], reserved_high[0] = numbers
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_ordered_reset_high(void* self) noexcept with gil:
    try:
        living(self).ordered_reset_high()
        return OK
    except BaseException as error:
        return failed(self, error)


cdef status_t call_ordered_access(void* self, device_t device) noexcept with gil:
    try:
        living(self).ordered_access(device)
        return OK
    except BaseException as error:
        return failed(self, error)
