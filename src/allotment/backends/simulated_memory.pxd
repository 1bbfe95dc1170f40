"""A simulated device's memory: exact accounts of what is reserved, created, mapped and where; nothing behind it."""

from allotment.backends.simulation cimport Simulation
from allotment.core.backend cimport Backend

# False if there is no memory for its records.
cdef bint fill_memory(Backend* table, Simulation* device) noexcept
cdef void clear_memory(Simulation* device) noexcept
