"""A simulated device's memory: exact records of what is reserved, created, mapped and where; no real memory."""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.simulated.simulation cimport Simulation

# False if there is no memory for its records.
cdef bint fill_memory(DeviceTable* table, Simulation* device) noexcept
cdef void clear_memory(Simulation* device) noexcept
