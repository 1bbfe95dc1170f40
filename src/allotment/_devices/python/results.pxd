"""What methods written in Python return and raise, as the engine takes it.

What a method returned is checked before it is believed: each of these raises TypeError, naming the method, for what is
not of the kind. What it raised becomes a status, and stays in the thread's slot (_core/contract/raising.pxd).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport address_t, bytes_t, node_t

# The device at `self`, to call a method of. Whatever is deallocated together with the device, or with the interpreter,
# may still want something of it. By then its methods may have lost what they are made of, and calling one could crash
# the interpreter: ReferenceError.
cdef object living(void* self)

# What a method is given for bytes of the engine's.
cdef inline bytes as_bytes(const unsigned char* data, size_t length):
    return PyBytes_FromStringAndSize(<const char*> data, length)


# pre: `least` is 0 or 1. Zero is "none" wherever a number is an address or a handle.
cdef uint64_t number(object result, str method, str meaning, uint64_t least=*) except? 0

# An address with `size` bytes behind it.
cdef address_t memory(object result, bytes_t size, str method) except? 0

# A tuple of as many numbers as there are names; of free and total memory also that the first is part of the second.
cdef tuple numbers(object result, str names, str method)
cdef tuple free_and_total(object result, str names, str method)

# True is OK, False is NOT_READY.
cdef status_t readiness(object result, str method) except -1

cdef int put_nodes(object result, node_t* nodes, size_t capacity, size_t* count, str method) except -1
cdef int put_data(object result, unsigned char* handle, size_t capacity, size_t* length, str method) except -1

# The error for a result that is something else.
cdef object wrong_result(object result, str method, str expected)

# `self` is the device, as its table has it.
cdef status_t failed(void* self, object error) noexcept
cdef size_t describe(void* self, char* text, size_t capacity) noexcept with gil
