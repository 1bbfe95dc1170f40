"""Turns a status into an exception. No other code does.

A status is a number and needs no interpreter lock. Code that is about to raise, and holds that lock, makes the
exception here. A backend written in Python has already caught a real exception when it returns its status. It stores
that exception in a slot of the calling thread, and this module chains the new exception to it:

    method raises -> keep_failure -> status ... engine undoes its step ... -> device_error -> raise

A successful call does not clear the slot, because the engine undoes a failed step before it raises. The slot also
survives on threads that Python did not start, whose thread-local objects vanish after every call.
"""

from allotment._core.contract.table cimport Device, DeviceTable, status_t


cdef class Failures:
    """Exceptions that the methods of one device raised. Each stays here until it becomes the cause of one of ours.

    The device owns this object. An exception refers to its traceback, the traceback to the method's frame, and the
    frame to the device. The garbage collector can break this cycle only if nothing outside refers to a part of it.
    """
    cdef void* device
    cdef bint is_finalized
    cdef bint is_collected      # the collector is tearing the device down: nothing may call its methods
    cdef dict exceptions        # (thread, status) -> that thread's last failure with that status
    cdef dict texts             # thread -> text of its last failure


# Returns the exception, with its cause set, for a status other than OK; the caller raises it. Only the engine makes
# OutOfMemoryError, from facts that only it has, and chains it with take_cause.
cdef object device_error(Device device, status_t status, str operation)

# The name by which users know the operation: a user's class has method names of its own.
cdef str name_of_operation(Device device, str operation)

# Raises device_error's exception unless the status is OK.
cdef int check_status(Device device, status_t status, str operation) except -1

# Raises UnsupportedError unless `is_there`.
cdef int require(Device device, bint is_there, str operation) except -1

# Removes and returns the exception behind this thread's last failure with this status on this device. If there is none,
# returns an interrupt that was not raised yet, else None. A second call returns None.
cdef object take_cause(DeviceTable* table, status_t status)

# The device's own text for this thread's last failure; "" if it has none.
cdef str described(DeviceTable* table)


# For devices written in Python.

# The failures of the device at `device`; None if it is not written in Python or is being deallocated.
cdef Failures failures_of(void* device)

# Creates the failures of the device at `device`; the device must keep them for its lifetime.
cdef Failures new_failures(void* device)

# Stores `exception` as the reason why the current call on `device` fails with `status`.
cdef int keep_failure(void* device, status_t status, object exception) except -1

# Drops this thread's last out-of-memory failure: `device` has just found memory, so nobody will raise that failure.
cdef int forget_refusal(void* device) except -1

# The text of this thread's last failure on `device`, for the device's `describe`; "" if it had none.
cdef str failure_text(void* device)
