"""The interpreter, as seen by code that runs without it.

A thread releases the interpreter lock before it waits for anything whose holder may need that lock. When the
interpreter ends, it tears modules down; the operating system then frees whatever is still open.
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
    """Release the interpreter lock, if this thread holds it; else NULL."""
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef inline void take_interpreter_back(PyThreadState* state) noexcept nogil:
    if state != NULL:
        PyEval_RestoreThread(state)
