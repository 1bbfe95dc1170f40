"""Memory of a device, on the contract's terms: one driver call an operation.

Plain segments come from cuMemAlloc. Chunks are device memory that can be handed to another process as a file
descriptor, or over the fabric where the machine has one; what the machine refuses is found out by the first
chunk, and later ones do not ask for it again. The driver's handles of chunks are bare pointers, so it is
remembered which ones exist: a released one is refused instead of followed.
"""

from allotment._core.contract.table cimport Device, status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._devices.cuda.context cimport CudaBackend, CudaContext

# Raises DeviceError. pre: the backend has its context, and the table what is said in words.
cdef int fill_memory(Device device, CudaBackend* backend) except -1

# Memory of this process, pinned where it is, for every device.
cdef status_t register_memory(CudaContext* context, address_t address, bytes_t size) noexcept nogil
cdef status_t unregister_memory(CudaContext* context, address_t address) noexcept nogil
