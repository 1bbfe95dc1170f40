"""Why the calling thread's last call was refused, in words: what `describe` of the contract gives.

A function of the contract ends with one of these when it cannot do what it was asked. The text is kept per
thread, so no thread reads another's reason and no lock is taken.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport status_t

# Each keeps its text and returns `status`, or what the system's error number stands for.
cdef status_t refuse(status_t status, const char* text) noexcept nogil
cdef status_t refuse_number(status_t status, const char* format, uint64_t number) noexcept nogil
cdef status_t refuse_system(const char* call, int error) noexcept nogil

cdef size_t last_refusal(char* text, size_t capacity) noexcept nogil
cdef void forget_refusal() noexcept nogil
