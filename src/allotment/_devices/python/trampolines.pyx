# written by `make generate` from _core/contract/operations.py: do not edit
"""The table of a device written in Python: each function takes the interpreter lock and calls a method.

Each is: out-parameter = checked(method(arguments)); an exception becomes a status.
"""

from libc.stddef cimport size_t

from allotment._core.contract.raising cimport forget_refusal
from allotment._core.contract.table cimport OK, DeviceTable, share_t, status_t
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, graph_t, node_t, stream_t)
from allotment._devices.python.results cimport (
    as_bytes, describe, failed, free_and_total, living, memory, number, numbers, put_data, put_nodes, readiness)

cdef DeviceTable TRAMPOLINES


cdef const DeviceTable* trampolines() noexcept:
    return &TRAMPOLINES


cdef status_t call_segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).allocate(size, stream), size, "allocate")
        forget_refusal(self)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.segment_allocate = call_segment_allocate


cdef status_t call_segment_free(void* self, address_t address, bytes_t size) noexcept with gil:
    try:
        living(self).free(address, size)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.segment_free = call_segment_free


cdef status_t call_range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).range_reserve(size, stream), size, "range_reserve")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.range_reserve = call_range_reserve


cdef status_t call_range_release(void* self, address_t address, bytes_t size) noexcept with gil:
    try:
        living(self).range_release(address, size)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.range_release = call_range_release


cdef status_t call_chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept with gil:
    try:
        chunk[0] = number(living(self).chunk_create(size), "chunk_create", "a chunk")
        forget_refusal(self)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.chunk_create = call_chunk_create


cdef status_t call_chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept with gil:
    try:
        living(self).chunk_release(chunk, size)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.chunk_release = call_chunk_release


cdef status_t call_map(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept with gil:
    try:
        living(self).map(address, size, chunk)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.map = call_map


cdef status_t call_unmap(void* self, address_t address, bytes_t size) noexcept with gil:
    try:
        living(self).unmap(address, size)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.unmap = call_unmap


cdef status_t call_set_access(void* self, address_t address, bytes_t size, device_t device) noexcept with gil:
    try:
        living(self).set_access(address, size, device)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.set_access = call_set_access


cdef status_t call_granularity(void* self, bytes_t* size) noexcept with gil:
    try:
        size[0] = number(living(self).granularity(), "granularity", "a number of bytes")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.granularity = call_granularity


cdef status_t call_stream_create(void* self, stream_t* stream) noexcept with gil:
    try:
        stream[0] = number(living(self).stream_create(), "stream_create", "a stream")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.stream_create = call_stream_create


cdef status_t call_stream_destroy(void* self, stream_t stream) noexcept with gil:
    try:
        living(self).stream_destroy(stream)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.stream_destroy = call_stream_destroy


cdef status_t call_stream_query(void* self, stream_t stream) noexcept with gil:
    try:
        return readiness(living(self).stream_query(stream), "stream_query")
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.stream_query = call_stream_query


cdef status_t call_stream_synchronize(void* self, stream_t stream) noexcept with gil:
    try:
        living(self).stream_synchronize(stream)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.stream_synchronize = call_stream_synchronize


cdef status_t call_stream_wait(void* self, stream_t stream, event_t event) noexcept with gil:
    try:
        living(self).stream_wait(stream, event)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.stream_wait = call_stream_wait


cdef status_t call_device_synchronize(void* self) noexcept with gil:
    try:
        living(self).device_synchronize()
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.device_synchronize = call_device_synchronize


cdef status_t call_event_create(void* self, event_t* event) noexcept with gil:
    try:
        event[0] = number(living(self).event_create(), "event_create", "an event")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_create = call_event_create


cdef status_t call_event_destroy(void* self, event_t event) noexcept with gil:
    try:
        living(self).event_destroy(event)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_destroy = call_event_destroy


cdef status_t call_event_record(void* self, event_t event, stream_t stream) noexcept with gil:
    try:
        living(self).event_record(event, stream)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_record = call_event_record


cdef status_t call_event_query(void* self, event_t event) noexcept with gil:
    try:
        return readiness(living(self).event_query(event), "event_query")
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_query = call_event_query


cdef status_t call_event_synchronize(void* self, event_t event) noexcept with gil:
    try:
        living(self).event_synchronize(event)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_synchronize = call_event_synchronize


cdef status_t call_shared_event_create(void* self, event_t* event) noexcept with gil:
    try:
        event[0] = number(living(self).shared_event_create(), "shared_event_create", "an event")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.shared_event_create = call_shared_event_create


cdef status_t call_event_export(void* self, event_t event, unsigned char* handle, size_t capacity,
                                size_t* length) noexcept with gil:
    try:
        put_data(living(self).event_export(event), handle, capacity, length, "event_export")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_export = call_event_export


cdef status_t call_event_import(void* self, const unsigned char* handle, size_t length,
                                event_t* event) noexcept with gil:
    try:
        event[0] = number(living(self).event_import(as_bytes(handle, length)), "event_import", "an event")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.event_import = call_event_import


cdef status_t call_capture_begin(void* self, stream_t stream, capture_t* capture) noexcept with gil:
    try:
        capture[0] = number(living(self).capture_begin(stream), "capture_begin", "a capture")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.capture_begin = call_capture_begin


cdef status_t call_capture_end(void* self, stream_t stream, graph_t* graph) noexcept with gil:
    try:
        graph[0] = number(living(self).capture_end(stream), "capture_end", "a graph")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.capture_end = call_capture_end


cdef status_t call_capture_status(void* self, stream_t stream, capture_t* capture) noexcept with gil:
    try:
        capture[0] = number(living(self).capture_status(stream), "capture_status", "a capture", 0)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.capture_status = call_capture_status


cdef status_t call_capture_terminals(void* self, stream_t stream, node_t* nodes, size_t capacity,
                                     size_t* count) noexcept with gil:
    try:
        put_nodes(living(self).capture_terminals(stream), nodes, capacity, count, "capture_terminals")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.capture_terminals = call_capture_terminals


cdef status_t call_node_predecessors(void* self, node_t node, node_t* nodes, size_t capacity,
                                     size_t* count) noexcept with gil:
    try:
        put_nodes(living(self).node_predecessors(node), nodes, capacity, count, "node_predecessors")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.node_predecessors = call_node_predecessors


cdef status_t call_capture_relaxed(void* self, bint relaxed) noexcept with gil:
    try:
        living(self).capture_relaxed(relaxed)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.capture_relaxed = call_capture_relaxed


cdef status_t call_graph_launch(void* self, graph_t graph, stream_t stream) noexcept with gil:
    try:
        living(self).graph_launch(graph, stream)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.graph_launch = call_graph_launch


cdef status_t call_graph_destroy(void* self, graph_t graph) noexcept with gil:
    try:
        living(self).graph_destroy(graph)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.graph_destroy = call_graph_destroy


cdef status_t call_memory_info(void* self, bytes_t* free, bytes_t* total) noexcept with gil:
    try:
        result = free_and_total(living(self).memory_info(), "free, total", "memory_info")
        free[0], total[0] = result
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.memory_info = call_memory_info


cdef status_t call_clear_error(void* self) noexcept with gil:
    try:
        living(self).clear_error()
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.clear_error = call_clear_error


cdef status_t call_copy(void* self, address_t destination, address_t source, bytes_t size,
                        device_t destination_device, device_t source_device, stream_t stream) noexcept with gil:
    try:
        living(self).copy(destination, source, size, destination_device, source_device, stream)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.copy = call_copy


cdef status_t call_peer_enable(void* self, device_t other) noexcept with gil:
    try:
        living(self).peer_enable(other)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.peer_enable = call_peer_enable


cdef status_t call_segment_export(void* self, address_t base, unsigned char* handle, size_t capacity,
                                  size_t* length) noexcept with gil:
    try:
        put_data(living(self).segment_export(base), handle, capacity, length, "segment_export")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.segment_export = call_segment_export


cdef status_t call_segment_import(void* self, const unsigned char* handle, size_t length,
                                  address_t* base) noexcept with gil:
    try:
        base[0] = number(living(self).segment_import(as_bytes(handle, length)), "segment_import", "an address")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.segment_import = call_segment_import


cdef status_t call_segment_close(void* self, address_t base) noexcept with gil:
    try:
        living(self).segment_close(base)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.segment_close = call_segment_close


cdef status_t call_chunk_export(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                                size_t* length) noexcept with gil:
    try:
        put_data(living(self).chunk_export(chunk, kind), handle, capacity, length, "chunk_export")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.chunk_export = call_chunk_export


cdef status_t call_chunk_import(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                                chunk_t* chunk) noexcept with gil:
    try:
        chunk[0] = number(living(self).chunk_import(kind, as_bytes(handle, length), size), "chunk_import", "a chunk")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.chunk_import = call_chunk_import


cdef status_t call_pinned_allocate(void* self, bytes_t size, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).pinned_allocate(size), size, "pinned_allocate")
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.pinned_allocate = call_pinned_allocate


cdef status_t call_pinned_free(void* self, address_t address) noexcept with gil:
    try:
        living(self).pinned_free(address)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.pinned_free = call_pinned_free


cdef status_t call_ordered_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    try:
        address[0] = memory(living(self).ordered_allocate(size, stream), size, "ordered_allocate")
        forget_refusal(self)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.ordered_allocate = call_ordered_allocate


cdef status_t call_ordered_free(void* self, address_t address, stream_t stream) noexcept with gil:
    try:
        living(self).ordered_free(address, stream)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.ordered_free = call_ordered_free


cdef status_t call_ordered_trim(void* self, bytes_t keep) noexcept with gil:
    try:
        living(self).ordered_trim(keep)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.ordered_trim = call_ordered_trim


cdef status_t call_ordered_usage(void* self, bytes_t* used, bytes_t* used_high, bytes_t* reserved,
                                 bytes_t* reserved_high) noexcept with gil:
    try:
        result = numbers(living(self).ordered_usage(), "used, used_high, reserved, reserved_high", "ordered_usage")
        used[0], used_high[0], reserved[0], reserved_high[0] = result
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.ordered_usage = call_ordered_usage


cdef status_t call_ordered_reset_high(void* self) noexcept with gil:
    try:
        living(self).ordered_reset_high()
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.ordered_reset_high = call_ordered_reset_high


cdef status_t call_ordered_access(void* self, device_t device) noexcept with gil:
    try:
        living(self).ordered_access(device)
        return OK
    except BaseException as error:
        return failed(self, error)

TRAMPOLINES.ordered_access = call_ordered_access


TRAMPOLINES.describe = describe
