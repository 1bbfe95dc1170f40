"""Weak references to an object that is being deallocated.

While a `__dealloc__` runs, Cython holds its own reference to the object, and Python clears the weak references only
afterwards. Meanwhile another thread could get the object through a weak reference, and the object would vanish a moment
later: at any time without an interpreter lock; with one, if the deallocator releases it or runs foreign code. So a
class that has a `__dealloc__` and weak references calls `clear_weak_references_first`: Python's finalizer runs, then
the weak references are cleared, then Cython's code deallocates.
"""

cdef extern from *:
    """
    #ifndef ALLOTMENT_WEAK_REFERENCES
    #define ALLOTMENT_WEAK_REFERENCES
    static PyTypeObject* allotment_weak_type;          /* one class of each module */
    static destructor allotment_rest_of_dealloc;
    static void allotment_dealloc(PyObject* object) {
        if (Py_TYPE(object)->tp_finalize != NULL && PyObject_CallFinalizerFromDealloc(object) < 0)
            return;                     /* it lives on; Python calls a finalizer only once */
        if (PyObject_IS_GC(object))
            PyObject_GC_UnTrack(object);    /* the callback of a weak reference may start a collection */
        PyObject_ClearWeakRefs(object);
        allotment_rest_of_dealloc(object);
    }
    static inline void allotment_clear_weak_references_first(PyObject* type) {
        if (allotment_weak_type != NULL)
            Py_FatalError("allotment: a module has two classes with weak references and a __dealloc__");
        allotment_weak_type = (PyTypeObject*) type;
        allotment_rest_of_dealloc = allotment_weak_type->tp_dealloc;
        allotment_weak_type->tp_dealloc = allotment_dealloc;
    }
    #endif
    """
    # Called once, behind the class.
    void clear_weak_references_first "allotment_clear_weak_references_first"(object type)
