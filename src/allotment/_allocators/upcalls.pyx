cimport cython
from cpython.exc cimport PyErr_SetObject
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.edge.snapshot cimport trace_dicts
from allotment._core.edge.words cimport action_name
from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.arguments cimport read_address

cdef extern from "Python.h":
    void PyErr_WriteUnraisable(PyObject* where)


cdef void report(object exception, object who) noexcept:
    PyErr_SetObject(type(exception), exception)
    PyErr_WriteUnraisable(<PyObject*> who)


def report_unraisable(error: BaseException, source: object) -> None:
    """Pass an exception that no caller can catch to `sys.unraisablehook`; `source` is the object that raised it."""
    report(error, source)


cdef Py_ssize_t identity_in(list objects, object wanted) noexcept:
    cdef Py_ssize_t place
    for place in range(len(objects)):
        if objects[place] is wanted:
            return place
    return -1


cdef int remove_identity(list objects, object unwanted) except -1:
    cdef Py_ssize_t place
    with cython.critical_section(objects):
        place = identity_in(objects, unwanted)
        if place >= 0:
            del objects[place]
    return 0


cdef bint call_free_memory(void* callback) noexcept with gil:
    try:
        return bool((<object> callback)())
    except BaseException as error:
        report(error, <object> callback)
        return False


cdef bint call_filter(void* accepts, stream_t stream) noexcept with gil:
    try:
        return bool((<object> accepts)(stream))
    except BaseException as error:
        report(error, <object> accepts)
        return False


cdef class EntryTracker:
    def __init__(self, tracker: object, rules: object, device: int) -> None:
        self.tracker = tracker
        self.rules = rules
        self.device = device

    cdef int call(self, const TraceRecord* record) except -1:
        entry = trace_dicts(record, 1, self.rules)[0]
        entry["device"] = self.device
        self.tracker(entry)
        return 0

    def __repr__(self):
        return repr(self.tracker)


cdef void call_trackers(void* trackers, const TraceRecord* record) noexcept with gil:
    for tracker in <list> trackers:
        try:
            if isinstance(tracker, EntryTracker):
                (<EntryTracker> tracker).call(record)
                continue
            tracker(action_name(record.action), record.address, record.size, record.stream,
                    (record.pool_first, record.pool_second))
        except BaseException as error:
            report(error, tracker)


cdef address_t call_raw_alloc(void* allocator, bytes_t size, stream_t stream) noexcept with gil:
    try:
        return read_address((<object> allocator).allocate(size, stream) or 0)
    except MemoryError:
        return 0
    except BaseException as error:
        report(error, <object> allocator)
        return 0


cdef void call_raw_delete(void* allocator, address_t address, bytes_t size, stream_t stream) noexcept with gil:
    try:
        (<object> allocator).free(address, size, stream)
    except BaseException as error:
        report(error, <object> allocator)


cdef void drop_reference(void* owned) noexcept with gil:
    Py_DECREF(<object> owned)
