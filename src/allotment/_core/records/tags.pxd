"""Tags: names for memory that is paused, resumed and limited together, such as the weights of a model.

A thread is inside at most one tag, the one that it entered last; what it asks for meanwhile is served by the tag's own
pool. Numbers are the process's, from 1; 0 is no tag. Routes come first: a capture's memory stays its own.
"""

from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    TAGS_MOST = 65535

# The second part of the id of a tag's pool is this and the tag's number: above any that users or captures are given.
cdef inline uint64_t tag_pool_id(uint32_t tag) noexcept nogil:
    return (<uint64_t> 1 << 40) + tag

cdef uint32_t tag_here() noexcept nogil                 # of the calling thread
cdef uint32_t tag_enter(uint32_t tag) noexcept nogil    # what it was in before
cdef bint tags_are_used() noexcept nogil                # whether any was ever named
cdef uint32_t tag_number(str name, bint make) except? 0xFFFFFFFF    # 0 if it is not known, and not to be made
cdef str tag_name(uint32_t tag)     # "" if there is none
