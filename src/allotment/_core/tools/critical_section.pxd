"""CPython's lock of one object, for the hot path: it costs nothing in a build with an interpreter lock.

Cython's own statement, `with cython.critical_section(object)`, costs a buffer 80 instructions there. Code between
`section_begin` and `section_end` must not raise or return. The thread leaves the section while it waits; see
`docs/threads.md`.
"""

cdef extern from *:
    """
    #ifndef ALLOTMENT_CRITICAL_SECTION
    #define ALLOTMENT_CRITICAL_SECTION
    #ifdef Py_GIL_DISABLED
    typedef PyCriticalSection AllotmentSection;
    #define allotment_section_begin(section, object) PyCriticalSection_Begin(section, (PyObject*) (object))
    #define allotment_section_end PyCriticalSection_End
    #else
    typedef char AllotmentSection;
    #define allotment_section_begin(section, object) ((void) (section))
    #define allotment_section_end(section) ((void) (section))
    #endif
    #endif
    """
    ctypedef struct Section "AllotmentSection":
        pass
    void section_begin "allotment_section_begin"(Section* section, object of) noexcept
    void section_end "allotment_section_end"(Section* section) noexcept
