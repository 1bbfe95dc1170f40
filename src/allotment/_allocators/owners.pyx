cimport cython
from cpython.object cimport PyObject
from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #if PY_VERSION_HEX < 0x030E0000
    #error "Without the interpreter lock, Python 3.14 or newer is needed"
    #endif
    #define allotment_may_be_found PyUnstable_EnableTryIncRef
    #define allotment_take_if_living PyUnstable_TryIncRef
    #else
    #define allotment_may_be_found(object)
    #define allotment_take_if_living(object) (Py_INCREF(object), 1)
    #endif
    """
    void may_be_found "allotment_may_be_found"(object given) noexcept
    bint take_if_living "allotment_take_if_living"(PyObject* given) noexcept    # a reference, unless its last one went
    void Py_DECREF(PyObject* given) noexcept


cdef class Owners:
    def __cinit__(self):
        if not map_init(&self.buffers):
            raise MemoryError("the host has no memory for the allocator's own records")

    def __dealloc__(self):
        map_clear(&self.buffers)

    @cython.critical_section
    cdef int reserve(self, size_t more) except -1:
        if not map_reserve(&self.buffers, self.reserved + more):
            raise MemoryError("the host has no memory for the allocator's own records")
        self.reserved += more
        return 0

    @cython.critical_section
    cdef void unreserve(self, size_t places) noexcept:
        self.reserved -= places

    @cython.critical_section
    cdef void put(self, address_t address, object buffer) noexcept:
        may_be_found(buffer)
        self.reserved -= 1
        map_put(&self.buffers, address, <void*> buffer)

    @cython.critical_section
    cdef bint is_owner(self, address_t address, void* buffer) noexcept:
        return map_get(&self.buffers, address) == buffer

    @cython.critical_section
    cdef object owner_of(self, address_t address):
        cdef PyObject* buffer = <PyObject*> map_get(&self.buffers, address)
        if buffer == NULL or not take_if_living(buffer):
            return None
        found = <object> buffer
        Py_DECREF(buffer)
        return found

    @cython.critical_section
    cdef void end(self, address_t address) noexcept:
        map_pop(&self.buffers, address)

    @cython.critical_section
    cdef bint give_up(self, address_t address, void* buffer) noexcept:
        if map_get(&self.buffers, address) != buffer:
            return False
        map_pop(&self.buffers, address)
        return True
