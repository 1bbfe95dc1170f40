"""Work that a host stream can do.

A *task* is a Python call, a copy, or a whole graph. Copies need no interpreter, so a stream that only copies runs
without it. A *graph* is tasks with their dependencies, recorded by a capture and run any number of times:

    node     0 ------> 2 -----> 3          edges of 2: 0        nodes are in the order of submission,
             1 -------/                    edges of 3: 2        so each node comes after those it needs
"""

from cpython.object cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport address_t, bytes_t

ctypedef enum task_t:
    TASK_CALL
    TASK_COPY
    TASK_REPLAY

cdef struct Task:
    task_t kind
    PyObject* function              # CALL: owned, like its tuple of arguments
    PyObject* arguments
    address_t destination           # COPY
    address_t source
    bytes_t size
    Graph* graph                    # REPLAY: one reference

cdef struct Node:
    Task task
    size_t first_edge
    uint32_t edge_count

cdef struct Graph:
    uint64_t references             # atomic
    Node* nodes
    size_t node_count
    size_t node_capacity
    uint32_t* edges                 # predecessors; each node has a slice of this array
    size_t edge_count
    size_t edge_capacity
    bint needs_python               # whether one of its tasks needs Python


cdef inline bint needs_python(const Task* task) noexcept nogil:
    return task.kind == TASK_CALL or (task.kind == TASK_REPLAY and task.graph.needs_python)


# Runs the task. Returns the exception that a function raised, owned by the caller, or NULL. All functions of a graph
# run; of several exceptions it returns the first and reports the others.
cdef PyObject* task_run(const Task* task) noexcept nogil

# Frees what the task owns.
cdef void task_drop(Task* task) noexcept nogil

# Reports an exception that nobody will raise, as Python does for destructors. Consumes the reference.
cdef void report_exception(PyObject* exception) noexcept nogil

cdef Graph* graph_new() noexcept nogil

# On success the graph owns the task. Returns False, without a change, if host memory is short.
cdef bint graph_add(Graph* graph, const Task* task, const uint32_t* needs, size_t need_count) noexcept nogil
cdef void graph_keep(Graph* graph) noexcept nogil
cdef void graph_drop(Graph* graph) noexcept nogil

# Whether the given nodes include all final ones: whether every node is one of them or a direct or indirect predecessor
# of one.
cdef bint graph_ends_in(const Graph* graph, const uint32_t* last, size_t last_count) noexcept nogil
