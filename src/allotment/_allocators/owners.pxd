"""Which buffer owns the block at an address.

A buffer frees its block when it is deleted, unless the block has ended before: restoring a pool ends its blocks, and
may bring earlier ones back at the same addresses. So a buffer itself cannot know whether it owns its block. The
allocator records the owners here, and a buffer that is not recorded here frees nothing.

References are borrowed: a buffer removes itself when it is deleted. The critical section of this object guards the map,
so a buffer that is found under it still exists, though its last reference may be gone. A caller that frees because of
this record looks it up inside the engine, or keeps the interpreter lock until the free is done, so that no restore
comes in between.
"""

from allotment._core.contract.types cimport address_t
from allotment._core.tools.pointer_map cimport PointerMap

cdef class Owners:
    cdef PointerMap buffers         # address -> Buffer
    cdef size_t reserved            # places in it that are reserved

    cdef int reserve(self, size_t more) except -1               # a place for each `put`
    cdef void unreserve(self, size_t places) noexcept           # that were not used
    cdef void put(self, address_t address, object buffer) noexcept      # pre: a place is reserved for it
    cdef bint is_owner(self, address_t address, void* buffer) noexcept
    cdef object owner_of(self, address_t address)               # None: any holder of the address owns it
    cdef void end(self, address_t address) noexcept             # ends any ownership
    cdef bint give_up(self, address_t address, void* buffer) noexcept   # False if the buffer is not the owner
