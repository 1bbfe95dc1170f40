"""Settings under PyTorch: those of PyTorch's variables, overridden by our own."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

from allotment import _settings as config
from allotment._settings.grammar import entries
from allotment.errors import SettingsError

DENSE = "dense"


def deep_settings(settings: str | config.Settings | None, compat: str, *, dense: bool = False) -> config.Settings:
    """Return PyTorch's variables, overridden by the keys in ALLOTMENT_CONF, then by those of a string.

    A record is returned as it is. With `dense` the placement is dense, and another one in our own settings is an error.
    Raises SettingsError.
    """
    if isinstance(settings, config.Settings):
        if dense and settings.placement != DENSE:
            raise _contradiction(settings.placement, "the settings record")
        return config.settings_of(settings)
    of_pytorch, error = config.pytorch_environment(compat=compat)
    if error is not None:
        raise error
    config.from_environment(compat=compat)  # an error in it names the variable
    on_top: dict[str, Any] = {}
    for origin, text in (("ALLOTMENT_CONF", os.environ.get("ALLOTMENT_CONF", "")), ("the settings", settings or "")):
        named = _named(text, compat, dense) if text else {}
        if dense and named.get("placement", DENSE) != DENSE:
            raise _contradiction(named["placement"], origin)
        on_top |= named
    if dense:
        on_top["placement"] = DENSE
    return _without_meaningless(replace(of_pytorch, **on_top), of_pytorch, set(on_top))


def with_pytorchs_placement(chosen: config.Settings) -> config.Settings:
    """The same settings with PyTorch's placement, for a device that cannot have the chosen one."""
    plain = replace(chosen, placement=config.DEFAULTS["placement"])
    return replace(
        plain,
        **{
            setting: config.DEFAULTS[setting]
            for setting, key in config.KEYS.items()
            if key.placements and plain.placement not in key.placements
        },
    )


def _contradiction(placement: str, origin: str) -> SettingsError:
    return SettingsError(
        f"dense placement was requested, but {origin} name placement:{placement}; remove one of the two",
        key="placement",
        value=placement,
        allowed=DENSE,
    )


def _named(text: str, compat: str, dense: bool) -> dict[str, Any]:
    """Return the settings that a string names, with their values."""
    keys = {entry.key for entry in entries(text, strict=True)}
    placed = f"placement:{DENSE},{text}" if dense and "placement" not in keys else text
    parsed = config.Settings.parse(placed, compat=compat)
    return {setting: getattr(parsed, setting) for setting, key in config.KEYS.items() if keys.intersection(key.names)}


def _without_meaningless(chosen: config.Settings, of_pytorch: config.Settings, named: set[str]) -> config.Settings:
    """Return the settings without keys that have no meaning under the chosen placement.

    If PyTorch's variables set such a key, a warning says that it is not used. If our own settings do, it is an error.
    """
    meaningless = [
        setting
        for setting, key in config.KEYS.items()
        if key.placements
        and chosen.placement not in key.placements
        and getattr(chosen, setting) != config.DEFAULTS[setting]
    ]
    for setting in meaningless:
        if setting in named:
            key = config.KEYS[setting].names[0]
            raise SettingsError(
                f"{key} must be left out: it has no meaning under placement:{chosen.placement}", key=key
            )
    if meaningless:
        names = ", ".join(config.KEYS[setting].names[0] for setting in meaningless)
        warnings.warn(
            f"PyTorch's settings name {names}, which has no meaning under placement:{chosen.placement}; it is not used",
            stacklevel=4,
        )
    return replace(chosen, **{setting: config.DEFAULTS[setting] for setting in meaningless})
