"""`allocator.sleep`: tags and pools are paused. Their memory returns to the device, and their addresses stay.

`_core/mechanism/pausing` does that for a pool; `contents` keeps the contents.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.contents cimport Contents
from allotment._allocators.caching.copying cimport Ring
from allotment._allocators.parts cimport Part
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.pausing cimport ExtentList
from allotment._core.model.model cimport Failure, Pool as EnginePool

cdef class Pausing:
    cdef tuple key
    cdef uint64_t first, second
    cdef bint moving, noted
    cdef list ranges
    cdef Contents contents

cdef class Waking:
    cdef tuple key
    cdef uint64_t first, second
    cdef list ranges
    cdef Contents contents      # None: not kept
    cdef ExtentList wanted

cdef class Sleep(Part):
    cdef Allocator allocator

    cdef list ranges_of(self, uint64_t first, uint64_t second)      # (base, size) each
    cdef tuple pool_around(self, address_t address)                 # None: of none
    cdef EnginePool* found(self, uint64_t first, uint64_t second, Failure* failure) noexcept    # pre: inside
    cdef void enter_to_end(self) noexcept
    cdef Ring ring(self)
    cdef bytes_t bytes_in_use(self, list pools) except? 0
    # `owner` is the name of the tenant that they are paused for, or None.
    cdef bytes_t pause_pools(self, list pools, object keeping, object progress, object owner) except? 0
    # Each pool begins, its contents are saved, and only when that is done for all of them memory is released.
    cdef int begin_pause(self, uint64_t first, uint64_t second, object keeping, list begun) except -1
    cdef int check_keep(self, list begun, object keeping) except -1
    cdef int save(self, Pausing pausing, object keeping, object progress) except -1
    cdef int note_paused(self, Pausing pausing, object keeping, object owner) except -1
    cdef int undo_pauses(self, list begun) except -1
    cdef bytes_t end_pause(self, Pausing pausing) except? 0
    # Ids of the pools that a tag, a Pool or a Tenant stands for. The second kind is None for a Tenant.
    cdef list pools_named(self, object whose)
    cdef list pools_with(self, uint64_t first, uint64_t second)
    cdef list pools_to_pause(self, object whose)
    cdef list pools_to_resume(self, object whose)
    # By id of the pool, in which pools a tenant has blocks, and a block of another one in each pool with any.
    cdef tuple pools_of_tenant(self, str name)
    # Memory under all of the pools that are asleep, or none: the ids of those whose contents are to be brought back.
    cdef list begin_resume(self, list pools)
    cdef int begin_resume_pool(self, uint64_t first, uint64_t second, list begun) except -1
    cdef int begin_with_handlers(self, uint64_t first, uint64_t second, object error, list begun) except -1
    cdef int finish_resume(self, list pools, object progress) except -1
    cdef Waking plan_waking(self, uint64_t first, uint64_t second)
    cdef int wake(self, list waking) except -1
    cdef int forget_gone(self) except -1        # contents of pools that are gone
    cdef int require_awake(self, address_t address) except -1
    cdef void sleep_on(self, list pools) noexcept       # without memory again, as before `begin_resume`
    # For writers other than the program: a pool that gets no requests any more is about to lose its memory,
    # and has it again, with its contents or without.
    cdef int falls_asleep(self, uint64_t first, uint64_t second) except -1
    cdef int has_woken(self, uint64_t first, uint64_t second, bint kept) except -1
    cdef int note_asleep(self, list ranges, str words) except -1
    cdef int forget_asleep(self, list ranges) except -1
    cdef int tell(self) except -1               # who asked to be told (`_tell`)
    cdef str words_of_pool(self, uint64_t first, uint64_t second)
    cdef object name_of_pool(self, uint64_t first, uint64_t second)
