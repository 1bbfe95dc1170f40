"""A word about paused memory, said when it is touched.

Addresses of paused memory have none, so that touching them ends the process with SIGSEGV, as any such address does.
What is paused is noted here, and a handler in front of the one that was there says whose it was; then the other has
its turn, and ends the process as it would have without this one.
"""

from allotment._core.contract.types cimport address_t, bytes_t

cdef bint note_asleep(address_t base, bytes_t size, const char* words) noexcept nogil    # False: no room for more
cdef void forget_asleep(address_t base) noexcept nogil
