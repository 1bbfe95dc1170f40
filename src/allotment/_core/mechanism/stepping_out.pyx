from cpython.pystate cimport PyThreadState

from allotment._core.model.model cimport Engine
from allotment._core.tools.lock cimport lock_give, lock_try, lock_wait

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)


cdef outing_t step_out(Engine* engine) noexcept nogil:
    engine.away += 1
    lock_give(&engine.lock)
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef void step_in(Engine* engine, outing_t outing) noexcept nogil:
    if not lock_try(&engine.lock):
        lock_wait(&engine.lock)
    engine.away -= 1
    if outing != NULL:
        PyEval_RestoreThread(outing)
