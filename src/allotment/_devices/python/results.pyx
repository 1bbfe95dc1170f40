from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from allotment._core.contract.raising cimport Failures, failure_text, failures_of, keep_failure
from allotment._core.contract.table cimport DEVICE_ERROR, INVALID, NOT_READY, OK, OUT_OF_MEMORY, UNSUPPORTED, status_t
from allotment._core.contract.types cimport address_t, bytes_t, node_t
from allotment._core.tools.arguments cimport read_number
from allotment._core.tools.interpreter cimport interpreter_ends

from allotment.errors import AddressError, StreamError, UnsupportedError


cdef object living(void* self):
    cdef Failures failures = failures_of(self)
    if failures is None or failures.is_collected or interpreter_ends():
        raise ReferenceError(f"the device {(<object> self).name} no longer exists")
    return <object> self


# --- What a method returned ----------------------------------------------------------------------------------

cdef uint64_t number(object result, str method, str meaning, uint64_t least=1) except? 0:
    cdef uint64_t value = 0
    try:
        if read_number(result, &value) and value >= least:
            return value
    except TypeError:
        raise wrong_result(result, method, meaning) from None
    raise wrong_result(result, method, f"{meaning} from {least} to 2**64 - 1")


cdef address_t memory(object result, bytes_t size, str method) except? 0:
    cdef address_t address = number(result, method, "an address")
    if size - 1 > <uint64_t> 0xFFFF_FFFF_FFFF_FFFF - address:
        raise wrong_result(result, method, f"an address with {size} bytes behind it")
    return address


cdef tuple numbers(object result, str names, str method):
    if not isinstance(result, tuple) or len(result) != names.count(",") + 1:
        raise wrong_result(result, method, f"({names})")
    return tuple([number(part, method, "a number of bytes", 0) for part in result])


cdef tuple free_and_total(object result, str names, str method):
    cdef tuple found = numbers(result, names, method)
    if found[0] > found[1]:
        raise wrong_result(result, method, f"({names}) with free <= total")
    return found


cdef status_t readiness(object result, str method) except -1:
    if result is True:
        return OK
    if result is False:
        return NOT_READY
    raise wrong_result(result, method, "True or False")


cdef int put_nodes(object result, node_t* nodes, size_t capacity, size_t* count, str method) except -1:
    cdef size_t at
    try:
        items = list(result)
    except TypeError:
        raise wrong_result(result, method, "a sequence of nodes") from None
    cdef list found = [number(item, method, "a node") for item in items]
    for at in range(min(<size_t> len(found), capacity)):
        nodes[at] = found[at]
    count[0] = len(found)
    return 0


cdef int put_data(object result, unsigned char* handle, size_t capacity, size_t* length, str method) except -1:
    if not isinstance(result, (bytes, bytearray, memoryview)):
        raise wrong_result(result, method, "bytes")
    cdef bytes data = bytes(result)
    if not 0 < <size_t> PyBytes_GET_SIZE(data) <= capacity:
        raise wrong_result(result, method, f"1 to {capacity} bytes")
    memcpy(handle, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    length[0] = PyBytes_GET_SIZE(data)
    return 0


cdef object wrong_result(object result, str method, str expected):
    shown = repr(result)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    return TypeError(f"{method} returned {shown} where {expected} was expected")


# --- What a method raised ------------------------------------------------------------------------------------

cdef status_t failed(void* self, object error) noexcept:
    cdef status_t status = DEVICE_ERROR
    try:
        status = status_of(error)
        keep_failure(self, status, error)
    except BaseException:
        pass        # no exception may escape, not even one from storing the failure; the status itself remains
    return status


cdef status_t status_of(object error) except -1:
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, UnsupportedError):
        return UNSUPPORTED
    if isinstance(error, (AddressError, StreamError)):
        return INVALID
    return DEVICE_ERROR


cdef size_t describe(void* self, char* text, size_t capacity) noexcept with gil:
    cdef bytes words
    try:
        words = failure_text(self).encode("utf-8", "replace")[:capacity]
        memcpy(text, PyBytes_AS_STRING(words), PyBytes_GET_SIZE(words))
        return PyBytes_GET_SIZE(words)
    except BaseException:
        return 0
