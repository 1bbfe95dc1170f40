"""A System whose two functions are methods of a Python object."""

from allotment._allocators.host_cache.system_memory cimport System

cdef class PythonMemory:
    cdef System system
    cdef object owner
    cdef dict failures          # thread identity -> the exception of its last call of allocate

    # Returns the exception behind this thread's last failure, or None; a second call returns None.
    cdef object take_failure(self)

# Returns the memory of this object. It lives as long as the process, like every System.
cdef PythonMemory python_memory(object owner)
