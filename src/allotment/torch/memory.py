"""The functions of `torch.cuda.memory` for our allocator, while it is PyTorch's current one.

Most of PyTorch's own raise once another allocator is current. These take the same parameters, return the same forms and
raise the same errors; `patch` puts them under PyTorch's names. Functions that work unchanged, through the hooks or
because they do not involve the allocator, are PyTorch's own.

`get_allocator_backend` says "allotment": programs compare it with "native" or "cudaMallocAsync", and it is neither.
"""

from __future__ import annotations

import collections
import json
import pickle
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from inspect import signature
from os import PathLike
from typing import Any

import torch  # type: ignore[import-not-found]
from torch.cuda import _memory_viz  # type: ignore[import-not-found]
from torch.cuda.memory import (  # type: ignore[import-not-found]
    CUDAPluggableAllocator,
    caching_allocator_alloc,
    caching_allocator_delete,
    change_current_allocator,
    empty_cache,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    list_gpu_processes,
    mem_get_info,
    reset_accumulated_host_memory_stats,
    reset_peak_host_memory_stats,
    use_mem_pool,
)

from allotment import _texts as texts
from allotment._allocators.caching.pool import PoolId
from allotment._core.records.history import get_user_metadata, set_user_metadata
from allotment.torch import _replacements as replacements
from allotment.torch._patching import is_patched, patch, unpatch
from allotment.torch._pool import MemPool
from allotment.torch._replacements import is_history_enabled

__all__ = [
    "CUDAPluggableAllocator",
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "change_current_allocator",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "is_history_enabled",
    "is_patched",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "patch",
    "record_history",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "unpatch",
    "use_mem_pool",
]

Device = Any
"""A torch.device, an index, text such as "cuda:1", or None for the current device."""


def _index(device: Device, optional: bool = True) -> int:
    index: int = torch.cuda._get_device_index(device, optional=optional)
    return index


# -- Figures ---------------------------------------------------------------------------------------------------------


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All counters of a device, flattened and sorted by key; nothing before PyTorch is initialized."""
    flat = _flattened("", memory_stats_as_nested_dict(device))
    return collections.OrderedDict(sorted(flat))


def _flattened(prefix: str, nested: dict[str, Any]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in nested.items():
        flat += _flattened(f"{prefix}{key}.", value) if isinstance(value, dict) else [(prefix + key, value)]
    return flat


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """All counters of a device; nothing before PyTorch is initialized."""
    if not torch.cuda.is_initialized():
        return {}
    return replacements.nested_stats(_index(device))


def memory_allocated(device: Device = None) -> int:
    """Bytes in use by tensors."""
    return _figure(device, "allocated_bytes", "current")


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes in use by tensors since the start, or since `reset_peak_memory_stats`."""
    return _figure(device, "allocated_bytes", "peak")


def memory_reserved(device: Device = None) -> int:
    """Bytes that the allocator holds, in use or not."""
    return _figure(device, "reserved_bytes", "current")


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes that the allocator has held since the start, or since `reset_peak_memory_stats`."""
    return _figure(device, "reserved_bytes", "peak")


def _figure(device: Device, counter: str, kind: str) -> int:
    stats = memory_stats_as_nested_dict(device)
    figure: int = stats[counter]["all"][kind] if stats else 0
    return figure


def memory_cached(device: Device = None) -> int:
    """The former name of `memory_reserved`."""
    warnings.warn(_RENAMED.format("memory_cached", "memory_reserved"), FutureWarning, stacklevel=2)
    return memory_reserved(device)


def max_memory_cached(device: Device = None) -> int:
    """The former name of `max_memory_reserved`."""
    warnings.warn(_RENAMED.format("max_memory_cached", "max_memory_reserved"), FutureWarning, stacklevel=2)
    return max_memory_reserved(device)


_RENAMED = "`torch.cuda.{}` has been renamed to `torch.cuda.{}`"


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Reset the accumulated counters (allocated, freed, retries, failures) to 0."""
    replacements.reset_accumulated_stats(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset every peak to the current value."""
    replacements.reset_peak_stats(_index(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """`reset_peak_memory_stats`, with a warning."""
    warnings.warn(_RESETS_ALL.format("reset_max_memory_allocated"), FutureWarning, stacklevel=2)
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Device = None) -> None:
    """`reset_peak_memory_stats`, with a warning."""
    warnings.warn(_RESETS_ALL.format("reset_max_memory_cached"), FutureWarning, stacklevel=2)
    reset_peak_memory_stats(device)


_RESETS_ALL = "torch.cuda.{} now calls torch.cuda.reset_peak_memory_stats, which resets /all/ peak memory stats."


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The counters as a boxed table, in PyTorch's words."""
    index = _index(device)
    return texts.memory_summary(memory_stats(index), index, abbreviated=abbreviated, words=texts.PYTORCH_SUMMARY)


# -- Limits and settings ---------------------------------------------------------------------------------------------


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let the allocator hold at most this part of the device's memory."""
    torch.cuda.init()
    index = _named_index(device)
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if fraction < 0 or fraction > 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    replacements.set_memory_fraction(fraction, index)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The part of the device's memory that the allocator may hold."""
    torch.cuda.init()
    return replacements.memory_fraction(_named_index(device))


def _named_index(device: Device) -> int:
    """As `_index`, but refuse a device without an index, as PyTorch does there."""
    return torch.cuda.current_device() if device is None else _index(device, optional=False)  # type: ignore[no-any-return]


def caching_allocator_enable(value: bool = True) -> None:
    """Switch the cache on or off. Without it, each request is a separate device allocation."""
    if torch.cuda.is_initialized():
        replacements.enable_caching(value)


@contextmanager
def caching_allocator_disabled() -> Iterator[None]:
    """Inside the block, each request is a separate device allocation."""
    before = replacements.is_caching()
    caching_allocator_enable(False)
    try:
        yield
    finally:
        caching_allocator_enable(before)


def get_allocator_backend() -> str:
    """ "allotment"."""
    return replacements.allocator_backend()


def _set_allocator_settings(env: str) -> None:
    warnings.warn(
        "torch.cuda._set_allocator_settings is deprecated. Use torch._C._accelerator_setAllocatorSettings instead.",
        FutureWarning,
        stacklevel=2,
    )
    replacements.set_allocator_settings(env)


# -- History and snapshots -------------------------------------------------------------------------------------------


def _record_memory_history(enabled: Any = "all", *args: Any, **kwargs: Any) -> None:
    """Record events from now on, for `_snapshot`; None stops recording and discards the history.

    The parameters are PyTorch's: enabled, context, stacks, max_entries, device, clear_history, compile_context,
    global_record_annotations, skip_actions, record_pinned_host_memory, record_cuda. Frames are Python's for every value
    of `stacks`. PyTorch's own entries for compilation, annotated ranges and pinned memory are not recorded; for pinned
    memory, a warning says so. A bool as `enabled` means the former parameters, as in PyTorch.
    """
    record = _record_memory_history_legacy if isinstance(enabled, bool) else _record_memory_history_impl
    record(enabled, *args, **kwargs)


def _record_memory_history_impl(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Device = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Collection[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    replacements.record_history(
        enabled,
        context,
        stacks,
        max_entries,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions or (),
        record_pinned_host_memory,
        record_cuda,
    )


def _record_memory_history_legacy(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: Device = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Collection[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
) -> None:
    replacements.record_history_legacy(
        enabled,
        record_context,
        trace_alloc_max_entries,
        trace_alloc_record_context,
        record_context_cpp,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions or (),
        record_pinned_host_memory,
        record_cuda,
    )


_record_memory_history.__signature__ = signature(_record_memory_history_impl)  # type: ignore[attr-defined]
record_history = _record_memory_history


def memory_snapshot(mempool_id: PoolId | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of all devices, or those of one pool."""
    first, second = (0, 0) if mempool_id is None else (mempool_id[0], mempool_id[1])
    segments: list[dict[str, Any]] = replacements.memory_snapshot((first, second, include_traces))["segments"]
    return segments


def _snapshot(device: Device = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Segments, history and settings of all devices, in the form that PyTorch's memory tools read."""
    snapshot = replacements.memory_snapshot(None)
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces  # type: ignore[import-not-found]

        snapshot = _augment_memory_snapshot_stack_traces(snapshot)
    return snapshot


def _dump_snapshot(
    filename: str | PathLike[str] = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Write `_snapshot` to a file that PyTorch's memory tools, and `allotment replay`, open."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _allocation_traceback(data_ptr: int) -> list[dict[str, Any]] | None:
    """The stack that allocated the block that starts there; None if there is no live block, or nothing recorded."""
    return replacements.allocation_traceback(data_ptr)


def _set_memory_metadata(metadata: str | dict[str, Any]) -> None:
    """Attach this text to everything the calling thread records from now on; "" attaches nothing.

    A dict becomes JSON text, as in PyTorch 2.15.
    """
    set_user_metadata(json.dumps(metadata, separators=(",", ":")) if isinstance(metadata, dict) else metadata)


def _get_memory_metadata() -> str:
    """The text that the calling thread attaches now."""
    return get_user_metadata()


def _memory_metadata_supported() -> bool:
    """Whether `_set_memory_metadata` has an effect: always, with our allocator."""
    return replacements.is_metadata_supported()


def _annotate_tensor(tensor: Any, metadata: str) -> None:
    """Add a note on a tensor's memory to the history, in addition to the metadata from its allocation."""
    if not tensor.is_cuda:
        raise ValueError(f"expected a CUDA tensor, got device {tensor.device}")
    replacements.annotate_memory(tensor.untyped_storage().data_ptr(), metadata)


def _save_segment_usage(filename: str | PathLike[str] = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    with open(filename, "w") as file:
        file.write(_memory_viz.segments(snapshot if snapshot is not None else _snapshot()))


def _save_memory_usage(filename: str | PathLike[str] = "output.svg", snapshot: dict[str, Any] | None = None) -> None:
    with open(filename, "w") as file:
        file.write(_memory_viz.memory(snapshot if snapshot is not None else _snapshot()))
