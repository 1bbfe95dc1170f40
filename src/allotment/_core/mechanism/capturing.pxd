"""Whether the caller is inside a graph capture.

Inside a capture no work runs: an event recorded there does not tell when work is done, and an event of work outside
must not be queried. So the engine cannot wait for a block that other streams used, and defers its free. PyTorch's
versions differ in which callers are inside (`only_captures_defer` of the rules): every caller while anything is routed
to a pool, or only a caller whose current stream is being captured while some route follows a capture.

A route follows a capture if its filter asks about captures: by a capture's number, or through a function.
"""

from allotment._core.contract.types cimport capture_t, stream_t
from allotment._core.model.model cimport Block, Engine, Failure

cdef bint capture_of(Engine* engine, stream_t stream, capture_t* capture, Failure* failure) noexcept nogil
cdef bint inside_capture(Engine* engine, stream_t otherwise, bint* inside, Failure* failure) noexcept nogil
# Whether a stream that got memory is in a capture now, on any thread; conservative where the device cannot tell.
cdef bint is_captured(Engine* engine) noexcept nogil
cdef bint is_used_in_capture(Engine* engine, const Block* block) noexcept nogil


cdef inline bint is_inside_capture(Engine* engine, stream_t otherwise, bint* inside, Failure* failure) noexcept nogil:
    """Whether the caller is inside a capture; `otherwise` is its stream if the thread has no current stream.

    Returns False, with the reason in `failure`, if the device call fails.
    """
    inside[0] = False
    return engine.routes == NULL or inside_capture(engine, otherwise, inside, failure)
