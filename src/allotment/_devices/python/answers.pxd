"""Answers of a method written in Python, as the engine takes them.

What a method returned is checked before it is believed: each of these raises TypeError, naming the method, for what is
not of the kind. What it raised becomes a status, and stays in the thread's slot (_core/contract/raising.pxd).
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport address_t, bytes_t, node_t

# pre: `least` is 0 or 1. Zero is "none" wherever a number is an address or a handle.
cdef uint64_t number(object result, str method, str meaning, uint64_t least=*) except? 0

# An address with `size` bytes behind it.
cdef address_t memory(object result, bytes_t size, str method) except? 0

# True is OK, False is NOT_READY.
cdef status_t readiness(object result, str method) except -1

cdef int put_nodes(object result, node_t* nodes, size_t capacity, size_t* count, str method) except -1
cdef int put_handle(object result, unsigned char* handle, size_t capacity, size_t* length, str method) except -1

# The error for a result that is something else.
cdef object wrong_result(object result, str method, str expected)

# `self` is the device, as its table has it.
cdef status_t failed(void* self, object error) noexcept
cdef size_t describe(void* self, char* text, size_t capacity) noexcept with gil
