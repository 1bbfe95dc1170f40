"""Captures of any device's streams, and the graphs that come of them, over its contract table.

A device may offer more of its graphs than the contract does, in a class of its own that derives from DeviceGraph.
"""

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport graph_t


cdef class DeviceGraph:
    cdef Device device
    cdef graph_t handle                 # 0 once destroyed

    cdef graph_t living(self, str operation) except 0


# `graph`, just made, becomes what the capture of a stream has kept.
cdef DeviceGraph end_capture_into(DeviceGraph graph, Device device, object stream)
