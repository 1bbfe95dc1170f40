"""The interpreter, as code that runs without it sees it.

Its lock is let go before anything is waited for whose holder may want it. At its end modules are taken apart, and what
is open ends with the process.
"""

from cpython.pystate cimport PyThreadState

cdef extern from "Python.h" nogil:
    int PyGILState_Check()
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)

cdef extern from *:
    """
    #ifndef ALLOTMENT_INTERPRETER
    #define ALLOTMENT_INTERPRETER
    #if PY_VERSION_HEX >= 0x030D0000
    #define allotment_interpreter_ends Py_IsFinalizing
    #else
    #define allotment_interpreter_ends _Py_IsFinalizing
    #endif
    #endif
    """
    bint interpreter_ends "allotment_interpreter_ends"() noexcept nogil


cdef inline PyThreadState* let_interpreter_go() noexcept nogil:
    """Its lock, if this thread has it; NULL: it has not."""
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef inline void take_interpreter_back(PyThreadState* state) noexcept nogil:
    if state != NULL:
        PyEval_RestoreThread(state)
