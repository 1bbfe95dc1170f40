"""Settings in the form of a PyTorch snapshot: its `allocator_settings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allotment._settings.values import INTERVALS

if TYPE_CHECKING:
    from allotment._settings.record import Settings

STRING = "PYTORCH_CUDA_ALLOC_CONF"
_NAMES = {
    "garbage_collection_threshold": "garbage_collection_threshold",
    "expandable_segments": "expandable_segments",
    "pinned_num_register_threads": "pinned_num_register_threads",
    "release_lock_on_cudamalloc": "release_lock_on_device_malloc",
    "pinned_use_cuda_host_register": "pinned_use_host_register",
    "graph_capture_record_stream_reuse": "graph_capture_record_stream_reuse",
}
"""What PyTorch states as it is: its name, and the setting."""
_INTERVAL_NAMES = [str(1 << interval) for interval in range(INTERVALS)]


def stated_by(settings: Settings) -> dict[str, Any]:
    """What PyTorch would state of `settings`."""
    split = settings.max_split_size
    return {
        STRING: settings.text,
        "max_split_size": split - 2**64 if split >= 2**63 else split,
        **{name: getattr(settings, setting) for name, setting in _NAMES.items()},
        "roundup_power2_divisions": dict(zip(_INTERVAL_NAMES, settings.roundup_power2_divisions, strict=True)),
    }


def values_stated(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The values of settings that `stated` names one by one, whatever they are; its string is left aside."""
    values = {setting: stated[name] for name, setting in _NAMES.items() if name in stated}
    if "max_split_size" in stated:
        split = stated["max_split_size"]
        values["max_split_size"] = split % 2**64 if isinstance(split, int) else split
    if "roundup_power2_divisions" in stated:
        divisions = stated["roundup_power2_divisions"]
        values["roundup_power2_divisions"] = (
            tuple(divisions.get(name) for name in _INTERVAL_NAMES) if isinstance(divisions, dict) else divisions
        )
    return values
