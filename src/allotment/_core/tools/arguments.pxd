"""What callers give, read into plain numbers: each function raises an error that names what it was given."""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t

cdef enum:
    DEVICES_MOST = 1 << 16      # far more than any machine has; lists by device are as long as the highest index

cdef address_t read_address(object address) except? 0
cdef bytes_t read_byte_count(object size) except? 0
cdef device_t read_device_index(object index, Device otherwise) except -1     # None is that of `otherwise`
cdef uint64_t read_identity(object number, str what) except? 0
cdef int read_pool_id(object pool, uint64_t* first, uint64_t* second) except -1
cdef object read_callable(object given, str what)

# The handle of a stream given as a number, which is trusted, or as an object, which is checked; against `device`,
# unless that is None.
cdef stream_t read_stream(object stream, Device device) except? 0xFFFFFFFFFFFFFFFF
