from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.sizes cimport whole_size
from allotment._core.contract.types cimport bytes_t
from allotment._core.edge.rehearsal cimport (
    NOT_REFUSED, REFUSED_ALLOCATOR, REFUSED_DEFERRED, REFUSED_FILTER, REFUSED_PLACEMENT, Rehearsal, Wish, rehearse)
from allotment._core.tools.arguments cimport SIZE_BITS, read_size

from allotment._allocators.caching.plan import Plan
from allotment.errors import UnsupportedError

cdef dict REFUSALS = {
    <int> REFUSED_PLACEMENT: "plan: memory under placement:dense cannot be rehearsed; it can under placement:torch",
    <int> REFUSED_ALLOCATOR: "plan: requests are routed to a pool with its own allocator, which cannot be tried"
                             " without changing it",
    <int> REFUSED_FILTER: "plan: requests are routed by a function or by a capture, which cannot be asked in advance",
    <int> REFUSED_DEFERRED: "plan: freed blocks wait for the end of a capture, or of routing; call plan after that",
}


cdef object plan_requests(Allocator allocator, object requests):
    cdef Wish* wishes
    cdef Rehearsal found
    cdef bint ok
    cdef size_t i, count
    wanted = [read_wish(allocator, request) for request in requests]
    kept = [i for i, (size, _) in enumerate(wanted) if size > 0]
    count = len(kept)
    wishes = <Wish*> malloc((count + 1) * sizeof(Wish))
    if wishes == NULL:
        raise MemoryError("the host has no memory for the requests")
    try:
        for i, number in enumerate(kept):
            wishes[i].size, wishes[i].stream = wanted[number]
        allocator.require_open()
        allocator.enter()
        with nogil:
            ok = rehearse(allocator.engine, wishes, count, &found)
    finally:
        free(wishes)
    if found.refusal != NOT_REFUSED:
        raise UnsupportedError(REFUSALS[<int> found.refusal])
    if not ok:
        raise allocator.failed(&found.failure)
    return Plan(found.fits, found.new_reserved, None if found.fits else kept[found.served])


cdef tuple read_wish(Allocator allocator, object request):
    """Return size and stream of a request. A request that no device can serve has the largest possible size."""
    cdef bytes_t size = 0
    if isinstance(request, tuple) and len(request) != 2:
        raise TypeError(f"a request is a size or (size, stream), not {request!r}")
    given, stream = request if isinstance(request, tuple) else (request, None)
    if not read_size(whole_size(given), &size):
        size = (<bytes_t> 1 << SIZE_BITS) - 1
    return size, allocator.stream_asked(stream)
