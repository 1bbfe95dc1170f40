"""Reads callers' arguments into plain numbers: the only place that reads a size, an address, a stream or an id.

Each function raises an error that names the value: TypeError if the value is not a number at all, and the error of its
kind for a number out of range. Ordinary ints are read in place (see `numbers`); the .pyx reads the rest.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.tools.numbers cimport int_value, is_plain_int

cdef enum:
    SIZE_BITS = 60              # larger requests are out of memory on every device, so no device is asked
    DEVICES_MOST = 1 << 16      # far more than any machine has; lists by device are as long as the highest index

# Whether `given` is a whole number from 0 to 2**64 - 1. The other functions use this one, and so do callers with
# messages of their own.
cdef bint read_number(object given, uint64_t* number) except -1

# Reads the size of a request; returns False for 2**bits bytes or more. Raises SizeError for a negative size.
cdef bint read_any_size(object given, bytes_t* size, int bits) except -1
cdef bytes_t read_byte_count(object given) except? 0
cdef address_t read_any_address(object given) except? 0
cdef address_t read_block(object given) except? 0       # the start of a block; a buffer stands for its block
cdef address_t read_place(object given) except? 0       # an address, or an object that has one
cdef device_t read_device_index(object given, Device otherwise) except -1     # None: the index of `otherwise`
cdef int read_device_count(object given) except -1
cdef uint64_t read_identity(object given, str what) except? 0
cdef int read_pool_id(object pool, uint64_t* first, uint64_t* second) except -1
cdef double read_fraction(object given) except? -1
cdef object read_callable(object given, str what)

# The arguments of a class by name, according to the signature in its docstring, which `__cinit__` itself does not know.
cdef dict read_arguments(type kind, tuple given, dict named)

# Raises the error for an attempt to pickle the object.
cdef object refuse_pickling(object given, str advice)

# The handle of a stream, passed as a number, which is trusted, or as an object, which is checked; checked against
# `device` too, unless that is None.
cdef stream_t read_stream(object stream, Device device) except? 0xFFFFFFFFFFFFFFFF


cdef inline bint is_fraction(double part) noexcept nogil:
    return 0.0 <= part <= 1.0


cdef inline bint read_size(object given, bytes_t* size) except -1:
    """Read the size of a request; return False if no device could serve it."""
    cdef long long value = 0
    if is_plain_int(given) and int_value(given, &value) and value >= 0 and (value >> SIZE_BITS) == 0:
        size[0] = value
        return True
    return read_any_size(given, size, SIZE_BITS)


cdef inline address_t read_address(object given) except? 0:
    cdef long long value = 0
    if is_plain_int(given) and int_value(given, &value) and value >= 0:
        return value
    return read_any_address(given)
