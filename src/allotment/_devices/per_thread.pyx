from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport stream_t

cdef extern from *:
    """
    #ifdef _MSC_VER
    #include <intrin.h>
    #define ALLOTMENT_OF_THREAD __declspec(thread)
    #define allotment_next_number(place) ((unsigned long long) _InterlockedIncrement64((volatile long long*) (place)))
    #else
    #define ALLOTMENT_OF_THREAD __thread
    #define allotment_next_number(place) __atomic_add_fetch(place, 1, __ATOMIC_RELAXED)
    #endif
    static ALLOTMENT_OF_THREAD unsigned long long allotment_own_stream;
    """
    uint64_t own_stream "allotment_own_stream"
    uint64_t next_number "allotment_next_number"(uint64_t* place) nogil

cdef uint64_t numbered = 0


cdef stream_t own_thread_stream() noexcept nogil:
    global own_stream
    if own_stream == 0:
        own_stream = (<uint64_t> TAG << TAG_SHIFT) | next_number(&numbered)
    return own_stream


def thread_stream() -> int:
    """Return the number by which allocators know the calling thread's own default stream."""
    return own_thread_stream()


def is_own(stream: int) -> bool:
    """Whether a number is that of the calling thread's own default stream."""
    return stream == own_thread_stream()
