"""A System whose two functions are methods of a Python object."""

from allotment._allocators.host_cache.system_memory cimport System

cdef class PythonMemory:
    cdef System system
    cdef object owner
    cdef dict failures          # thread identity -> why its last call of allocate failed

    # The exception behind this thread's last failure, or None; a second call gives None.
    cdef object take_failure(self)

# The one of this object. It lives as long as the process, as every System does.
cdef PythonMemory python_memory(object owner)
