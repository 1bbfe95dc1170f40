"""Captures of any device's streams, and the resulting graphs, through the device's contract table.

A device may offer more for its graphs than the contract, in its own class derived from DeviceGraph.
"""

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport graph_t


cdef class DeviceGraph:
    cdef Device device
    cdef graph_t handle         # 0 once destroyed

    cdef graph_t living(self, str operation) except 0


# Ends the capture of a stream and stores its result in `graph`, a new object.
cdef DeviceGraph end_capture_into(DeviceGraph graph, Device device, object stream)
