"""A block as bytes that another process can open.

    version (1 byte)  kind (1 byte)  payload
                      'c'            the device's own handle of the plain segment's base
                      'e'            pid (8 bytes), page size (8), number of pages (8), then a file descriptor
                                     (4) for each page of the expandable segment that the block touches

With it goes the offset of the block from the start of what is shared.
"""

from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport Engine, Failure

cdef struct SharedHandle:
    unsigned char* bytes
    size_t length
    bytes_t offset

cdef bint share_block(Engine* engine, address_t address, long pid, SharedHandle* out, Failure* failure) noexcept nogil
