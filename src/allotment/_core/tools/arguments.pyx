from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.tools.numbers cimport int_value, is_plain_int

import operator

from allotment.errors import AddressError, PoolError, RequestError, SizeError, StreamError

cdef stream_t NO_STREAM = ~(<stream_t> 0)   # the one number that maps cannot hold: their keys are handles + 1


cdef bint read_number(object given, uint64_t* number) except -1:
    cdef long long value = 0
    if is_plain_int(given) and int_value(given, &value) and value >= 0:
        number[0] = value
        return True
    try:
        number[0] = PyLong_AsUnsignedLongLong(operator.index(given))
        return True
    except OverflowError:
        return False


cdef bint read_any_size(object given, bytes_t* size, int bits) except -1:
    cdef uint64_t number = 0
    if read_number(given, &number):
        size[0] = number
        return bits >= 64 or (number >> bits) == 0
    if given < 0:
        raise SizeError(f"a request cannot have {given} bytes", operator.index(given))
    return False


cdef bytes_t read_byte_count(object given) except? 0:
    cdef uint64_t number = 0
    if not read_number(given, &number):
        raise SizeError(f"{given} is not a number of bytes: those are 0 to 2**64 - 1", given)
    return number


cdef address_t read_any_address(object given) except? 0:
    cdef uint64_t number = 0
    if not read_number(given, &number):
        raise AddressError(f"invalid device pointer: {given} is not an address; those are 0 to 2**64 - 1",
                           operator.index(given))
    return number


cdef address_t read_block(object given) except? 0:
    return read_address(getattr(given, "address", given))


cdef device_t read_device_index(object given, Device otherwise) except -1:
    cdef uint64_t number = 0
    if given is None:
        return otherwise.table.device
    if not read_number(given, &number) or number >= DEVICES_MOST:
        raise RequestError(f"{given} is not the index of a device: those are 0 to {DEVICES_MOST - 1}")
    return <device_t> number


cdef int read_device_count(object given) except -1:
    cdef uint64_t number = 0
    if not read_number(given, &number) or number > DEVICES_MOST:
        raise RequestError(f"{given} is not a number of devices: those are 0 to {DEVICES_MOST}")
    return <int> number


cdef uint64_t read_identity(object given, str what) except? 0:
    cdef uint64_t number = 0
    if not read_number(given, &number):
        raise RequestError(f"{given} is not the id of a {what}: those are 0 to 2**64 - 1")
    return number


cdef int read_pool_id(object pool, uint64_t* first, uint64_t* second) except -1:
    try:
        one, other = pool
        if read_number(one, first) and read_number(other, second):
            return 0
    except (TypeError, ValueError):
        pass
    raise PoolError(f"{pool!r} is not a pool id: those are (0, n) or (n, 0) with n >= 1")


cdef double read_fraction(object given) except? -1:
    cdef double part = given
    if not is_fraction(part):
        raise RequestError(f"{given} is not a memory fraction: those are 0.0 to 1.0")
    return part


cdef object read_callable(object given, str what):
    if not callable(given):
        raise TypeError(f"{what} is something to call, not {type(given).__name__}")
    return given


cdef stream_t read_stream(object stream, Device device) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t handle = NO_STREAM
    given = stream
    if not is_plain_int(stream):
        given = handle_of(stream, device)
    try:
        if read_number(given, &handle) and handle != NO_STREAM:
            return handle
    except TypeError:
        raise TypeError(f"a stream is a Stream or its handle, not {type(stream).__name__}") from None
    raise StreamError(f"{given} is not the handle of a stream")


cdef object handle_of(object stream, Device device):
    """What a stream object says of itself; anything else as it is."""
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    try:
        own_device, handle = stream.device, stream.handle
    except AttributeError:
        return stream
    if device is not None and own_device is not device:
        raise StreamError(f"the stream belongs to {getattr(own_device, 'name', own_device)}, not to {device.name}")
    return handle
