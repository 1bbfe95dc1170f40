"""A device written in Python: the methods of its class decide which operations its table has.

    methods       all optional methods; each says that the device lacks it
    backend       the class that users derive from
    device        the table, filled in from the class
    trampolines   the functions in the table
    results       what methods return and raise, checked and converted
"""

from allotment._core.contract.raising cimport Failures
from allotment._core.contract.table cimport Device


cdef class PythonDevice(Device):
    cdef Failures failures
