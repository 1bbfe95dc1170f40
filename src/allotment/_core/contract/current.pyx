from libc.stdint cimport uint64_t

from allotment._core.contract.current cimport CurrentStream, flag_set
from allotment._core.contract.types cimport stream_t

cdef extern from *:
    """
    #ifdef _MSC_VER
    static __declspec(thread) void* allotment_current_stream = 0;
    #else
    static __thread void* allotment_current_stream = 0;
    #endif
    """
    void* innermost "allotment_current_stream"

cdef int any_entered = 0


cdef void current_enter(CurrentStream* entered, uint64_t device, stream_t stream) noexcept nogil:
    """pre: `entered` does not move in memory until the thread leaves it"""
    global innermost
    entered.device = device
    entered.stream = stream
    entered.outer = <CurrentStream*> innermost
    innermost = entered
    flag_set(&any_entered)


cdef bint current_leave(CurrentStream* entered) noexcept nogil:
    """Return False if this thread has not entered it. Coroutines do not always leave their contexts in order."""
    global innermost
    cdef CurrentStream* inner = <CurrentStream*> innermost
    if inner == entered:
        innermost = entered.outer
        return True
    while inner != NULL and inner.outer != entered:
        inner = inner.outer
    if inner == NULL:
        return False
    inner.outer = entered.outer
    return True


cdef CurrentStream* current_find(uint64_t device, stream_t stream) noexcept nogil:
    """Return this thread's innermost entry for the stream, or NULL."""
    cdef CurrentStream* at = <CurrentStream*> innermost
    while at != NULL and (at.device != device or at.stream != stream):
        at = at.outer
    return at


cdef stream_t current_stream(uint64_t device, stream_t otherwise) noexcept nogil:
    cdef CurrentStream* at = <CurrentStream*> innermost
    while at != NULL:
        if at.device == device:
            return at.stream
        at = at.outer
    return otherwise
