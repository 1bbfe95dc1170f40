"""What an allocator asks of its device on a user's behalf, without any state of its own.

Each raises UnsupportedError for what the device cannot do, and DeviceError if it refuses.
"""

from allotment.core.backend cimport Device
from allotment.core.types cimport address_t, bytes_t, device_t, stream_t

cdef tuple memory_info(Device device)       # (free, total) bytes
cdef int enable_peer(Device device, device_t other) except -1
cdef int copy_memory(Device device, address_t destination, address_t source, bytes_t size, device_t source_device,
                     stream_t stream) except -1
