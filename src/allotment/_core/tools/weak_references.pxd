"""Weak references to an object that is being deallocated.

While a `__dealloc__` runs, Cython holds its own reference to the object, and Python clears the weak references only
afterwards. If the deallocator releases the interpreter lock, or runs foreign code, another thread could still get the
object through a weak reference, and the object would vanish a moment later. So such a deallocator begins with
`clear_weak_references`.
"""

cdef extern from *:
    """
    #ifndef ALLOTMENT_WEAK_REFERENCES
    #define ALLOTMENT_WEAK_REFERENCES
    static inline void allotment_clear_weak_references(PyObject* object) {
        Py_ssize_t held = Py_REFCNT(object);
        Py_SET_REFCNT(object, 0);       /* Python refuses to clear those of a referenced object. */
        PyObject_ClearWeakRefs(object);
        Py_SET_REFCNT(object, held);
    }
    #endif
    """
    void clear_weak_references "allotment_clear_weak_references"(object given)    # pre: in `__dealloc__`
