"""Per-thread default streams.

CUDA has one handle, 2, for all of them: it names the calling thread's stream. To an engine they must be different
streams, or it would reuse memory freed on one of them on another at once. So each thread's stream gets a unique number,
which no later thread gets again. Code that submits work to such a number translates it:

    its own thread      that thread's default stream
    any other thread    the legacy default stream, which is ordered after all work of per-thread streams so far: an
                        event there covers what one thread cannot record for another
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport stream_t

cdef enum:
    TAG_SHIFT = 56
    TAG = 0x6B                  # in the top byte, which no address uses

cdef inline bint is_thread_stream(stream_t stream) noexcept nogil:
    return stream >> TAG_SHIFT == TAG

# Returns the number of the calling thread's default stream.
cdef stream_t own_thread_stream() noexcept nogil
