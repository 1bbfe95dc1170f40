"""Which buffer owns the block at an address.

A buffer frees its block when it goes, unless the block has ended before: restoring a pool ends its blocks, and may
bring earlier ones back at the same addresses. So ownership is not the buffer's own knowledge. It is written here, by
the allocator, and a buffer that is not written here frees nothing.

References are borrowed: a buffer takes itself out when it goes. All is guarded by the interpreter lock. Whoever frees
on the strength of this looks it up inside the engine, or keeps the interpreter lock until the free is done, so that no
restore comes in between.
"""

from allotment._core.contract.types cimport address_t
from allotment._core.tools.pointer_map cimport PointerMap

cdef class Owners:
    cdef PointerMap buffers         # address -> Buffer

    cdef int reserve(self, size_t more) except -1               # room for so many more
    cdef void put(self, address_t address, void* buffer) noexcept    # pre: room is reserved, or it was there
    cdef void* owner_of(self, address_t address) noexcept       # NULL: it belongs to whoever has the address
    cdef void end(self, address_t address) noexcept             # whoever owns it
    cdef bint give_up(self, address_t address, void* buffer) noexcept   # False if the buffer is not the owner
