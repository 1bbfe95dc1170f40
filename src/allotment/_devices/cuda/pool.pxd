"""The driver's own stream-ordered pool, on the contract's terms.

It is the device's default pool, the one that everybody in this process shares who says cudaMallocAsync. The first
call sets it up for a program that comes back for what it gave back: nothing is released to the system before
somebody asks for that, and memory may be reused in all three ways that the driver knows (after an event, when the
free has happened to be done, and by letting the stream wait).
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.cuda.context cimport CudaBackend

# Leaves the table alone where the device has no pools. pre: the backend has its context
cdef void fill_pool(DeviceTable* table, CudaBackend* backend) noexcept
