"""Settings in deep mode: PyTorch's variables, and on top of them what is said to us."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

from allotment import _settings as config
from allotment._settings.grammar import entries


def deep_settings(given: str | config.Settings | None, compat: str) -> config.Settings:
    """What PyTorch's variables say; then the keys that ALLOTMENT_CONF names, then those of a string given.

    A record that is given stands alone. Raises SettingsError.
    """
    if isinstance(given, config.Settings):
        return config.settings_of(given)
    found, error = config.pytorch_environment(compat=compat)
    if error is not None:
        raise error
    config.from_environment(compat=compat)  # an error in it names the variable
    ours = [text for text in (os.environ.get("ALLOTMENT_CONF", ""), "" if given is None else given) if text != ""]
    on_top = {setting: value for text in ours for setting, value in _named(text, compat).items()}
    return _without_meaningless(replace(found, **on_top), found, set(on_top))


def _named(text: str, compat: str) -> dict[str, Any]:
    """The settings that a string names, and their values."""
    parsed = config.Settings.parse(text, compat=compat)
    keys = {entry.key for entry in entries(text, strict=True)}
    return {setting: getattr(parsed, setting) for setting, key in config.KEYS.items() if keys.intersection(key.names)}


def _without_meaningless(chosen: config.Settings, of_pytorch: config.Settings, named: set[str]) -> config.Settings:
    """What PyTorch's variables say and the chosen placement gives no meaning is passed over, with a warning."""
    meaningless = [
        setting
        for setting, key in config.KEYS.items()
        if key.placements
        and chosen.placement not in key.placements
        and setting not in named
        and getattr(of_pytorch, setting) != config.DEFAULTS[setting]
    ]
    if meaningless:
        names = ", ".join(config.KEYS[setting].names[0] for setting in meaningless)
        warnings.warn(
            f"PyTorch's settings name {names}, which placement:{chosen.placement} gives no meaning; passed over",
            stacklevel=4,
        )
    return replace(chosen, **{setting: config.DEFAULTS[setting] for setting in meaningless})
