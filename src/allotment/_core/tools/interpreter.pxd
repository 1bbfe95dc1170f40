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
    /* Since 3.12 a collection runs only between two instructions of Python code. To switch collections off there would
       also undo, without an interpreter lock, what another thread does to the switch meanwhile. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define allotment_stop_collecting() 0
    #else
    #define allotment_stop_collecting() PyGC_Disable()
    #endif
    #endif
    """
    bint interpreter_ends "allotment_interpreter_ends"() noexcept nogil
    # Until `collect_again`, which takes the result, compiled code that makes objects triggers no garbage collection.
    bint stop_collecting "allotment_stop_collecting"() noexcept
    bint PyGC_Enable() noexcept


cdef inline PyThreadState* let_interpreter_go() noexcept nogil:
    """Release the interpreter lock, if this thread holds it; else NULL."""
    return PyEval_SaveThread() if PyGILState_Check() else NULL


cdef inline void take_interpreter_back(PyThreadState* state) noexcept nogil:
    if state != NULL:
        PyEval_RestoreThread(state)


cdef inline void collect_again(bint collected) noexcept:
    if collected:
        PyGC_Enable()
