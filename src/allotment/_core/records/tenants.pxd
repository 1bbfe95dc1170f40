"""Tenants: the named users that share an allocator, such as the frameworks of one process.

Whose a block is travels in the upper bits of the context it was asked for with (see `history`), so that blocks and
records of the history know it without a field of their own, and a free needs no name. 0 is "no one in
particular". Names are the process's, at most 255 of them.
"""

from libc.stdint cimport uint32_t

cdef enum:
    TENANT_SHIFT = 24
    TENANTS_MOST = 256
    STACK_MOST = (1 << TENANT_SHIFT) - 1    # what is left for the number of a stack
    FOREIGN_STACK = 1 << (TENANT_SHIFT - 1)     # from here on they are a framework's numbers: see `history`

cdef inline uint32_t stack_of(uint32_t context) noexcept nogil:
    return context & STACK_MOST

cdef inline uint32_t tenant_of(uint32_t context) noexcept nogil:
    """The part of a context that names the tenant, in its place."""
    return context & ~<uint32_t> STACK_MOST

cdef inline uint32_t context_of_free(uint32_t freeing, uint32_t allocating) noexcept nogil:
    """A free is told with the stack that asked for it, if known, but as the tenant's that had the block.

    Who asks may be another tenant: a request of one completes what the streams of the other are done with.
    """
    return allocating if stack_of(freeing) == 0 else stack_of(freeing) | tenant_of(allocating)

cdef uint32_t tenant_context(str name) except? 0xFFFFFFFF
cdef str tenant_name(uint32_t context)
