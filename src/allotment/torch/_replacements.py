"""Functions of PyTorch's caching allocator that PyTorch does not route to a plug-in, implemented on our allocator.

PyTorch passes a few kinds of calls on to a pluggable allocator and refuses everything else. The functions here replace
the refused ones: each has the arguments, the result and the errors of the `torch._C` function that `REPLACEMENTS` names
for it.

A device counts as used once it has a context. An unused device has no allocator, and a question about it must not make
one, because a context takes hundreds of MiB in every process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import torch  # type: ignore[import-not-found]

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.pool import PoolId
from allotment._core.edge.snapshot import assembled
from allotment._core.edge.words import BlockState, word_of
from allotment._core.records.history import get_user_metadata, set_user_metadata
from allotment._settings import parse_leniently, pytorch_caching_disabled
from allotment.errors import AddressError, OutOfMemoryFacts, PoolError, SettingsError
from allotment.torch._process_state import process_state

BACKEND = "allotment"
"""What `torch.cuda.get_allocator_backend` says."""

# Read here, because the patch replaces it later; a PyTorch before 2.8 has another.
_set_settings_of_torch: Callable[[str], None] = getattr(
    torch._C, "_accelerator_setAllocatorSettings", lambda settings: None
)


def allocator_of(device: int) -> Allocator:
    """The allocator that serves PyTorch on a device."""
    if process_state.deep:
        from allotment.torch._deep import bound_devices

        return bound_devices.allocator_of(device)
    from allotment.torch import _hooks as hooks

    return hooks.allocator_of(device)


def used_devices() -> list[int]:
    """The current device, and every other that has a context."""
    if not torch.cuda.is_initialized():
        return []
    return [device for device in range(torch.cuda.device_count()) if _is_used(device)]


def _is_used(device: int) -> bool:
    return bool(device == torch.cuda.current_device() or torch._C._cuda_hasPrimaryContext(device))


def _checked(device: int, complaint: str = "Invalid device argument {}") -> int:
    if not torch.cuda.is_initialized() or not 0 <= device < torch.cuda.device_count():
        raise RuntimeError(f"{complaint.format(device)}: did you call init?")
    return device


def _checked_for_fraction(device: int) -> int:
    """The message that PyTorch raises where it looks up the allocator instead of the device."""
    return _checked(device, "Allocator not initialized for device {}")


# -- Figures ---------------------------------------------------------------------------------------------------------


def nested_stats(device: int) -> dict[str, Any]:
    if _is_used(_checked(device)):
        return allocator_of(device).inspection.nested_stats()
    return _fresh(allocator_of(torch.cuda.current_device()).inspection.nested_stats())


def nested_accelerator_stats(device: int) -> dict[str, Any]:
    """Remove the counters that PyTorch shows only under `torch.cuda`."""
    return {key: value for key, value in nested_stats(device).items() if key not in _OF_CUDA_ONLY}


_OF_CUDA_ONLY = ("num_oom_rejections", "reserved_bytes_by_private_pools")


def _fresh(stats: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of an allocator with the same settings that never got a request."""
    return {
        key: _fresh(value) if isinstance(value, dict) else value if key == "max_split_size" else 0
        for key, value in stats.items()
    }


def reset_accumulated_stats(device: int) -> None:
    if _is_used(_checked(device)):
        allocator_of(device).inspection.reset_accumulated_stats()


def reset_peak_stats(device: int) -> None:
    if _is_used(_checked(device)):
        allocator_of(device).reset_peak_stats()


# -- Limits and settings ---------------------------------------------------------------------------------------------


def memory_fraction(device: int) -> float:
    return allocator_of(device).limits.memory_fraction if _is_used(_checked_for_fraction(device)) else 1.0


def set_memory_fraction(fraction: float, device: int) -> None:
    allocator_of(_checked_for_fraction(device)).limits.memory_fraction = fraction


def enable_caching(value: bool) -> None:
    with process_state.lock:
        process_state.caching = value
        for device in used_devices():
            allocator_of(device).pools.caching = is_caching()


def is_caching() -> bool:
    """PyTorch's variable has the last word."""
    return process_state.caching and not pytorch_caching_disabled()


def allocator_backend() -> str:
    return BACKEND


def set_allocator_settings(env: str) -> None:
    """Also pass the settings to PyTorch: its pinned memory reads them too, and the error messages are its own."""
    if not isinstance(env, str):
        raise TypeError(f"settings must be a string, not {type(env).__name__}")
    try:
        _set_settings_of_torch(env)
    finally:
        with process_state.lock:
            for device in used_devices():
                with suppress(SettingsError):
                    allocator_of(device)._configure_leniently(env)
            process_state.settings, _ = parse_leniently(env, process_state.settings)


# -- Out of memory ---------------------------------------------------------------------------------------------------


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Call `observer` with the device, the segment's size, the limit (or the total memory), and the free memory."""

    def call(facts: OutOfMemoryFacts) -> None:
        most = facts.device_total if facts.limit is None else facts.limit
        observer(facts.device_index, facts.segment_size, most, facts.device_free)

    torch.cuda.init()
    with process_state.lock:
        for device in used_devices():
            allocator_of(device).limits.attach_out_of_memory_observer(call)
        process_state.observers.append(call)


# -- History and snapshots -------------------------------------------------------------------------------------------


def record_history(
    enabled: str | None,
    context: str | None,
    stacks: str,
    max_entries: int,
    clear_history: bool,
    compile_context: bool,
    global_record_annotations: bool,
    skip_actions: Collection[str],
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    """`stacks` has no effect: frames are Python's. `History.record_annotation` records annotations."""
    if enabled is not None and record_pinned_host_memory:
        _warn_about_pinned_memory()
    if not record_cuda:
        return
    if enabled is not None:
        _check(enabled in ("state", "all"), "expected state to be 'state', 'all', or None")
        _check(context in (None, "state", "alloc", "all"), "expected context to be 'state', 'alloc', 'all', or None")
        _check(stacks in ("python", "all"), "expected stacks to be 'python', or 'all'")
    _record(enabled, context, max_entries, clear_history, skip_actions)


def record_history_legacy(
    enabled: bool,
    record_context: bool,
    trace_alloc_max_entries: int,
    trace_alloc_record_context: bool,
    record_context_cpp: bool,
    clear_history: bool,
    compile_context: bool,
    global_record_annotations: bool,
    skip_actions: Collection[str],
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    if enabled and record_pinned_host_memory:
        _warn_about_pinned_memory()
    if not record_cuda:
        return
    context = "alloc" if trace_alloc_record_context else "state" if record_context else None
    state = "all" if enabled else None
    _record(state, context, trace_alloc_max_entries, clear_history, skip_actions)


def _warn_about_pinned_memory() -> None:
    """Warn: PyTorch records pinned memory, but shows it only in a snapshot of its own allocator."""
    warnings.warn(
        "record_pinned_host_memory has no effect in hooks mode of allotment.torch: PyTorch does not show the history of"
        " pinned memory while a plug-in is its allocator; deep mode has it",
        stacklevel=4,
    )


def _check(holds: bool, complaint: str) -> None:
    if not holds:
        raise RuntimeError(complaint)


def _record(
    enabled: str | None, context: str | None, max_entries: int, clear_history: bool, skip_actions: Collection[str]
) -> None:
    wish: dict[str, Any] = {
        "enabled": enabled,
        "context": context if enabled is not None else None,
        "max_entries": max_entries,
        "clear_history": clear_history,
        "skip_actions": process_state.SKIPPABLE.intersection(skip_actions),
    }
    torch.cuda.init()
    with process_state.lock:
        for device in used_devices():
            allocator_of(device).record_history(**wish)
        process_state.history = wish if enabled is not None else None


def is_history_enabled() -> bool:
    """Whether events are recorded now."""
    return process_state.history is not None


def allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """The frames of the call that allocated a live block, by the block's start; None if there are none."""
    for device in used_devices():
        for segment in allocator_of(device).history.segments():
            for block in segment["blocks"]:
                if block["address"] == data_ptr and block["state"] == word_of(BlockState.ACTIVE_ALLOCATED):
                    return block["frames"] or None
    return None


def annotate_memory(data_ptr: int, metadata: str) -> None:
    """Add a note on a live block, by its start, to the history."""
    for device in used_devices():
        with suppress(AddressError):
            allocator_of(device).history.annotate(data_ptr, metadata)
            return
    raise RuntimeError(f"annotateMemory: no live allocation found at pointer {data_ptr:#x}")


def is_metadata_supported() -> bool:
    """Whether `torch.cuda.memory._set_memory_metadata` has an effect."""
    return True


def memory_snapshot(pool: tuple[int, int] | tuple[int, int, bool] | None) -> dict[str, Any]:
    first, second, *rest = pool if pool is not None else (0, 0)
    include_traces = bool(rest[0]) if rest else True
    devices = used_devices()
    parts = [_snapshot_of(allocator_of(device), (first, second), include_traces) for device in devices]
    traces = dict(zip(devices, (part["device_traces"][-1] for part in parts), strict=True))
    count = torch.cuda.device_count() if devices else 0
    settings = parts[0]["allocator_settings"] if parts else process_state.settings.as_pytorch_dict()
    annotations = [annotation for part in parts for annotation in part["external_annotations"]]
    segments = [segment for part in parts for segment in part["segments"]]
    return assembled(
        segments, traces, count, settings, sorted(annotations, key=lambda annotation: annotation["time_us"])
    )


def _snapshot_of(allocator: Allocator, pool: PoolId, include_traces: bool) -> dict[str, Any]:
    try:
        return allocator.snapshot(pool, include_traces)
    except PoolError:  # PyTorch answers the same for a pool that never existed and for one without memory
        return {**allocator.snapshot(include_traces=include_traces), "segments": []}


# -- Pools -----------------------------------------------------------------------------------------------------------


def check_pool_live_allocations(device: int, pool: PoolId, expected: Collection[int]) -> bool:
    try:
        return allocator_of(_checked(device)).pools.check_live_allocations(pool, expected)
    except PoolError as error:
        raise RuntimeError("Could not find pool of id") from error


def is_initialized() -> bool:
    """PyTorch assumes that a plug-in is initialized, and would ask about devices that are not set up yet."""
    return bool(torch.cuda.is_initialized())


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "_accelerator_getDeviceStats": nested_accelerator_stats,
    "_accelerator_isAllocatorInitialized": is_initialized,
    "_accelerator_resetAccumulatedStats": reset_accumulated_stats,
    "_accelerator_resetPeakStats": reset_peak_stats,
    "_accelerator_setAllocatorSettings": set_allocator_settings,
    "_cuda_allocationTraceback": allocation_traceback,
    "_cuda_annotateMemory": annotate_memory,
    "_cuda_attach_out_of_memory_observer": attach_out_of_memory_observer,
    "_cuda_checkPoolLiveAllocations": check_pool_live_allocations,
    "_cuda_cudaCachingAllocator_enable": enable_caching,
    "_cuda_cudaCachingAllocator_is_enabled": is_caching,
    "_cuda_getAllocatorBackend": allocator_backend,
    "_cuda_getMemoryFraction": memory_fraction,
    "_cuda_getMemoryMetadata": get_user_metadata,
    "_cuda_isHistoryEnabled": is_history_enabled,
    "_cuda_memoryMetadataSupported": is_metadata_supported,
    "_cuda_memorySnapshot": memory_snapshot,
    "_cuda_memoryStats": nested_stats,
    "_cuda_record_memory_history": record_history,
    "_cuda_record_memory_history_legacy": record_history_legacy,
    "_cuda_resetAccumulatedMemoryStats": reset_accumulated_stats,
    "_cuda_resetPeakMemoryStats": reset_peak_stats,
    "_cuda_setMemoryFraction": set_memory_fraction,
    "_cuda_setMemoryMetadata": set_user_metadata,
}
"""The functions of `torch._C` that refuse or do nothing under a plug-in, and the functions that replace them."""
