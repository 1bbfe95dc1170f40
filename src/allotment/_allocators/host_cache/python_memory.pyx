from cpython.pythread cimport PyThread_get_thread_ident
from libc.stddef cimport size_t

from allotment._allocators.host_cache.system_memory cimport System
from allotment._core.contract.types cimport address_t

cdef extern from "Python.h":
    bint Py_IsInitialized() noexcept nogil


cdef class PythonMemory:
    def __cinit__(self, owner):
        if not (callable(getattr(owner, "allocate", None)) and callable(getattr(owner, "free", None))):
            raise TypeError(f"system must have the methods allocate and free, which {type(owner).__name__} lacks")
        self.owner = owner
        self.failures = {}
        self.system = System(<void*> self, python_allocate, python_free)

    cdef object take_failure(self):
        return self.failures.pop(PyThread_get_thread_ident(), None)


cdef void* python_allocate(void* memory, size_t size) noexcept nogil:
    return call_allocate(memory, size) if Py_IsInitialized() else NULL


cdef void python_free(void* memory, void* address) noexcept nogil:
    if Py_IsInitialized():
        call_free(memory, address)


cdef void* call_allocate(void* memory, size_t size) noexcept with gil:
    cdef PythonMemory self = <PythonMemory> memory
    self.take_failure()
    try:
        return <void*> <address_t> (self.owner.allocate(size) or 0)
    except BaseException as error:
        self.failures[PyThread_get_thread_ident()] = error
        return NULL


cdef void call_free(void* memory, void* address) noexcept with gil:
    # Its exception cannot be raised here; Cython reports it through `sys.unraisablehook`.
    (<PythonMemory> memory).owner.free(<address_t> address)


cdef dict python_memories = {}      # identity of the owner -> its memory; never emptied


cdef PythonMemory python_memory(object owner):
    return python_memories.setdefault(id(owner), PythonMemory(owner))
