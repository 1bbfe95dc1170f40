from allotment._core.contract.current cimport current_stream
from allotment._core.contract.table cimport INVALID, OK, status_t
from allotment._core.contract.types cimport capture_t, stream_t
from allotment._core.mechanism.failure cimport device_failed
from allotment._core.model.model cimport (
    FILTER_CAPTURE, FILTER_FUNCTION, Block, Engine, Failure, FreeList, Half, Route, StreamUse)


cdef bint capture_of(Engine* engine, stream_t stream, capture_t* capture, Failure* failure) noexcept nogil:
    """Return the capture that a stream is in; 0 if none."""
    cdef status_t status
    capture[0] = 0
    if engine.table.capture_status == NULL:
        return True
    status = engine.table.capture_status(engine.table.self, stream, capture)
    if status == INVALID:
        return True         # a destroyed stream is in no capture
    return True if status == OK else device_failed(failure, status, b"capture_status")


cdef bint inside_capture(Engine* engine, stream_t otherwise, bint* inside, Failure* failure) noexcept nogil:
    """Implement `is_inside_capture` while something is routed. pre: engine.routes != NULL"""
    cdef capture_t capture
    inside[0] = not engine.rules.only_captures_defer
    if inside[0] or engine.impure_routes == 0:
        return True
    if not capture_of(engine, current_stream(engine.table.serial, otherwise), &capture, failure):
        return False
    inside[0] = capture != 0
    return True


cdef bint is_captured(Engine* engine) noexcept nogil:
    cdef Route* route = engine.routes if engine.impure_routes > 0 else NULL
    while route != NULL:
        if (route.filter.kind == FILTER_CAPTURE or route.filter.kind == FILTER_FUNCTION and (
                is_half_captured(engine, &route.pool.small) or is_half_captured(engine, &route.pool.large))):
            return True
        route = route.older
    return False


cdef bint is_half_captured(Engine* engine, const Half* half) noexcept nogil:
    cdef const FreeList* free_list = half.free_lists
    cdef capture_t capture = 0
    cdef Failure failure
    while free_list != NULL:
        if not capture_of(engine, free_list.stream.handle, &capture, &failure) or capture != 0:
            return True
        free_list = free_list.next
    return False


cdef bint is_used_in_capture(Engine* engine, const Block* block) noexcept nogil:
    """Whether a stream that uses a block is being captured: an event recorded there would tell nothing."""
    cdef StreamUse* use = block.uses
    cdef capture_t capture = 0
    cdef Failure failure
    while use != NULL and engine.impure_routes > 0:
        if capture_of(engine, use.stream.handle, &capture, &failure) and capture != 0:
            return True
        use = use.next
    return False
