"""Settings from environment variables. No other module below reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from allotment._rules import NEWEST
from allotment._settings.record import Settings, parse_leniently
from allotment.errors import SettingsError


def from_environment(environ: Mapping[str, str] = os.environ, *, compat: str = NEWEST) -> Settings:
    """Return the settings in ALLOTMENT_CONF, else the defaults. Raises SettingsError."""
    try:
        return Settings.parse(environ.get("ALLOTMENT_CONF", ""), compat=compat)
    except SettingsError as error:
        raise SettingsError(
            f"ALLOTMENT_CONF: {error}", key=error.key, value=error.value, allowed=error.allowed
        ) from error


def pytorch_environment(
    environ: Mapping[str, str] = os.environ, *, compat: str = NEWEST
) -> tuple[Settings, SettingsError | None]:
    """Return the settings in PyTorch's variables; only the first one that exists counts."""
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if variable in environ:
            return parse_leniently(environ[variable], compat=compat)
    return Settings(compat=compat), None


def pytorch_caching_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether PyTorch's variables ask that every request goes directly to the device."""
    return "1" in (environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"), environ.get("PYTORCH_NO_HIP_MEMORY_CACHING"))


def monitor_requested(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether every allocator of this process shall announce itself to `allotment top`."""
    return environ.get("ALLOTMENT_MONITOR") == "1"
