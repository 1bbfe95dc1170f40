from cpython.pystate cimport PyThreadState

from allotment._core.model.model cimport Engine
from allotment._core.tools.lock cimport lock_lend, lock_reclaim

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)


cdef outing_t step_out(Engine* engine) noexcept nogil:
    lock_lend(&engine.lock)
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef void step_in(Engine* engine, outing_t outing) noexcept nogil:
    lock_reclaim(&engine.lock)
    if outing != NULL:
        PyEval_RestoreThread(outing)
