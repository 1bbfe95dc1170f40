"""Contexts: Python stacks and names, interned, so that records carry them as one number.

A stack is captured as the code objects and instruction offsets of its frames, which costs no string and no
line number; those are worked out when somebody looks. Equal stacks have one number for the life of the
process. 0 is "none". A context is such a number with, in its upper bits, whose it is: see `tenants`.
"""

from libc.stdint cimport uint32_t

cdef uint32_t capture_stack() except? 0xFFFFFFFF
cdef uint32_t intern_frames(object frames) except? 0xFFFFFFFF     # a stack that somebody else gathered
cdef list stack_frames(uint32_t stack)
cdef uint32_t intern_name(str name) except? 0xFFFFFFFF
cdef str name_of(uint32_t number)
