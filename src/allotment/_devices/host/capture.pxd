"""Captures of host streams: what becomes a node, which streams join, what invalidates a capture.

A stream in a capture has no work of its own to wait for. So querying it or waiting for it is forbidden and invalidates
the capture: the capture continues to its end, and then yields no graph. Mixing in work from outside or from another
capture invalidates it too.

pre, for every function here: the scheduler's mutex is held.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport capture_t, node_t
from allotment._devices.host.queue cimport Capture, Event, NodeSet, Queue, Scheduler
from allotment._devices.host.work cimport Graph, Task

cdef status_t capture_start(Scheduler* scheduler, Queue* queue, capture_t* capture) noexcept nogil

# Ends the capture; its streams are ordinary streams again. The caller owns the graph, and drops it after unlocking.
cdef Graph* capture_dissolve(Scheduler* scheduler, Capture* capture) noexcept nogil

# Ends the capture that began on `queue`. On OK `graph` is the result. The capture ends even if this fails; then, and
# only then, `waste` is a graph for the caller to drop after unlocking.
cdef status_t capture_finish(Scheduler* scheduler, Queue* queue, Graph** graph, Graph** waste) noexcept nogil

# Submitting, recording and waiting when the stream, or the event, is in a capture.
cdef status_t capture_task(Queue* queue, const Task* task) noexcept nogil
cdef status_t capture_event(Queue* queue, Event* event) noexcept nogil
cdef status_t capture_wait(Scheduler* scheduler, Queue* queue, Event* event) noexcept nogil

# Refuses the operation and invalidates the capture.
cdef status_t forbidden(Capture* capture, const char* what) noexcept nogil
cdef status_t forbidden_for_event(Scheduler* scheduler, Event* event, const char* what) noexcept nogil

# A stream leaves because it is destroyed, which invalidates its capture. If the capture began on this stream, this call
# ends the capture, and the result is a graph for the caller to drop after unlocking.
cdef Graph* capture_leave(Scheduler* scheduler, Queue* queue) noexcept nogil

# A node's handle is the capture's id above the node's number in its graph, counted from 1.
cdef node_t node_of(Capture* capture, uint64_t index) noexcept nogil
cdef Capture* capture_with(Scheduler* scheduler, uint64_t id) noexcept nogil
cdef status_t find_node(Scheduler* scheduler, node_t node, Capture** capture, uint64_t* index) noexcept nogil

cdef void node_set_clear(NodeSet* nodes) noexcept nogil
