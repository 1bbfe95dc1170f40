"""A tag as users hold it: a name for what a thread allocates inside `with allotment.tag(name):`."""

from libc.stdint cimport uint32_t

cdef class tag:
    cdef uint32_t number        # 0: not initialized
    cdef list before            # the previous tag of each thread that entered
