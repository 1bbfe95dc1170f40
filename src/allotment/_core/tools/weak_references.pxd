"""Weak references to an object that is being taken apart.

While a `__dealloc__` of ours runs, Cython holds a reference of its own to the object, and Python clears the weak ones
only afterwards. If the deallocator lets go of the interpreter lock, or runs code of others, a weak reference would
still give the object to another thread, and it would be gone a moment later. So such a deallocator begins with this.
"""

cdef extern from *:
    """
    #ifndef ALLOTMENT_WEAK_REFERENCES
    #define ALLOTMENT_WEAK_REFERENCES
    static inline void allotment_clear_weak_references(PyObject* object) {
        Py_ssize_t held = Py_REFCNT(object);
        Py_SET_REFCNT(object, 0);       /* Python refuses to clear those of an object in use. */
        PyObject_ClearWeakRefs(object);
        Py_SET_REFCNT(object, held);
    }
    #endif
    """
    void clear_weak_references "allotment_clear_weak_references"(object given)    # pre: in `__dealloc__`
