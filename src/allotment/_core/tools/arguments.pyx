from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.tools.numbers cimport int_value, is_plain_int

import operator

from allotment.errors import AddressError, PoolError, RequestError, SizeError, StreamError

cdef stream_t NO_STREAM = ~(<stream_t> 0)   # the one number that maps cannot hold: their keys are handles + 1


cdef address_t read_address(object address) except? 0:
    cdef long long value = 0
    if is_plain_int(address) and int_value(address, &value) and value >= 0:
        return value
    try:
        return operator.index(address)
    except OverflowError:
        raise AddressError(f"invalid device pointer: {address} is no address", address) from None


cdef bytes_t read_byte_count(object size) except? 0:
    try:
        return operator.index(size)
    except OverflowError:
        raise SizeError(f"{size} is no number of bytes", size) from None


cdef device_t read_device_index(object index, Device otherwise) except -1:
    if index is None:
        return otherwise.table.device
    number = operator.index(index)
    if not 0 <= number < DEVICES_MOST:
        raise RequestError(f"{index} is the index of no device")
    return number


cdef uint64_t read_identity(object number, str what) except? 0:
    try:
        return operator.index(number)
    except OverflowError:
        raise RequestError(f"{number} identifies no {what}") from None


cdef int read_pool_id(object pool, uint64_t* first, uint64_t* second) except -1:
    try:
        one, other = pool
        first[0], second[0] = operator.index(one), operator.index(other)
    except (TypeError, ValueError, OverflowError):
        raise PoolError(f"{pool!r} is no pool id; that is (0, n) or (n, 0) with n >= 1") from None
    return 0


cdef object read_callable(object given, str what):
    if not callable(given):
        raise TypeError(f"{what} is something to call, not {type(given).__name__}")
    return given


cdef stream_t read_stream(object stream, Device device) except? 0xFFFFFFFFFFFFFFFF:
    cdef stream_t handle = NO_STREAM
    if is_plain_int(stream):
        try:
            handle = PyLong_AsUnsignedLongLong(stream)
        except OverflowError:
            pass
        if handle == NO_STREAM:
            raise StreamError(f"{stream} is no stream handle")
        return handle
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    try:
        own_device, number = stream.device, stream.handle
    except AttributeError:
        try:
            return read_stream(int(operator.index(stream)), device)
        except TypeError:
            raise TypeError(f"a stream is a Stream or its handle, not {type(stream).__name__}") from None
    if device is not None and own_device is not device:
        raise StreamError(f"the stream belongs to {own_device.name}, not to {device.name}")
    return number
