"""Settings in the form of a PyTorch snapshot: its `allocator_settings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from allotment._rules import rules_of
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
"""What PyTorch states unchanged: its name, and the setting."""
_SIGNED_NAMES = {"max_split_size": "max_split_size"}
"""What it states as a signed number of 64 bits, so that "no limit" is -1."""
_SIGNED_NAMES_NEWER = {
    "max_round_threshold": "pinned_max_round_threshold",
    "max_cached_size": "pinned_max_cached_size",
}
_INTERVAL_NAMES = [str(1 << interval) for interval in range(INTERVALS)]


def stated_by(settings: Settings, text: str) -> dict[str, Any]:
    """Return what PyTorch would state for `settings`, whose string is `text`."""
    signed = _SIGNED_NAMES
    if rules_of(settings.compat).states_pinned_bounds:
        signed = {**_SIGNED_NAMES, **_SIGNED_NAMES_NEWER}
    return {
        STRING: text,
        **{name: _signed(getattr(settings, setting)) for name, setting in signed.items()},
        **{name: getattr(settings, setting) for name, setting in _NAMES.items()},
        "roundup_power2_divisions": dict(zip(_INTERVAL_NAMES, settings.roundup_power2_divisions, strict=True)),
    }


def _signed(size: int) -> int:
    return size - 2**64 if size >= 2**63 else size


def values_stated(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that `stated` names one by one, unchecked; ignores its string."""
    values = {setting: stated[name] for name, setting in _NAMES.items() if name in stated}
    for name, setting in {**_SIGNED_NAMES, **_SIGNED_NAMES_NEWER}.items():
        if name in stated:
            values[setting] = stated[name] % 2**64 if isinstance(stated[name], int) else stated[name]
    if "roundup_power2_divisions" in stated:
        divisions = stated["roundup_power2_divisions"]
        values["roundup_power2_divisions"] = (
            tuple(divisions.get(name) for name in _INTERVAL_NAMES) if isinstance(divisions, dict) else divisions
        )
    return values
