"""Calls of user functions from inside the engine, which cannot carry an exception.

`self` is the Python object. `sys.unraisablehook` gets the object's exceptions, and the engine continues as if the
object had returned False.
"""

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.records.trace cimport TraceRecord

# Reports an exception that cannot reach the caller.
cdef void report(object exception, object who) noexcept

# Returns the index of an object in a list, by identity and not by equality; -1 if it is not there.
cdef Py_ssize_t identity_in(list objects, object wanted) noexcept
cdef int remove_identity(list objects, object unwanted) except -1      # if it is there

cdef class EntryTracker:
    # A tracker that is called with whole entries, as a snapshot under these rules shows them.
    cdef object tracker
    cdef object rules
    cdef int device

    cdef int call(self, const TraceRecord* record) except -1


cdef bint call_free_memory(void* callback) noexcept with gil
cdef bint call_filter(void* accepts, stream_t stream) noexcept with gil
cdef void call_trackers(void* trackers, const TraceRecord* record) noexcept with gil
cdef address_t call_raw_alloc(void* allocator, bytes_t size, stream_t stream) noexcept with gil
cdef void call_raw_delete(void* allocator, address_t address, bytes_t size, stream_t stream) noexcept with gil
cdef void drop_reference(void* owned) noexcept with gil
