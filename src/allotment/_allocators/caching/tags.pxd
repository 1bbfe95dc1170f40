"""A tag as users hold it: a name for what a thread allocates inside `with allotment.tag(name):`."""

from libc.stdint cimport uint32_t

cdef class tag:
    cdef uint32_t number        # 0: not made
    cdef list before            # which tag each thread of control was in when it entered
