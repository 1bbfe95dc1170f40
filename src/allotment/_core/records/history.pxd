"""Contexts: Python stacks and names, interned, so that records carry them as one number.

Capturing a stack stores the code objects and instruction offsets of its frames. Capturing computes no string and no
line number; reading a stack does. Equal stacks have one number for the life of the process. 0 means "none". A context
is such a number with the tenant in its upper bits: see `tenants`.

A framework may gather contexts itself, which cover more than Python's frames, and keeps them. One function of the
framework returns a number from FOREIGN_STACK on; another one returns the frames behind a number. The framework may
reuse a number when no block and no record has it (see `contexts_in_use`).
"""

from libc.stdint cimport uint32_t

ctypedef uint32_t (*gather_t)() noexcept nogil      # the calling thread's context according to a framework; 0: none

cdef uint32_t capture_stack() except? 0xFFFFFFFF
cdef uint32_t intern_frames(object frames) except? 0xFFFFFFFF     # of a stack that other code gathered
cdef list stack_frames(uint32_t stack)
cdef int show_foreign_with(object frames_of) except -1      # number -> frames, innermost first
cdef uint32_t intern_name(str name) except? 0xFFFFFFFF
cdef str name_of(uint32_t number)
