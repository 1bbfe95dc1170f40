"""What a host stream can be given to do.

A *task* is a Python call, a copy, or a whole graph. Copies need no interpreter, so a stream that only copies
goes on without one. A *graph* is tasks with the order they need, kept from a capture and run any number of times:

    node     0 ------> 2 -----> 3          edges of 2: 0        nodes stand in the order they were given,
             1 -------/                    edges of 3: 2        so whatever a node needs stands before it
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
    uint32_t* edges                 # nodes that must be done before; each node has a piece of this array
    size_t edge_count
    size_t edge_capacity
    bint needs_python               # one of its tasks does


cdef inline bint needs_python(const Task* task) noexcept nogil:
    return task.kind == TASK_CALL or (task.kind == TASK_REPLAY and task.graph.needs_python)


# Does what the task says. Returns the exception that a function raised, owned by the caller, or NULL. The
# functions of a graph all run; of several exceptions the first is returned and the others are reported.
cdef PyObject* task_run(const Task* task) noexcept nogil

# Lets go of what the task owns.
cdef void task_drop(Task* task) noexcept nogil

# An exception that will not be raised any more is shown as Python shows those of destructors; the reference is taken.
cdef void report_exception(PyObject* exception) noexcept nogil

cdef Graph* graph_new() noexcept nogil

# The task is the graph's from now on. False, and nothing has changed, when memory is short.
cdef bint graph_add(Graph* graph, const Task* task, const uint32_t* needs, size_t need_count) noexcept nogil
cdef void graph_keep(Graph* graph) noexcept nogil
cdef void graph_drop(Graph* graph) noexcept nogil

# Whether the nodes of a set are all that nothing else needs: whether every node is one of them or needed, directly
# or not, by one of them.
cdef bint graph_ends_in(const Graph* graph, const uint32_t* last, size_t last_count) noexcept nogil
