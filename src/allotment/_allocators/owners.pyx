from cpython.object cimport PyObject
from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t
from allotment._core.tools.critical_section cimport Section, section_begin, section_end
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

    cdef int reserve(self, size_t more) except -1:
        cdef Section section
        cdef bint ok
        section_begin(&section, self)
        ok = map_reserve(&self.buffers, self.reserved + more)
        if ok:
            self.reserved += more
        section_end(&section)
        if not ok:
            raise MemoryError("the host has no memory for the allocator's own records")
        return 0

    cdef void unreserve(self, size_t places) noexcept:
        cdef Section section
        section_begin(&section, self)
        self.reserved -= places
        section_end(&section)

    cdef void put(self, address_t address, object buffer) noexcept:
        cdef Section section
        may_be_found(buffer)
        section_begin(&section, self)
        self.reserved -= 1
        map_put(&self.buffers, address, <void*> buffer)
        section_end(&section)

    cdef bint is_owner(self, address_t address, void* buffer) noexcept:
        cdef Section section
        cdef bint found
        section_begin(&section, self)
        found = map_get(&self.buffers, address) == buffer
        section_end(&section)
        return found

    cdef object owner_of(self, address_t address):
        cdef Section section
        cdef PyObject* buffer
        section_begin(&section, self)
        buffer = <PyObject*> map_get(&self.buffers, address)
        if buffer != NULL and not take_if_living(buffer):
            buffer = NULL
        section_end(&section)
        if buffer == NULL:
            return None
        found = <object> buffer
        Py_DECREF(buffer)
        return found

    cdef void end(self, address_t address) noexcept:
        cdef Section section
        section_begin(&section, self)
        map_pop(&self.buffers, address)
        section_end(&section)

    cdef bint give_up(self, address_t address, void* buffer) noexcept:
        cdef Section section
        cdef bint is_owner
        section_begin(&section, self)
        is_owner = map_get(&self.buffers, address) == buffer
        if is_owner:
            map_pop(&self.buffers, address)
        section_end(&section)
        return is_owner
