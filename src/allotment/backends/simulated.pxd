"""A simulated device as Python sees it. What it is: see simulated.pyx."""

from allotment.backends.simulation cimport Simulation
from allotment.core.backend cimport Device, status_t


cdef class SimulatedDevice(Device):
    cdef Simulation simulation
    cdef object answerer        # owns what simulation.script points at

    cdef int raise_unless(self, status_t status, str operation) except -1
