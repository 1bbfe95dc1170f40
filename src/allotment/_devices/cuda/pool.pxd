"""The driver's own stream-ordered pool, for the contract.

It is the device's default pool, which all code of this process that calls cudaMallocAsync shares. The first call
configures it for programs that reuse what they free: the pool releases nothing to the system unless asked to, and
allows all three ways of reuse that the driver knows (after an event, when the free happens to be done, and by making
the stream wait).
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.cuda.context cimport CudaBackend

# Does nothing if the device has no pools. pre: the backend has its context
cdef void fill_pool(DeviceTable* table, CudaBackend* backend) noexcept
