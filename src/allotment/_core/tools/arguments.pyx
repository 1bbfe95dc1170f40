from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.tools.numbers cimport int_value, is_plain_int

import inspect
import operator

from allotment.errors import AddressError, PoolError, RequestError, SizeError, StreamError

cdef stream_t NO_STREAM = ~(<stream_t> 0)   # the only number that maps cannot hold: their keys are handles + 1


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


cdef bint read_named(object given, uint64_t* number, str what) except -1:
    """`read_number`, with an error that names the argument."""
    if not is_plain_int(given) and not hasattr(given, "__index__"):
        raise TypeError(f"{what} must be an int, not {type(given).__name__}")
    return read_number(given, number)


cdef bint read_any_size(object given, bytes_t* size, int bits) except -1:
    cdef uint64_t number = 0
    if read_named(given, &number, "a size"):
        size[0] = number
        return bits >= 64 or (number >> bits) == 0
    if given < 0:
        raise SizeError(f"invalid size: {given} bytes; a size is 0 or more", operator.index(given))
    return False


cdef bytes_t read_byte_count(object given) except? 0:
    cdef uint64_t number = 0
    if not read_named(given, &number, "a number of bytes"):
        raise SizeError(f"invalid number of bytes: {given}; give 0 to 2**64 - 1", given)
    return number


cdef address_t read_any_address(object given) except? 0:
    cdef uint64_t number = 0
    if not read_named(given, &number, "an address"):
        raise AddressError(f"invalid device pointer: {given}; addresses are 0 to 2**64 - 1", operator.index(given))
    return number


cdef address_t read_block(object given) except? 0:
    block = getattr(given, "block", None)
    return read_place(given) if block is None else read_address(block)


cdef address_t read_place(object given) except? 0:
    return read_address(getattr(given, "address", given))


cdef device_t read_device_index(object given, Device otherwise) except -1:
    cdef uint64_t number = 0
    if given is None:
        return otherwise.table.device
    if not read_named(given, &number, "the index of a device") or number >= DEVICES_MOST:
        raise RequestError(f"invalid device index: {given}; give 0 to {DEVICES_MOST - 1}")
    return <device_t> number


cdef int read_device_count(object given) except -1:
    cdef uint64_t number = 0
    if not read_named(given, &number, "a number of devices") or number > DEVICES_MOST:
        raise RequestError(f"invalid number of devices: {given}; give 0 to {DEVICES_MOST}")
    return <int> number


cdef uint64_t read_identity(object given, str what) except? 0:
    cdef uint64_t number = 0
    if not read_named(given, &number, f"the id of a {what}"):
        raise RequestError(f"invalid {what} id: {given}; give 0 to 2**64 - 1")
    return number


cdef int read_pool_id(object pool, uint64_t* first, uint64_t* second) except -1:
    try:
        one, other = pool
        if read_number(one, first) and read_number(other, second):
            return 0
    except (TypeError, ValueError):
        pass
    raise PoolError(
        f"invalid pool id: {pool!r}; an id is (0, n) or (n, 0) with n >= 1, such as `Pool.id`", reason="no_id")


cdef double read_fraction(object given) except? -1:
    cdef double part
    try:
        part = given
    except TypeError:
        raise TypeError(f"a memory fraction must be a number from 0.0 to 1.0, not {type(given).__name__}") from None
    if not is_fraction(part):
        raise RequestError(f"invalid memory fraction: {given}; give 0.0 to 1.0")
    return part


cdef object read_callable(object given, str what):
    if not callable(given):
        raise TypeError(f"{what} must be callable, not {type(given).__name__}")
    return given


cdef dict signatures = {}


cdef dict read_arguments(type kind, tuple given, dict named):
    signature = signatures.get(kind)
    if signature is None:
        signature = signatures[kind] = inspect.signature(kind)
    try:
        bound = signature.bind(*given, **named)
    except TypeError as error:
        raise TypeError(f"{kind.__name__}{signature}: {error}") from None
    bound.apply_defaults()
    return bound.arguments


cdef object refuse_pickling(object given, str advice):
    raise TypeError(f"cannot pickle {given!r}: {advice}")


cdef stream_t read_stream(object stream, Device device) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t handle = NO_STREAM
    given = stream
    if not is_plain_int(stream):
        given = handle_of(stream, device)
    try:
        if read_number(given, &handle) and handle != NO_STREAM:
            return handle
    except TypeError:
        raise TypeError(f"a stream must be a Stream or its handle, not {type(stream).__name__}") from None
    raise StreamError(f"invalid stream handle: {given}; give a Stream, or its `handle`")


cdef object handle_of(object stream, Device device):
    """Return the handle that a stream object reports; anything else unchanged."""
    if hasattr(stream, "__cuda_stream__"):
        answer = stream.__cuda_stream__()
        try:
            _, handle = answer
        except (TypeError, ValueError):
            raise StreamError(
                f"__cuda_stream__ of {type(stream).__name__} returned {answer!r}, not (version, handle)") from None
        return handle
    try:
        own_device, handle = stream.device, stream.handle
    except AttributeError:
        return stream
    if device is not None and own_device is not device:
        name = getattr(own_device, "name", own_device)
        whose = f"another device object with the same name, {name}" if name == device.name else f"device {name}"
        raise StreamError(f"{stream!r} belongs to {whose}, not to this {device.name}; make one with Stream(allocator)")
    return handle
