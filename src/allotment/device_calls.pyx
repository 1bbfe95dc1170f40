from allotment.core.backend cimport OK, Backend, Device, status_t
from allotment.core.raising cimport device_error
from allotment.core.types cimport address_t, bytes_t, device_t, stream_t

from allotment.errors import UnsupportedError


cdef tuple memory_info(Device device):
    cdef Backend* table = &device.table
    cdef bytes_t free_bytes = 0
    cdef bytes_t total = 0
    cdef status_t status
    if table.memory_info == NULL:
        raise UnsupportedError(f"{device.name} cannot tell how much memory it has", operation="memory_info")
    with nogil:
        status = table.memory_info(table.self, &free_bytes, &total)
    if status != OK:
        raise device_error(table, status, "memory_info")
    return free_bytes, total


cdef int enable_peer(Device device, device_t other) except -1:
    cdef Backend* table = &device.table
    cdef status_t status
    if table.peer_enable == NULL:
        raise UnsupportedError(f"{device.name} has no peers", operation="peer_enable")
    with nogil:
        status = table.peer_enable(table.self, other)
    if status != OK:
        raise device_error(table, status, "peer_enable")
    return 0


cdef int copy_memory(Device device, address_t destination, address_t source, bytes_t size, device_t source_device,
                     stream_t stream) except -1:
    cdef Backend* table = &device.table
    cdef status_t status
    if table.copy == NULL:
        raise UnsupportedError(f"{device.name} cannot copy", operation="copy")
    with nogil:
        status = table.copy(table.self, destination, source, size, source_device, stream)
    if status != OK:
        raise device_error(table, status, "copy")
    return 0
