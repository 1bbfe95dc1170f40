"""Whether the caller is inside a graph capture.

Inside a capture nothing runs: an event recorded there does not tell when work is done, and an event of work outside
must not be asked for. So a block that other streams used cannot be waited for, and its free is put off. Who is inside
differs between the versions of PyTorch (`only_captures_defer` of the rules): whoever calls while anything at all is
routed to a pool, or whoever's current stream is being captured while some route follows a capture.

A route that follows a capture is one that asks: by the capture's number, or by somebody's function.
"""

from allotment._core.contract.types cimport capture_t, stream_t
from allotment._core.model.model cimport Block, Engine, Failure

cdef bint capture_of(Engine* engine, stream_t stream, capture_t* capture, Failure* failure) noexcept nogil
cdef bint inside_capture(Engine* engine, stream_t otherwise, bint* inside, Failure* failure) noexcept nogil
cdef bint is_used_in_capture(Engine* engine, const Block* block) noexcept nogil


cdef inline bint is_inside_capture(Engine* engine, stream_t otherwise, bint* inside, Failure* failure) noexcept nogil:
    """Whether the caller is inside a capture; `otherwise` is its stream if it has no current one.

    False with the reason in `failure` if the device would not say.
    """
    inside[0] = False
    return engine.routes == NULL or inside_capture(engine, otherwise, inside, failure)
