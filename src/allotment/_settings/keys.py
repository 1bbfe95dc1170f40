"""What is known about a key of a settings string: one `Key` for each, declared at the field that it sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from allotment._settings.values import Kind


class Change(Enum):
    """What naming a key in a later string does."""

    LIVE = "at once"
    ONCE = "when its part is made"
    EMPTY = "while nothing is reserved"
    FIXED = "never: another value is refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold of a value, and PyTorch's complaint if it does not."""

    holds: Callable[[Any], bool]
    complaint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    names: tuple[str, ...]
    """The key; other names of it follow."""
    kind: Kind
    values: str
    """What may stand there, for people. `{at_least_mb}` is the size in MiB of the setting `at_least` names."""
    does: str
    rules: tuple[Rule, ...] = ()
    at_least: str = ""
    """The setting whose value is the least one of this, if there is one."""
    devices: str = "all"
    """The devices that heed it, for people."""
    placements: tuple[str, ...] = ()
    """The placements that it means something to; none named is all of them."""
    torch: str | None = "2.11"
    """The first PyTorch version with this key among those that Allotment follows; None for a key of ours."""
    family: bool = False
    """PyTorch reads it apart from the keys of all devices, after them and only if they were right."""
    sticky: bool = True
    """Stays until named again; else every string that does not name it sets the default."""
    change: Change = Change.LIVE
    fixed_complaint: str = ""
    """PyTorch's complaint about another value later, if `change` is FIXED."""

    def admits(self, value: object) -> bool:
        """Whether a record may hold `value`, whatever its other fields hold."""
        return self.kind.admits(value) and all(rule.holds(value) for rule in self.rules)
