"""A device's memory for the contract: one driver call per operation.

Plain segments come from cuMemAlloc. Chunks are device memory that another process can open through a file descriptor,
or over the fabric if the machine has one. Creating the first chunk shows what the machine refuses; later chunks do not
ask for it again. The driver's chunk handles are bare pointers, so this module keeps track of the existing ones: it
refuses a released handle instead of passing it on.
"""

from allotment._core.contract.table cimport Device, status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._devices.cuda.context cimport CudaBackend, CudaContext

# Raises DeviceError. pre: the backend has its context, and the table its name and describe function.
cdef int fill_memory(Device device, CudaBackend* backend) except -1

# Pins memory of this process in place, for every device.
cdef status_t register_memory(CudaContext* context, address_t address, bytes_t size) noexcept nogil
cdef status_t unregister_memory(CudaContext* context, address_t address) noexcept nogil
