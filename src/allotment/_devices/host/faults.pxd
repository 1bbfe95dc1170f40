"""A message about paused memory, printed when it is touched.

Addresses of paused memory have no memory, so touching them ends the process with SIGSEGV. This module keeps a list of
paused ranges. Its signal handler prints which tag the address belongs to; then it restores the previous handler, which
ends the process as it would have without this one.
"""

from allotment._core.contract.types cimport address_t, bytes_t

cdef bint note_asleep(address_t base, bytes_t size, const char* words) noexcept nogil    # False: the list is full
cdef void forget_asleep(address_t base) noexcept nogil
