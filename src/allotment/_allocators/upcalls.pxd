"""Functions of the user's, as the engine calls them: from inside, where no exception can be carried.

`self` is the Python object. What it raises is reported through `sys.unraisablehook`, and the engine goes on as though
it had said no.
"""

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.records.trace cimport TraceRecord

# Reports an exception that cannot be carried to the caller.
cdef void report(object exception, object who) noexcept

# Where an object is in a list, by what it is and not by what it says it is equal to; -1 if it is not there.
cdef Py_ssize_t identity_in(list objects, object wanted) noexcept

cdef class EntryTracker:
    # A tracker that is called with whole entries, as a snapshot shows them by these rules.
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
