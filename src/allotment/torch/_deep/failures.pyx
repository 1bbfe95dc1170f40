from libc.stdlib cimport free
from libc.string cimport memset, strdup

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.entry_points cimport last_exception, last_failure
from allotment._core.model.model cimport FAILED_ADDRESS, Failure
from allotment.torch._deep.bound_devices cimport bound, bound_allocator
from allotment.torch._deep.header cimport (
    ALLOTMENT_FAILED, ALLOTMENT_OUT_OF_MEMORY, ALLOTMENT_REJECTED, allotment_failure, allotment_interface)

from allotment._rules import rules_of
from allotment._texts import pytorch_out_of_memory
from allotment.errors import AddressError, OutOfMemoryError, PoolError, UnsupportedError

cdef extern from *:
    """
    static __thread allotment_failure allotment_failed;
    """
    allotment_failure last "allotment_failed"

cdef dict POOL_MESSAGES = {     # by the reason of a PoolError
    "routed": "beginAllocateToPool: already recording to mempool_id",
    "not_routed": "endAllocatePool: not currently recording to mempool_id",
    "released": "Not expected to checkpoint freeable graph",
    "unknown": "Could not find pool of id",
}


cdef str message_of(object error):
    """Return PyTorch's message for a failure; our own if PyTorch has none."""
    if isinstance(error, OutOfMemoryError):
        allocator = bound_allocator(error.facts.device_index)
        return pytorch_out_of_memory(error.facts, rules=rules_of(allocator.settings.compat))
    if isinstance(error, PoolError) and error.reason in POOL_MESSAGES:
        return POOL_MESSAGES[error.reason]
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


cdef int set_failure(object error) noexcept:
    """Set an exception as the calling thread's failure; returns 0."""
    free(last.text)
    memset(&last, 0, sizeof(allotment_failure))
    last.kind = ALLOTMENT_FAILED
    try:
        last.kind = kind_of(error)
        if isinstance(error, OutOfMemoryError):
            facts = error.facts
            last.rounded = facts.rounded
            last.segment = facts.segment_size
            last.most = facts.device_total if facts.limit is None else facts.limit
            last.device_free = facts.device_free
            last.allocated = facts.allocated
            last.reserved = facts.reserved
        last.text = strdup(message_of(error).encode())
    except BaseException as another:
        last.text = strdup(repr(another).encode())
    return 0


cdef int set_engine_failure(int device, const Failure* failure) noexcept with gil:
    """Set a failure of the engine as the calling thread's; returns 0."""
    cdef Allocator allocator
    try:
        allocator = bound_allocator(device)
        return set_failure(allocator.failed(failure))
    except BaseException as error:
        return set_failure(error)


cdef const allotment_failure* failure() noexcept nogil:
    return &last


cdef void take_failure(int device) noexcept with gil:
    try:
        error = last_exception(bound(device).entry_points)
        set_failure(error)
    except BaseException as error:
        set_failure(error)


cdef int was_unknown_address() noexcept nogil:
    return last_failure().reason == FAILED_ADDRESS


cdef int called_from_inside() noexcept with gil:
    return set_failure(
        RuntimeError("the allocator was called from one of its own callbacks; trackers and filters may only free"))


cdef void fill_failures(allotment_interface* table) noexcept:
    table.failure = failure
    table.take_failure = take_failure
    table.was_unknown_address = was_unknown_address
