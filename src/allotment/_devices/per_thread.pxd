"""Default streams that each thread has for itself.

CUDA has one handle, 2, for all of them: the stream that it names is the calling thread's. To an engine they must be
different streams, or memory freed on one would be reused on another at once. So each thread's gets a number, which no
thread that comes later has again. Whoever gives work to such a number translates it:

    its own thread      that thread's default stream
    any other thread    the legacy default stream, which comes after all that per-thread streams were given until now:
                        an event there covers what one thread cannot record for another
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport stream_t

cdef enum:
    TAG_SHIFT = 56
    TAG = 0x6B                  # in the uppermost byte, where no address has anything

cdef inline bint is_thread_stream(stream_t stream) noexcept nogil:
    return stream >> TAG_SHIFT == TAG

# The number of the calling thread's default stream.
cdef stream_t own_thread_stream() noexcept nogil
