"""Checks and converts what methods written in Python return and raise.

Each function checks a method's result and raises TypeError, naming the method, if the result is of the wrong kind. An
exception becomes a status, and stays in the thread's slot (_core/contract/raising.pxd).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport address_t, bytes_t, node_t

# Returns the device at `self`, to call one of its methods. Objects that are deallocated together with the device, or
# with the interpreter, may still call it. By then the objects that its methods need may be gone, and calling one could
# crash the interpreter: raises ReferenceError.
cdef object living(void* self)

# The engine's bytes, as an argument for a method.
cdef inline bytes as_bytes(const unsigned char* data, size_t length):
    return PyBytes_FromStringAndSize(<const char*> data, length)


# pre: `least` is 0 or 1. Zero means "none" for addresses and handles.
cdef uint64_t number(object result, str method, str meaning, uint64_t least=*) except? 0

# An address followed by `size` bytes.
cdef address_t memory(object result, bytes_t size, str method) except? 0

# A tuple of as many numbers as `names` has; for free and total memory it also checks free <= total.
cdef tuple numbers(object result, str names, str method)
cdef tuple free_and_total(object result, str names, str method)

# True is OK, False is NOT_READY.
cdef status_t readiness(object result, str method) except -1

cdef int put_nodes(object result, node_t* nodes, size_t capacity, size_t* count, str method) except -1
cdef int put_data(object result, unsigned char* handle, size_t capacity, size_t* length, str method) except -1

# The error for a result of the wrong kind.
cdef object wrong_result(object result, str method, str expected)

# Converts an exception to a status. `self` is the device, as its table has it.
cdef status_t failed(void* self, object error) noexcept
cdef size_t describe(void* self, char* text, size_t capacity) noexcept with gil
