"""Text of why the calling thread's last call was refused: what `describe` of the contract returns.

A contract function ends with one of these when it refuses. Each thread has its own text, so no thread reads another's
reason, and no lock is needed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t

# Each stores its text and returns `status`, or the status for the system's error number.
cdef status_t refuse(status_t status, const char* text) noexcept nogil
cdef status_t refuse_number(status_t status, const char* format, uint64_t number) noexcept nogil
cdef status_t refuse_system(const char* call, int error) noexcept nogil

cdef size_t last_refusal(char* text, size_t capacity) noexcept nogil
cdef void forget_refusal() noexcept nogil
