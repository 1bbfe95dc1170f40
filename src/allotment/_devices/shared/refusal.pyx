# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a scheduler's mutex must never wait for that.
"""The calling thread's last refusal."""

from libc cimport errno
from libc.errno cimport ENOMEM, ENOSPC
from libc.stdio cimport snprintf
from libc.string cimport memcpy, strlen

from allotment._core.contract.table cimport DEVICE_ERROR, OUT_OF_MEMORY

cdef enum:
    TEXT_CAPACITY = 256

cdef extern from *:
    """
    static __thread char allotment_refusal[256];
    """
    char* text_of_thread "allotment_refusal"


cdef status_t refuse(status_t status, const char* text) noexcept nogil:
    snprintf(text_of_thread, TEXT_CAPACITY, b"%s", text)
    return status


cdef status_t refuse_number(status_t status, const char* format, uint64_t number) noexcept nogil:
    snprintf(text_of_thread, TEXT_CAPACITY, format, <unsigned long long> number)
    return status


cdef status_t refuse_system(const char* call, int error) noexcept nogil:
    errno.errno = error         # %m is its text, made without a buffer that threads share
    snprintf(text_of_thread, TEXT_CAPACITY, b"%s: %m", call)
    if error == ENOMEM or error == ENOSPC:
        return OUT_OF_MEMORY
    return DEVICE_ERROR


cdef size_t last_refusal(char* text, size_t capacity) noexcept nogil:
    cdef size_t length = min(strlen(text_of_thread), capacity)
    memcpy(text, text_of_thread, length)
    return length


cdef void forget_refusal() noexcept nogil:
    text_of_thread[0] = 0
