"""The calling thread's current stream of a device.

A request that names no stream uses the current one. A request may also name a different stream from the one on which
its caller works. Each thread has one current stream per device: the one that it entered last and has not left. If a
thread has entered none, the request's own stream counts as current; a request without a stream uses the default stream.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport stream_t

cdef struct CurrentStream:
    uint64_t device             # `serial` of its table in the contract: an entry may outlive the device
    stream_t stream
    CurrentStream* outer        # the previously current stream

cdef void current_enter(CurrentStream* entered, uint64_t device, stream_t stream) noexcept nogil
cdef bint current_leave(CurrentStream* entered) noexcept nogil
cdef CurrentStream* current_find(uint64_t device, stream_t stream) noexcept nogil
cdef stream_t current_stream(uint64_t device, stream_t otherwise) noexcept nogil

cdef extern from *:
    """
    #ifndef ALLOTMENT_CURRENT
    #define ALLOTMENT_CURRENT
    #ifdef _MSC_VER
    #define allotment_flag_load(flag) (*(volatile int*) (flag))
    #define allotment_flag_set(flag) (*(volatile int*) (flag) = 1)
    #else
    #define allotment_flag_load(flag) __atomic_load_n(flag, __ATOMIC_RELAXED)
    #define allotment_flag_set(flag) __atomic_store_n(flag, 1, __ATOMIC_RELAXED)
    #endif
    #endif
    """
    int flag_load "allotment_flag_load"(const int* flag) noexcept nogil
    void flag_set "allotment_flag_set"(int* flag) noexcept nogil

# Whether any thread has ever entered a stream. If none has, a request without a stream pays only one branch.
cdef int any_entered


cdef inline stream_t stream_in_use(uint64_t device) noexcept nogil:
    """Return the stream of a request that names none."""
    return current_stream(device, 0) if flag_load(&any_entered) else 0
