"""Tenants: the named users that share an allocator, such as the frameworks of one process.

The upper bits of the context of a block's request name the block's tenant (see `history`). So blocks and history
records know the tenant without a field for it, and a free needs no name. 0 is "no tenant". Names hold for the process;
it can have at most 255.
"""

from libc.stdint cimport uint32_t

cdef enum:
    TENANT_SHIFT = 24
    TENANTS_MOST = 256
    STACK_MOST = (1 << TENANT_SHIFT) - 1    # the bits left for the number of a stack
    FOREIGN_STACK = 1 << (TENANT_SHIFT - 1)     # from here on the numbers are a framework's: see `history`

cdef inline uint32_t stack_of(uint32_t context) noexcept nogil:
    return context & STACK_MOST

cdef inline uint32_t tenant_of(uint32_t context) noexcept nogil:
    """Return the bits of a context that name the tenant, unshifted."""
    return context & ~<uint32_t> STACK_MOST

cdef inline uint32_t context_of_free(uint32_t freeing, uint32_t allocating) noexcept nogil:
    """Return the context to record for a free: the stack that caused it, if known, but the tenant that had the block.

    The caller may be another tenant: its request may complete a free that waited for the first tenant's streams.
    """
    return allocating if stack_of(freeing) == 0 else stack_of(freeing) | tenant_of(allocating)

cdef uint32_t tenant_context(str name) except? 0xFFFFFFFF
cdef str tenant_name(uint32_t context)
