from cpython.pystate cimport PyThreadState

from allotment._core.engine cimport engine_enter, engine_is_inside
from allotment._core.model.model cimport Engine

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)


cdef bint enter_slowly(Engine* engine) noexcept nogil:
    cdef PyThreadState* state
    if engine_is_inside(engine):
        return False
    if not PyGILState_Check():
        engine_enter(engine)
        return True
    state = PyEval_SaveThread()
    engine_enter(engine)
    PyEval_RestoreThread(state)
    return True
