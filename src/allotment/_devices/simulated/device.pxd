"""A simulated device as seen from Python. `device.pyx` explains it."""

from allotment._core.contract.table cimport Device, status_t
from allotment._devices.simulated.simulation cimport Simulation


cdef class SimulatedDevice(Device):
    cdef Simulation simulation
    cdef object answerer        # owns what simulation.script points to

    cdef int raise_unless(self, status_t status, str operation) except -1
