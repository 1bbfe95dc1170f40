from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.tools.arguments cimport read_address, read_byte_count, read_device_index

import operator

from allotment.errors import UnsupportedError


cdef tuple memory_info(Device device):
    cdef DeviceTable* table = &device.table
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


cdef device_t enable_peer(Device device, object peer) except -1:
    cdef DeviceTable* table = &device.table
    cdef device_t other = read_device_index(operator.index(peer), device)
    cdef status_t status
    if table.peer_enable == NULL:
        raise UnsupportedError(f"{device.name} has no peers", operation="peer_enable")
    with nogil:
        status = table.peer_enable(table.self, other)
    if status != OK:
        raise device_error(table, status, "peer_enable")
    return other


cdef int copy_memory(Device device, object destination, object source, object size, object source_device,
                     stream_t stream) except -1:
    cdef DeviceTable* table = &device.table
    cdef address_t target = read_address(getattr(destination, "address", destination))
    cdef address_t origin = read_address(getattr(source, "address", source))
    cdef device_t where = read_device_index(source_device, device)
    cdef bytes_t count = read_byte_count(size)
    cdef status_t status
    if table.copy == NULL:
        raise UnsupportedError(f"{device.name} cannot copy", operation="copy")
    with nogil:
        status = table.copy(table.self, target, origin, count, where, stream)
    if status != OK:
        raise device_error(table, status, "copy")
    return 0
