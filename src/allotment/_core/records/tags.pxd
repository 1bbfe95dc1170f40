"""Tags: names for memory that is paused, resumed and limited together, such as the weights of a model.

A thread is inside at most one tag, the one that it entered last; meanwhile the tag's own pool serves its requests. A
thread that entered none is inside the tag of the whole process, if that has one.
Numbers start at 1 and hold for the process; 0 is no tag. A number gets another name only when all numbers are taken, so
that an old history shows the right names for as long as possible. Routes take precedence, so a capture keeps its own
memory.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    TAGS_MOST = 65535

# The second part of the id of a tag's pool; it is above any number that users or captures get.
cdef inline uint64_t tag_pool_id(uint32_t tag) noexcept nogil:
    return (<uint64_t> 1 << 40) + tag

cdef uint32_t tag_here() noexcept nogil                 # the calling thread's tag
cdef uint32_t tag_enter(uint32_t tag) noexcept nogil    # returns the previous one
cdef uint32_t tag_everywhere(uint32_t tag) noexcept nogil   # of threads in no tag; returns the previous one
cdef bint tags_are_used() noexcept nogil                # whether any tag was ever named
# 0 if the name is unknown and `make` is False, or if no number is left.
cdef uint32_t tag_number(str name, bint make) except? 0xFFFFFFFF
cdef str tag_name(uint32_t tag)     # "" if it does not exist
cdef int tag_forget(uint32_t tag) except -1     # its number may get another name. pre: no pool and no thread has it
