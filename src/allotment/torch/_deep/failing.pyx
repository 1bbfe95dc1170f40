from libc.stdlib cimport free
from libc.string cimport memset, strdup

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport last_exception, last_failure
from allotment._core.model.model cimport FAILED_ADDRESS, Failure
from allotment.torch._deep.header cimport (
    ALLOTMENT_FAILED, ALLOTMENT_OUT_OF_MEMORY, ALLOTMENT_REJECTED, allotment_failure, allotment_points)
from allotment.torch._deep.served cimport served_at, used_allocator

from allotment._rules import rules_of
from allotment._texts import pytorch_out_of_memory
from allotment.errors import AddressError, OutOfMemoryError, PoolError, UnsupportedError

cdef extern from *:
    """
    static __thread allotment_failure allotment_failed;
    """
    allotment_failure failed "allotment_failed"

cdef dict POOL_WORDS = {    # by the reason of a PoolError
    "routed": "beginAllocateToPool: already recording to mempool_id",
    "not_routed": "endAllocatePool: not currently recording to mempool_id",
    "released": "Not expected to checkpoint freeable graph",
    "unknown": "Could not find pool of id",
}


cdef str words_of(object error):
    """Return a failure in PyTorch's wording, where it has one."""
    if isinstance(error, OutOfMemoryError):
        allocator = used_allocator(error.facts.device_index)
        return pytorch_out_of_memory(error.facts, rules=rules_of(allocator.settings.compat))
    if isinstance(error, PoolError) and error.reason in POOL_WORDS:
        return POOL_WORDS[error.reason]
    if isinstance(error, AddressError):
        return f"invalid device pointer: {error.address:#x}"
    if isinstance(error, UnsupportedError) and error.operation == "base_allocation":
        return (
            "Tensors allocated with expandable_segments:True cannot be shared between processes. Consider using"
            " expandable_segments:False in data loading workers via"
            " torch.cuda.memory._set_allocator_settings('expandable_segments:False')")
    return str(error)


cdef int kind_of(object error):
    if isinstance(error, OutOfMemoryError):
        return ALLOTMENT_REJECTED if error.facts.rejected else ALLOTMENT_OUT_OF_MEMORY
    return ALLOTMENT_FAILED


cdef int note(object error) noexcept:
    """Set an exception as the calling thread's failure; returns 0."""
    free(failed.text)
    memset(&failed, 0, sizeof(allotment_failure))
    failed.kind = ALLOTMENT_FAILED
    try:
        failed.kind = kind_of(error)
        if isinstance(error, OutOfMemoryError):
            facts = error.facts
            failed.rounded = facts.rounded
            failed.segment = facts.segment_size
            failed.most = facts.device_total if facts.limit is None else facts.limit
            failed.device_free = facts.device_free
            failed.allocated = facts.allocated
            failed.reserved = facts.reserved
        failed.text = strdup(words_of(error).encode())
    except BaseException as another:
        failed.text = strdup(repr(another).encode())
    return 0


cdef int fail(int device, const Failure* failure) noexcept with gil:
    """Set a failure of the engine as the calling thread's; returns 0."""
    cdef Allocator allocator
    try:
        allocator = used_allocator(device)
        return note(allocator.failed(failure))
    except BaseException as error:
        return note(error)


cdef const allotment_failure* failure() noexcept nogil:
    return &failed


cdef void take_failure(int device) noexcept with gil:
    try:
        error = last_exception(served_at(device).table)
        note(error)
    except BaseException as error:
        note(error)


cdef int is_not_ours() noexcept nogil:
    return last_failure().reason == FAILED_ADDRESS


cdef int called_from_inside() noexcept with gil:
    return note(RuntimeError("the allocator was called from its own callback; trackers and filters may only free"))


cdef void fill_failing(allotment_points* table) noexcept:
    table.failure = failure
    table.take_failure = take_failure
    table.is_not_ours = is_not_ours
