"""The interpreter's end: modules are taken apart then, and what is open ends with the process."""

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
