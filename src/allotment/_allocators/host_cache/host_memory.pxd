"""Memory of this process without a device, as buffers and arrays.

`Buffer` knows this class, which has no device that could say whether its memory can be read.
"""

from allotment._core.contract.types cimport address_t, bytes_t

cdef class HostMemory:
    cdef int adopt(self, address_t address, bytes_t size) except -1             # raises unless a buffer may own it
    cdef int require_in_use(self, address_t address, bytes_t size) except -1    # raises if it is known to be free
