cimport cython

from allotment._allocators.caching.c_steps cimport Shortage, step_t

cdef dict removers = {}
cdef int latest = 0


@cython.final
cdef class CStep:
    """A C function as a handler; entry points create one."""
    cdef step_t step
    cdef void* owner

    def __call__(self, facts: OutOfMemoryFacts) -> bool:
        """Return the function's result."""
        cdef Shortage shortage
        cdef int again
        shortage.size = sizeof(Shortage)
        shortage.requested = facts.requested
        shortage.stream = facts.stream
        shortage.device_free = facts.device_free
        shortage.device_total = facts.device_total
        shortage.reserved = facts.reserved
        shortage.allocated = facts.allocated
        shortage.waiting = facts.waiting
        with nogil:
            again = self.step(self.owner, &shortage)
        return again != 0


cdef int c_step_add(object allocator, step_t step, void* self, int tries) except 0:
    global latest
    cdef CStep called = CStep.__new__(CStep)
    called.step = step
    called.owner = self
    remover = allocator.on_out_of_memory(called, tries=tries)
    with cython.critical_section(removers):
        latest += 1
        removers[latest] = remover
        return latest


cdef bint c_step_remove(int number) except -1:
    remover = removers.pop(number, None)
    if remover is not None:
        remover()
    return remover is not None
