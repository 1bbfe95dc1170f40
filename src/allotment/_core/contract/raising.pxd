"""From a status to an exception: the one place where this happens.

A status is a number, made without the interpreter lock; its exception is made here, by whoever is about to
raise it and holds that lock. A backend written in Python had a real exception in its hands when it answered
with a status. It leaves it in the slot of the calling thread, and ours is chained to it:

    method raises -> keep_failure -> status ... engine undoes its step ... -> device_error -> raise

The slot outlives calls that succeed, because the engine undoes a failed step before it raises, and survives
on threads that Python did not start, whose thread-local objects are gone after every call.
"""

from allotment._core.contract.table cimport Device, DeviceTable, status_t


cdef class Failures:
    """What the methods of one device raised, until it is raised as the cause of ours.

    The device owns it: an exception leads to its traceback, that to the frame of the method, and that to
    the device, a circle which a collection can only untie if nothing outside holds a part of it.
    """
    cdef void* device
    cdef bint is_finalized
    cdef bint is_collected      # the device is being taken apart: no method of it may be called any more
    cdef dict exceptions        # (thread, status) -> what that thread's last failure with that status was
    cdef dict texts             # thread -> the words of its last failure


# The exception for a status other than OK of a contract operation, its cause set; the caller raises it.
# An OutOfMemoryError is made of facts that only the engine has: it makes that one itself, and chains it with
# take_cause.
cdef object device_error(Device device, status_t status, str operation)

# What users call an operation of the device: a class of theirs has its own names.
cdef str name_of_operation(Device device, str operation)

# Raises it, if the status is one.
cdef int check_status(Device device, status_t status, str operation) except -1

# Raises UnsupportedError unless the operation `is_there`.
cdef int require(Device device, bint is_there, str operation) except -1

# The exception that stands behind this thread's last failure with this status on this device; without one, an
# interrupt that was not raised yet; else None. A second call gives None.
cdef object take_cause(DeviceTable* table, status_t status)

# The device's own words on this thread's last failure; "" if it has none.
cdef str described(DeviceTable* table)


# For devices written in Python.

# Where the device at `device` keeps them; None if it is not written in Python, or is just being taken apart.
cdef Failures failures_of(void* device)

# To be kept by the device at `device` as long as it lives.
cdef Failures new_failures(void* device)

# `exception` is why the current call on `device` fails with `status`.
cdef int keep_failure(void* device, status_t status, object exception) except -1

# `device` has just found memory, so that what it last refused on this thread for want of it will not be raised.
cdef int forget_refusal(void* device) except -1

# The words of this thread's last failure on `device`, for its `describe`; "" if there was none.
cdef str failure_text(void* device)
