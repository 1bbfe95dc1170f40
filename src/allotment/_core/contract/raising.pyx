from cpython.object cimport PyObject, PyTypeObject, traverseproc, visitproc
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stddef cimport size_t

from allotment._core.contract.table cimport (
    DEVICE_ERROR, INVALID, NOT_READY, OK, OUT_OF_MEMORY, UNSUPPORTED, Device, DeviceTable, status_t)

from allotment._core.contract.operations import OPERATIONS, STREAM_OPERATIONS
from allotment.errors import DeviceError, StreamError, UnsupportedError

cdef enum:
    TEXT_CAPACITY = 1024

cdef dict STATUS_TEXTS = {
    OUT_OF_MEMORY: "the device is out of memory",
    NOT_READY: "there is unfinished work",
    UNSUPPORTED: "this device cannot do that",
    INVALID: "a handle or address does not belong to this device, or no longer does",
    DEVICE_ERROR: "the device gave no reason",
}

cdef dict METHODS = {operation.name: operation.python_name for operation in OPERATIONS}

# The failures of each device. The references are borrowed: see Failures.
cdef dict registry = {}         # address of a device -> address of its Failures


cdef class Failures:
    def __cinit__(self):
        self.exceptions = {}
        self.texts = {}

    def __del__(self):
        self.is_finalized = True

    def __dealloc__(self):
        registry.pop(<size_t> self.device, None)


# The collector finalizes every object of a garbage cycle, then traverses the cycle once more, and only then clears it.
# A finalizer may call the device, for instance to free memory. After the second traversal no call may happen. The
# collector gives no other sign of that moment.
cdef traverseproc traverse_members = (<PyTypeObject*> Failures).tp_traverse

cdef int traverse(PyObject* self, visitproc visit, void* argument) except -1:
    if (<Failures> <void*> self).is_finalized:
        (<Failures> <void*> self).is_collected = True
    return traverse_members(self, visit, argument)

(<PyTypeObject*> Failures).tp_traverse = traverse


cdef Failures new_failures(void* device):
    cdef Failures failures = Failures()
    failures.device = device
    registry[<size_t> device] = <size_t> <void*> failures
    return failures


cdef Failures failures_of(void* device):
    cdef size_t address = registry.get(<size_t> device, 0)
    return <Failures> <void*> address if address != 0 else None


cdef object device_error(Device device, status_t status, str operation):
    assert status != OK
    text = described(&device.table) or STATUS_TEXTS.get(status, f"status {status}")
    message = f"{device.name}: {name_of_operation(device, operation)} failed: {text}"
    if status == UNSUPPORTED:
        error = UnsupportedError(message, operation=operation, status=status)
    elif status == INVALID and operation in STREAM_OPERATIONS:
        error = StreamError(message)
    else:
        error = DeviceError(message, operation=operation, status=status)
    error.__cause__ = take_cause(&device.table, status)
    return error


cdef str name_of_operation(Device device, str operation):
    return METHODS.get(operation, operation) if failures_of(device.table.self) is not None else operation


cdef int check_status(Device device, status_t status, str operation) except -1:
    if status != OK:
        raise device_error(device, status, operation)
    return 0


cdef int require(Device device, bint is_there, str operation) except -1:
    if not is_there:
        raise UnsupportedError(
            f"{device.name} does not support {name_of_operation(device, operation)}", operation=operation,
            status=UNSUPPORTED)
    return 0


cdef object take_cause(DeviceTable* table, status_t status):
    cdef Failures failures = failures_of(table.self)
    if failures is None:
        return None
    thread = PyThread_get_thread_ident()
    exception = failures.exceptions.pop((thread, status), None)
    if exception is None and is_interrupt(failures.exceptions.get((thread, DEVICE_ERROR))):
        exception = failures.exceptions.pop((thread, DEVICE_ERROR))
    return exception


cdef int keep_failure(void* device, status_t status, object exception) except -1:
    cdef Failures failures = failures_of(device)
    if failures is None:
        return 0
    thread = PyThread_get_thread_ident()
    failures.texts[thread] = text_of(exception)
    replaced = failures.exceptions.get((thread, status))
    failures.exceptions[thread, status] = exception
    if is_interrupt(replaced):
        # Nobody has raised the interrupt yet. The failure of a clean-up must not hide a user's Ctrl-C.
        put_under(exception, replaced)
    return 0


cdef int forget_refusal(void* device) except -1:
    cdef Failures failures = failures_of(device)
    if failures is not None and failures.exceptions:
        failures.exceptions.pop((PyThread_get_thread_ident(), OUT_OF_MEMORY), None)
    return 0


cdef str failure_text(void* device):
    cdef Failures failures = failures_of(device)
    return failures.texts.get(PyThread_get_thread_ident(), "") if failures is not None else ""


cdef bint is_interrupt(object exception) except -1:
    return isinstance(exception, BaseException) and not isinstance(exception, Exception)


cdef int put_under(object exception, object first) except -1:
    while exception is not first:
        if exception.__context__ is None:
            exception.__context__ = first
        exception = exception.__context__
    return 0


cdef str text_of(object exception):
    name = type(exception).__name__
    try:
        text = str(exception)
    except BaseException:
        return f"{name}, whose text cannot be shown"
    return f"{name}: {text}" if text else name


cdef str described(DeviceTable* table):
    cdef char[TEXT_CAPACITY] text
    cdef size_t length = 0
    if table.describe != NULL:
        with nogil:
            length = table.describe(table.self, text, TEXT_CAPACITY)
    return text[:min(length, <size_t> TEXT_CAPACITY)].decode("utf-8", "replace")


def error_for(Device device not None, status_t status, str operation not None) -> Exception:
    """Return, without raising it, the exception for a status other than OK that `operation` of a device returned.

    If the device is written in Python, the exception is chained to the exception of this thread's last failed call of
    the device.
    """
    return device_error(device, status, operation)
