"""One parser, two modes.

- strict, for everything that a user of Allotment writes: anything not clearly valid is refused, and the error names the
  key, the value and what is allowed; nothing is applied in part.
- lenient, for strings that were written for PyTorch: read exactly as PyTorch reads them, that is with unchecked
  separators, numbers by their leading digits, negative numbers that wrap, and, if the string is invalid, everything
  before the fault. It does not know our own keys.

In both modes some settings return to their default with every string and others stay until named again; `Key.sticky`
says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from allotment._rules import has
from allotment._settings.grammar import FORM, Entry, Malformed, Refusal, entries
from allotment._settings.keys import Change, Key
from allotment._settings.sizes import MIB
from allotment.errors import SettingsError

_FIRST = ("compat", "large_segment_size_mb")
"""Keys that count wherever they appear: they decide which keys exist, and limit the values of others."""


class Parser:
    """Reads one settings string; `values` holds what has been applied so far, by setting.

    Three passes: `compat` and `large_segment_size_mb`, on which others depend; the other common keys; the keys of one
    device family, as PyTorch calls them, and our own.
    """

    def __init__(
        self,
        keys: Mapping[str, Key],
        defaults: Mapping[str, Any],
        in_force: Mapping[str, Any] | None,
        *,
        strict: bool,
    ) -> None:
        """`keys` and `defaults` are by setting; `in_force` are the current values, None for the first string."""
        self.values = dict(in_force or defaults)
        self._in_force = in_force
        self._defaults = defaults
        self._strict = strict
        self._keys = {
            name: (setting, key)
            for setting, key in keys.items()
            for name in key.names
            if strict or self._has_version(key)
        }

    def run(self, text: str) -> None:
        """Raises SettingsError."""
        self.values["text"] = text
        for setting, key in self._keys.values():
            if not key.sticky:
                self.values[setting] = self._defaults[setting]
        self._follow_large_segment_size()
        found = []
        try:
            for entry in entries(text, strict=self._strict):
                found.append(entry)
                if entry.key in self._keys and entry.key in _FIRST:
                    self._apply(entry)
                    self._follow_large_segment_size()
        except Malformed as malformed:
            self._refuse_form(malformed)
        for entry in found:
            if entry.key not in self._keys:
                self._refuse_key(entry)
            self._check_version(entry)
            if not self._keys[entry.key][1].family and entry.key not in _FIRST:
                self._apply(entry)
        for entry in found:
            if self._keys[entry.key][1].family:
                self._apply(entry)
        for entry in found:
            self._check_placement(entry)

    def _follow_large_segment_size(self) -> None:
        self.values["max_non_split_rounding"] = self.values["large_segment_size"]

    def _apply(self, entry: Entry) -> None:
        setting, key = self._keys[entry.key]
        try:
            value = key.kind.read(entry, self.values[setting])
            for rule in key.rules:
                if not rule.holds(value):
                    raise Refusal(rule.complaint.format(value=value))
            if key.at_least and value < self.values[key.at_least]:
                least = self.values[key.at_least] // MIB
                raise Refusal(f"CachingAllocator option {entry.key} too small, must be >= {least}")
            if key.change is Change.FIXED and self._in_force and value != self._in_force[setting]:
                raise Refusal(key.fixed_complaint.format(value=value, in_force=self._in_force[setting]))
        except Malformed as malformed:
            self._keep(setting, malformed)
            self._refuse_form(malformed)
        except Refusal as refusal:
            self._keep(setting, refusal)
            self._refuse(entry, refusal.complaint)
        self.values[setting] = value

    def _keep(self, setting: str, refusal: Refusal) -> None:
        if refusal.so_far is not None:
            self.values[setting] = refusal.so_far

    def _has_version(self, key: Key) -> bool:
        """Whether the PyTorch version whose rules apply has this key."""
        return key.torch is not None and has(self.values["compat"], key.torch)

    def _check_version(self, entry: Entry) -> None:
        key = self._keys[entry.key][1]
        if key.torch is not None and not self._has_version(key):
            compat = self.values["compat"]
            allowed = f"left out: PyTorch has it since {key.torch}, and compat is {compat}"
            raise SettingsError(f"{entry.key} must be {allowed}", key=entry.key, value=entry.shown, allowed=allowed)

    def _check_placement(self, entry: Entry) -> None:
        """Refuse a key that the chosen placement does not use; a value kept from before is fine."""
        placements = self._keys[entry.key][1].placements
        chosen = self.values.get("placement")
        if self._strict and placements and chosen is not None and chosen not in placements:
            allowed = f"left out: placement:{chosen} does not use it"
            raise SettingsError(f"{entry.key} must be {allowed}", key=entry.key, value=entry.shown, allowed=allowed)

    # Complaints: PyTorch's text in lenient mode; in strict mode what is wrong, and what is allowed.

    def _refuse(self, entry: Entry, complaint: str) -> NoReturn:
        _, key = self._keys[entry.key]
        least = self.values[key.at_least] // MIB if key.at_least else 0
        allowed = key.values.format(at_least_mb=least)
        message = f"{entry.key} must be {allowed}; {entry.shown!r} is not" if self._strict else complaint
        raise SettingsError(message, key=entry.key, value=entry.shown, allowed=allowed)

    def _refuse_key(self, entry: Entry) -> NoReturn:
        allowed = ", ".join(self._keys)
        message = f"Unrecognized key '{entry.key}' in Accelerator allocator config."
        if self._strict:
            nearest = get_close_matches(entry.key, self._keys, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known: {allowed}"
            message = f"unknown setting {entry.key!r}; {hint}"
        raise SettingsError(message, key=entry.key, value=entry.shown, allowed=allowed)

    def _refuse_form(self, malformed: Malformed) -> NoReturn:
        message = f"{malformed.mistake}; settings are written {FORM}" if self._strict else malformed.complaint
        raise SettingsError(message, key=malformed.key, value=malformed.value, allowed=FORM)
