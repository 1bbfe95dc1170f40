# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a scheduler's mutex must never wait for that.
"""Tasks of host streams, and graphs of them."""

from cpython.exc cimport PyErr_SetObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

from allotment._core.tools.arrays cimport make_room
from allotment._devices.shared.posix cimport ACQ_REL, RELAXED, atomic_add, atomic_subtract

cdef extern from "Python.h":
    void PyErr_WriteUnraisable(PyObject* where)


cdef PyObject* task_run(const Task* task) noexcept nogil:
    if task.kind == TASK_CALL:
        return call(task.function, task.arguments)
    if task.kind == TASK_COPY:
        # The two places may be views of one chunk, or overlap.
        memmove(<void*> task.destination, <void*> task.source, task.size)
        return NULL
    return run_graph(task.graph)


cdef PyObject* run_graph(const Graph* graph) noexcept nogil:
    cdef PyObject* first = NULL
    cdef PyObject* raised
    for at in range(graph.node_count):
        raised = task_run(&graph.nodes[at].task)
        if first == NULL:
            first = raised
        elif raised != NULL:
            report_exception(raised)
    return first


cdef PyObject* call(PyObject* function, PyObject* arguments) noexcept with gil:
    try:
        (<object> function)(*<tuple> arguments)
    except BaseException as exception:
        Py_INCREF(exception)
        return <PyObject*> exception
    return NULL


cdef void task_drop(Task* task) noexcept nogil:
    if task.kind == TASK_CALL:
        drop_call(task)
    elif task.kind == TASK_REPLAY:
        graph_drop(task.graph)


cdef void drop_call(Task* task) noexcept with gil:
    Py_XDECREF(task.function)
    Py_XDECREF(task.arguments)


cdef void report_exception(PyObject* exception) noexcept with gil:
    PyErr_SetObject(type(<object> exception), <object> exception)
    PyErr_WriteUnraisable(NULL)
    Py_DECREF(<object> exception)


cdef Graph* graph_new() noexcept nogil:
    cdef Graph* graph = <Graph*> calloc(1, sizeof(Graph))
    if graph != NULL:
        graph.references = 1
    return graph


cdef bint graph_add(Graph* graph, const Task* task, const uint32_t* needs, size_t need_count) noexcept nogil:
    cdef Node* node
    if graph.node_count >= <size_t> 0xFFFF_FFFE:
        return False
    if not make_room(<void**> &graph.nodes, &graph.node_capacity, graph.node_count, sizeof(Node)):
        return False
    while graph.edge_count + need_count > graph.edge_capacity:
        if not make_room(<void**> &graph.edges, &graph.edge_capacity, graph.edge_capacity, sizeof(uint32_t)):
            return False
    node = &graph.nodes[graph.node_count]
    node.task = task[0]
    node.first_edge = graph.edge_count
    node.edge_count = <uint32_t> need_count
    if need_count != 0:
        memcpy(&graph.edges[graph.edge_count], needs, need_count * sizeof(uint32_t))
    graph.edge_count += need_count
    graph.node_count += 1
    graph.needs_python |= needs_python(task)
    return True


cdef void graph_keep(Graph* graph) noexcept nogil:
    atomic_add(&graph.references, 1, RELAXED)


cdef void graph_drop(Graph* graph) noexcept nogil:
    if atomic_subtract(&graph.references, 1, ACQ_REL) != 0:
        return
    for at in range(graph.node_count):
        task_drop(&graph.nodes[at].task)
    free(graph.nodes)
    free(graph.edges)
    free(graph)


cdef bint graph_ends_in(const Graph* graph, const uint32_t* last, size_t last_count) noexcept nogil:
    cdef char* needed = <char*> calloc(graph.node_count + 1, 1)
    cdef size_t at = graph.node_count
    cdef const Node* node
    if needed == NULL:
        return False
    for index in range(last_count):
        needed[last[index]] = True
    while at > 0 and needed[at - 1]:
        at -= 1
        node = &graph.nodes[at]
        for index in range(node.first_edge, node.first_edge + node.edge_count):
            needed[graph.edges[index]] = True
    free(needed)
    return at == 0
