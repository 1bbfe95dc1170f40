"""What an allocator asks of its device on a user's behalf, without any state of its own.

Arguments come as the user gave them. Each raises UnsupportedError for what the device cannot do, and DeviceError if it
refuses.
"""

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport device_t, stream_t

cdef tuple memory_info(Device device)       # (free, total) bytes
cdef device_t enable_peer(Device device, object peer) except -1     # the peer's index
cdef int copy_memory(Device device, object destination, object source, object size, object source_device,
                     stream_t stream) except -1
