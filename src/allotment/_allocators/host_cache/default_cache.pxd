"""The default allocator of host memory: each thread's installed cache, or the system without one.

With a cache installed, everything goes through it. Without one, a request goes to the system and is not recorded. A
free removes the memory from the allocation map and returns it to the system that it came from: so memory that was
allocated with a cache and is freed without one really returns. Memory on a free list is refused then: its next owner
would share it with the next user of the system.
"""

from allotment._allocators.host_cache.allocation_map cimport Outcome
from allotment._allocators.host_cache.exact_cache cimport Cache
from allotment._core.contract.types cimport address_t, bytes_t

# For the calling thread only. NULL is off; the caller keeps the cache alive while it is installed.
cdef void install_cache(Cache* cache) noexcept nogil

cdef Outcome default_allocate(bytes_t size, address_t* address) noexcept nogil
cdef Outcome default_free(address_t address) noexcept nogil

# Other code is freeing the memory. ALREADY_FREE if a checked cache has it.
cdef Outcome record_free(address_t address) noexcept nogil
