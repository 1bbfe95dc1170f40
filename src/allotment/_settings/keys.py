"""The description of a settings key: one `Key` for each, declared at the field that it sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from allotment._settings.values import Kind


class Change(Enum):
    """When a later string may change a key."""

    LIVE = "at once"
    ONCE = "when its part is made"
    EMPTY = "while nothing is reserved"
    FIXED = "never: another value is refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value, and PyTorch's complaint if it does not hold."""

    holds: Callable[[Any], bool]
    complaint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    names: tuple[str, ...]
    """The key, followed by its other names."""
    kind: Kind
    values: str
    """The allowed values, for people. `{at_least_mb}` is the size in MiB of the setting that `at_least` names."""
    does: str
    rules: tuple[Rule, ...] = ()
    at_least: str = ""
    """The setting whose value is the minimum of this one, if any."""
    devices: str = "all"
    """The devices that use it, for people."""
    placements: tuple[str, ...] = ()
    """The placements that use it; none named means all of them."""
    torch: str | None = "2.11"
    """The first PyTorch version with this key among those that Allotment follows; None for our own keys."""
    family: bool = False
    """PyTorch reads it separately from the keys of all devices, after them and only if they were valid."""
    sticky: bool = True
    """Keeps its value until named again; otherwise every string that does not name it sets the default."""
    change: Change = Change.LIVE
    fixed_complaint: str = ""
    """PyTorch's complaint about another value later, if `change` is FIXED."""

    def admits(self, value: object) -> bool:
        """Whether a record may hold `value`, whatever its other fields hold."""
        return self.kind.admits(value) and all(rule.holds(value) for rule in self.rules)
