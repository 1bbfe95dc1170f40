"""A device written in Python: what its class defines is what its table has.

    methods       the methods that there are, each of which says that the device lacks it
    backend       the class that users derive from
    device        the table, filled in by looking at the class
    trampolines   the functions in the table
    results       what methods return and raise, as the engine takes it
"""

from allotment._core.contract.raising cimport Failures
from allotment._core.contract.table cimport Device


cdef class PythonDevice(Device):
    cdef Failures failures
