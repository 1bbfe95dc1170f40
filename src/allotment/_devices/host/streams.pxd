"""Streams, events and capture of the host device, for the contract.

`stream_synchronize` and the like only wait. An exception that a submitted function raised stays with its stream until
`take_exception`, which the Python layer calls after waiting. So the engine, which waits for streams itself, neither
swallows a user's exception nor fails because of one.
"""

from cpython.object cimport PyObject
from libc.stddef cimport size_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport capture_t, event_t, node_t, stream_t
from allotment._devices.host.queue cimport Scheduler
from allotment._devices.host.work cimport Graph, Task

# Called when the device is deallocated: abandons captures that were not ended.
cdef void captures_give_up(Scheduler* scheduler) noexcept nogil

cdef status_t stream_create(Scheduler* scheduler, stream_t* stream) noexcept nogil
cdef status_t stream_destroy(Scheduler* scheduler, stream_t stream) noexcept nogil
cdef status_t stream_query(Scheduler* scheduler, stream_t stream) noexcept nogil
cdef status_t stream_synchronize(Scheduler* scheduler, stream_t stream) noexcept nogil
cdef status_t stream_wait(Scheduler* scheduler, stream_t stream, event_t event) noexcept nogil
cdef status_t await_everything(Scheduler* scheduler) noexcept nogil
cdef status_t device_synchronize(Scheduler* scheduler) noexcept nogil

# On OK the stream owns the task.
cdef status_t stream_submit(Scheduler* scheduler, stream_t stream, const Task* task) noexcept nogil

# Removes and returns the stream's exception, which the caller then owns; NULL if it has none or if the stream is gone.
cdef PyObject* take_exception(Scheduler* scheduler, stream_t stream) noexcept nogil

cdef status_t event_create(Scheduler* scheduler, event_t* event) noexcept nogil
cdef status_t event_destroy(Scheduler* scheduler, event_t event) noexcept nogil
cdef status_t event_record(Scheduler* scheduler, event_t event, stream_t stream) noexcept nogil
cdef status_t event_query(Scheduler* scheduler, event_t event) noexcept nogil
cdef status_t event_synchronize(Scheduler* scheduler, event_t event) noexcept nogil

cdef status_t capture_begin(Scheduler* scheduler, stream_t stream, capture_t* capture) noexcept nogil
cdef status_t capture_end(Scheduler* scheduler, stream_t stream, Graph** graph) noexcept nogil
cdef status_t capture_status(Scheduler* scheduler, stream_t stream, capture_t* capture) noexcept nogil
cdef status_t capture_terminals(Scheduler* scheduler, stream_t stream, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil
cdef status_t node_predecessors(Scheduler* scheduler, node_t node, node_t* nodes, size_t capacity,
                                size_t* count) noexcept nogil
