"""A simulated device's streams, events and captures.

A stream counts the units of work that were submitted and those that are finished; it finishes when told to. An event is
such a count for one stream. While a stream is captured, its work becomes nodes of a graph instead, each with its
predecessors.
"""

from allotment._core.contract.table cimport DeviceTable
from allotment._devices.simulated.simulation cimport Simulation

# False if there is no memory for its records.
cdef bint fill_streams(DeviceTable* table, Simulation* device) noexcept
cdef void clear_streams(Simulation* device) noexcept
