"""Makes the exception for a failure from the failure's facts."""

from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.raising cimport device_error, name_of_operation, take_cause
from allotment._core.contract.table cimport OUT_OF_MEMORY, Device
from allotment._core.model.model cimport (
    FAILED_ADDRESS, FAILED_ALREADY_ROUTING, FAILED_CHECKPOINT_CAPTURE, FAILED_CHECKPOINT_EVENTS,
    FAILED_CHECKPOINT_MISMATCH, FAILED_DEVICE,
    FAILED_EXACT_ADDRESS, FAILED_EXPANDABLE_BASE, FAILED_GIVEN_ADDRESS, FAILED_HOST_MEMORY, FAILED_NOT_ROUTING,
    FAILED_OUT_OF_MEMORY, FAILED_PAUSE_CAPTURE, FAILED_PAUSE_PLACEMENT, FAILED_PAUSE_PLAIN, FAILED_PAUSE_SHARED,
    FAILED_PAUSED,
    FAILED_POOL_FREEABLE, FAILED_POOL_ID, FAILED_POOL_IN_USE, FAILED_POOL_PLACEMENT,
    FAILED_POOL_UNKNOWN, FAILED_REJECTED, FAILED_STILL_CAPTURING, LIMIT_OF_ALLOCATOR, LIMIT_OF_POOL, LIMIT_OF_TENANT,
    PROMISED_TO_POOL, Failure)
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.records.tags cimport TAGS_MOST, tag_name, tag_pool_id
from allotment._core.records.tenants cimport tenant_name

from allotment.errors import (
    AddressError, CaptureError, CheckpointError, DeviceError, OutOfMemoryError, OutOfMemoryFacts, PausedError,
    PoolError, UnsupportedError)

cdef dict POOL_FAILURES = {     # the reason that the exception names, and its text
    FAILED_POOL_UNKNOWN: ("unknown", "there is no {pool}: nobody made it, or it is closed and its memory is gone"),
    FAILED_POOL_FREEABLE: (
        "released",
        "the last user of {pool} has released it; make another pool, or wait until the memory of this one is gone"),
    FAILED_POOL_IN_USE: (
        "exists",
        "{pool} exists already, and its allocator and placement cannot change; make another pool"),
    FAILED_POOL_ID: ("no_id", "invalid pool id of {pool}; an id is (0, n) or (n, 0) with n >= 1"),
    FAILED_POOL_PLACEMENT: (
        "placement", "{pool} does not support whole segments (no_split); create it with placement='torch', which does"),
    FAILED_ALREADY_ROUTING: (
        "routed",
        "requests are being routed to {pool} already (already recording to mempool_id); end_allocate_to_pool first"),
    FAILED_NOT_ROUTING: (
        "not_routed", "no requests are being routed to {pool} (not currently recording to mempool_id)"),
}


cdef tuple processes_on(Device device):
    """Return the processes that hold memory there, if the device can tell.

    An error here must not replace the report.
    """
    try:
        return tuple([(int(process), int(size)) for process, size in device.processes()])
    except Exception:
        return ()


cdef str tag_of_pool(uint64_t first, uint64_t second):
    if first != 0 or not tag_pool_id(0) < second <= tag_pool_id(TAGS_MOST):
        return ""
    return tag_name(<uint32_t> (second - tag_pool_id(0)))


cdef str pool_words(uint64_t first, uint64_t second):
    tag = tag_of_pool(first, second)
    return f"tag {tag!r}" if tag else f"pool ({first}, {second})"


cdef str limiter_of(const Failure* failure):
    if failure.limiter == LIMIT_OF_ALLOCATOR:
        return "the allocator"
    if failure.limiter == LIMIT_OF_TENANT:
        return f"tenant {tenant_name(failure.context) or ''!r}"
    if failure.limiter == LIMIT_OF_POOL:
        return pool_words(failure.limiting_first, failure.limiting_second)
    if failure.limiter == PROMISED_TO_POOL:
        return f"reserved for {pool_words(failure.limiting_first, failure.limiting_second)}"
    return None


cdef object paused_error(Device device, const Failure* failure):
    words = pool_words(failure.pool_first, failure.pool_second)
    tag = tag_of_pool(failure.pool_first, failure.pool_second)
    if failure.reason == FAILED_PAUSED:
        return PausedError(
            f"{words} on {device.name} is paused, or is being paused or resumed: its addresses have no usable memory; "
            "resume it first", tag=tag)
    if failure.reason == FAILED_PAUSE_SHARED:
        return PausedError(
            f"{words} on {device.name} cannot be paused: another process may have its block at {failure.address:#x} "
            "open; close the handle first", tag=tag)
    if failure.reason == FAILED_PAUSE_CAPTURE:
        return PausedError(
            f"{words} on {device.name} cannot be paused or resumed now: a graph is being captured, which waiting for "
            "the device would break; end the capture first", tag=tag)
    if failure.reason == FAILED_PAUSE_PLACEMENT:
        return UnsupportedError(
            f"{words} on {device.name} cannot be paused: it uses "
            f"placement:{(<bytes> failure.fault).decode()}, which cannot release memory and keep its "
            "addresses; make the pool with placement='torch'", operation="pause")
    return UnsupportedError(
        f"{device.name} does not support pausing {words}: its segment at {failure.address:#x} is plain memory, which "
        "cannot be released without its addresses; pausing needs virtual memory (range_reserve, map, ...), "
        "which a tag's memory uses if the device supports it", operation="pause")


cdef object out_of_memory(Device device, const Failure* failure):
    error = OutOfMemoryError(OutOfMemoryFacts(
        device=device.name,
        device_index=device.table.device,
        requested=failure.requested,
        rounded=failure.rounded,
        segment_size=failure.segment,
        device_free=failure.device_free,
        device_total=failure.device_total,
        limit=failure.limit if failure.limited else None,
        allocated=failure.allocated,
        reserved=failure.reserved,
        private_free=failure.private_free,
        largest_free=failure.largest_free,
        joinable=failure.joinable if failure.joins else None,
        stream=failure.stream,
        expandable=failure.expandable,
        range_bytes=failure.range_bytes or None,
        rejected=failure.reason == FAILED_REJECTED,
        address_space=failure.no_addresses,
        limited_by=limiter_of(failure),
        pool=(failure.pool_first, failure.pool_second),
        tag=tag_of_pool(failure.pool_first, failure.pool_second),
        tenant=tenant_name(failure.context) or "",
        waiting=failure.waiting,
        frees=failure.frees,
        processes=processes_on(device),
    ))
    error.__cause__ = take_cause(&device.table, OUT_OF_MEMORY)
    return error


cdef object failure_error(Device device, const Failure* failure):
    """Return the exception for a failed operation; the caller raises it."""
    if failure.reason == FAILED_OUT_OF_MEMORY or failure.reason == FAILED_REJECTED:
        return out_of_memory(device, failure)
    if failure.reason in (
            FAILED_PAUSED, FAILED_PAUSE_CAPTURE, FAILED_PAUSE_PLAIN, FAILED_PAUSE_PLACEMENT, FAILED_PAUSE_SHARED):
        return paused_error(device, failure)
    if failure.reason == FAILED_EXACT_ADDRESS:
        why = f"blocks begin at multiples of {MIN_BLOCK}"
        if failure.address % MIN_BLOCK == 0:
            why = f"on {device.name}, no free block of this pool and stream contains all of it"
        return AddressError(f"cannot allocate at {failure.address:#x}: {why}", failure.address)
    if failure.reason == FAILED_DEVICE:
        return device_error(device, failure.status, (<bytes> failure.operation).decode())
    if failure.reason == FAILED_HOST_MEMORY:
        return MemoryError("the host has no memory for the allocator's own records")
    if failure.reason == FAILED_ADDRESS:
        return AddressError(
            f"invalid device pointer: {failure.address:#x} is not the start of a block in use on {device.name}; "
            "it was never allocated here, lies inside a block, or has been freed", failure.address)
    if failure.reason == FAILED_GIVEN_ADDRESS:
        operation = (<bytes> failure.operation).decode()
        return DeviceError(
            f"{device.name}: {name_of_operation(device, operation)} returned {failure.address:#x} "
            f"for {failure.requested} bytes, "
            f"{(<bytes> failure.fault).decode()}", operation=operation)
    if failure.reason == FAILED_EXPANDABLE_BASE:
        return UnsupportedError(
            f"{device.name}: a block of an expandable segment does not have a base allocation; "
            "set expandable_segments:False for memory that is shared by its base", operation="base_allocation")
    if failure.reason in POOL_FAILURES:
        pool = f"{pool_words(failure.pool_first, failure.pool_second)} on {device.name}"
        reason, text = POOL_FAILURES[failure.reason]
        return PoolError(text.format(pool=pool), reason=reason)
    if failure.reason == FAILED_STILL_CAPTURING:
        return CaptureError(
            f"a stream of {device.name} that allocated in this capture is still being captured; end the capture first")
    if failure.reason == FAILED_CHECKPOINT_EVENTS:
        return CheckpointError(
            f"a block of the pool on {device.name} was freed and still waits for other streams, or is shared with "
            "another process; synchronize the streams, and allocate once, or close the handle, first")
    if failure.reason == FAILED_CHECKPOINT_CAPTURE:
        return CheckpointError(
            f"a stream of {device.name} that uses the block at {failure.address:#x} is being captured and cannot be "
            "waited for; end the capture first")
    assert failure.reason == FAILED_CHECKPOINT_MISMATCH
    return CheckpointError(
        f"the pool's memory at {failure.address:#x} on {device.name} was released or has grown since the state was "
        "taken; the pool is unchanged: take a new state")
