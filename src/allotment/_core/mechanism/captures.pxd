"""Effects of a graph capture: no event may be touched, and a device allocation needs relaxed capture.

A free that other streams must finish with is deferred until events can be recorded (`streams`). With stream reuse, the
deferred free also remembers the last nodes that the capture has on each of these streams. Once all of these nodes come
before the next node of a stream, the graph itself orders the reuse, and the free completes at once:

    stream A   ──1──2──(free here, B uses it too: markers 2, 4)──────────6──7──   reachable from 7: all of 1 .. 6
    stream B   ──3──4───────────────────────────────────────5──/
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport capture_t, stream_t
from allotment._core.model.model cimport Block, Deferred, Engine, Failure

cdef Deferred* deferral_prepare(Engine* engine, Block* block, bint captured, Failure* failure) noexcept nogil
cdef bint reuse_in_capture(Engine* engine, stream_t stream, uint32_t context, Failure* failure) noexcept nogil
cdef bint forget_capture(Engine* engine, capture_t capture, Failure* failure) noexcept nogil
cdef void captures_clear(Engine* engine) noexcept nogil
cdef bint relax_capture(Engine* engine, stream_t stream) noexcept nogil
cdef void end_relaxed_capture(Engine* engine, bint relaxed) noexcept nogil
