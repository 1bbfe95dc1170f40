from allotment._allocators.caching.allocator cimport Allocator
from allotment._core.contract.table cimport CAN_VIRTUAL, Device
from allotment._core.contract.types cimport bytes_t, stream_t
from allotment._core.engine cimport engine_leave, engine_reserve_ranges
from allotment._core.model.model cimport Failure
from allotment._core.model.rules cimport Rules, fill_rules
from allotment._core.model.sizes cimport Tuning
from allotment._core.model.tuning cimport fill_tuning
from allotment._core.records.stats cimport tally_now

import warnings

from allotment import _logs as logs
from allotment._rules import rules_of
from allotment.errors import SettingsError


cdef int apply_to_engine(Allocator allocator, object settings) except -1:
    cdef Tuning tuning
    cdef Rules rules
    chosen = rules_of(settings.compat)
    fill_tuning(&tuning, settings)
    fill_rules(&rules, chosen)
    reserves = reserves_of(allocator, settings, allocator.reserve_classes)
    if not allocator.present_settings().expandable_segments:
        warn_of_plain_segments(allocator.device, settings)   # first: a filter may make it an error
    allocator.enter()
    if chosen is not allocator.rules and (
            allocator.engine.first_range != NULL or tally_now(&allocator.engine.stats.reserved_bytes) > 0):
        engine_leave(allocator.engine)
        raise SettingsError(
            f"compat can change while nothing is reserved; {allocator.device.name} has memory placed by the rules of"
            f" {allocator.rules.version}: free all of it and call empty_cache() first",
            key="compat", value=settings.compat, allowed=allocator.rules.version)
    tuning.range_bytes = allocator.engine.tuning.range_bytes
    allocator.engine.tuning = tuning
    allocator.engine.rules = rules
    if tuning.release_lock:
        # From now on, threads come back from the device without the interpreter lock.
        allocator.engine.interpreter_guards = False
    engine_leave(allocator.engine)
    allocator.rules = chosen
    return apply_reserves(allocator, reserves)


cdef int warn_of_plain_segments(Device device, object settings) except -1:
    """Warn that the setting has no effect, as PyTorch does on platforms without virtual memory. It is no error."""
    if settings.expandable_segments and not device.table.capabilities & CAN_VIRTUAL:
        logs.plain_segments(device.name)
        warnings.warn(
            f"expandable_segments:True has no effect on {device.name}, which does not support virtual memory"
            " (range_reserve, map, ...); its segments are plain ones")
    return 0


cdef list reserves_of(Allocator allocator, object settings, dict classes):
    """Return (stream, bytes that ranges for it reserve) on this device; None means every stream without a class."""
    total = allocator.engine.total_memory
    whole = settings.expandable_segments_reserve
    by_class = dict(settings.expandable_segments_reserve_by_class)
    return [
        (None, 0 if whole is None else whole.bytes_of(total)),
        *[(stream, by_class[name].bytes_of(total) if name in by_class else 0)
          for stream, name in list(classes.items())],       # another thread may add one
    ]


cdef int apply_reserves(Allocator allocator, list reserves) except -1:
    """Tell the engine how much ranges reserve."""
    cdef stream_t handle
    cdef bytes_t size
    cdef Failure failure
    cdef bint ok
    for stream, size in reserves:
        handle = 0 if stream is None else stream
        ok = True
        allocator.enter()
        if stream is None:
            allocator.engine.tuning.range_bytes = size
        else:
            ok = engine_reserve_ranges(allocator.engine, handle, size, &failure)
        allocator.leave(ok, &failure)
    return 0
