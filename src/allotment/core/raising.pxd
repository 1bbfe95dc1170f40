"""From a status to an exception: the one place where this happens.

A status is a number, made without the interpreter lock; its exception is made here, by whoever is about to
raise it and holds that lock. A backend written in Python had a real exception in its hands when it answered
with a status. It leaves it in the slot of the calling thread, and ours is chained to it:

    method raises -> keep_failure -> status ... engine undoes its step ... -> device_error -> raise

The slot outlives calls that succeed, because the engine undoes a failed step before it raises, and survives
on threads that Python did not start, whose thread-local objects are gone after every call.
"""

from allotment.core.backend cimport Backend, status_t


# The exception for a status other than OK of a contract operation, its cause set; the caller raises it.
# An OutOfMemoryError is made of facts that only the engine has: it makes that one itself, and chains it with
# take_cause.
cdef object device_error(Backend* table, status_t status, str operation)

# The exception that stands behind this thread's last failure, if that was this device's and had this status or
# was an interrupt, which is told at the next opportunity; else None. A second call gives None.
cdef object take_cause(Backend* table, status_t status)

# The device's own words on this thread's last failure; "" if it has none.
cdef str described(Backend* table)

# For backends written in Python: `exception` is why the current call on `device` fails with `status`.
cdef int keep_failure(void* device, status_t status, object exception) except -1

# For backends written in Python: `device` has just found memory, so that what it last refused on this thread for
# want of memory will not be raised.
cdef int forget_refusal(void* device) except -1

# The words of this thread's last failure on `device`, for its `describe`; "" if there was none.
cdef str failure_text(void* device)
