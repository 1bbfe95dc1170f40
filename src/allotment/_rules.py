"""The differences between PyTorch's releases: each one is a named rule, and one table says which release has it.

A version is a record of rules. The record's defaults are the oldest version; each line of the table names what the next
one changed. So a new release is one more line (and a new rule, if it decides something in a new way). The engine, the
texts, the statistics and the recordings read rules; none of them knows a version number.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

__all__ = ["NEWEST", "OLDEST", "VERSIONS", "Rules", "has", "installed_version", "nearest_version", "rules_of"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one PyTorch release. The defaults are those of the oldest one."""

    version: str

    # Which block serves a request, and what may be released.
    free_order: Literal["address", "block", "segment"] = "address"
    """Which of several free blocks of equal size comes first: the one at the lowest address, the block object created
    first, or the one of the oldest segment (inside one segment, the lowest address)."""
    only_captures_defer: bool = False
    """Frees are deferred, and default pools are kept, only while the caller's current stream is being captured;
    otherwise
    while any request is routed to a pool."""
    end_of_routing_settles: bool = False
    """With stream reuse, the end of routing to a pool frees its waiting blocks or attaches events to them."""
    limit_is_rounded: bool = False
    """A fraction of the device's memory is rounded to the nearest byte; otherwise truncated."""

    # What is counted and shown.
    counts_rejections: bool = False
    """Statistics have `num_oom_rejections`."""
    counts_private_pools: bool = False
    """Statistics have the reserved bytes of each private pool."""
    trace_names_pools: bool = False
    """History entries have `pool_id`."""
    states_pinned_bounds: bool = False
    """A snapshot's settings have the two limits of pinned memory."""
    annotates_blocks: bool = False
    """The history can hold a text about a block in use."""
    exact_address_mark: Literal["user", "internal"] = "user"
    """Where the history notes a request for an exact address: at the end of the user's metadata, or separately."""
    out_of_memory_hint: Literal["always", "plain memory", "by reserve"] = "always"
    """When an out-of-memory text suggests expandable segments; the last explains their reserves instead."""
    handle_version: int = 2
    """First byte of a block's handle for other processes."""

    # What the framework above the allocator does; recordings contain these calls.
    generator_blocks: Literal["first graph", "every capture", "none"] = "first graph"
    """When the random generator requests two blocks."""
    failed_capture_ends_routing: bool = False
    failed_capture_releases_pool: bool = False


_CHANGES: Final[dict[str, dict[str, Any]]] = {
    "2.11": {},
    "2.12": {
        "free_order": "block",
        "end_of_routing_settles": True,
        "counts_rejections": True,
        "trace_names_pools": True,
        "generator_blocks": "every capture",
    },
    "2.13": {
        "free_order": "segment",
        "only_captures_defer": True,
        "limit_is_rounded": True,
        "counts_private_pools": True,
        "states_pinned_bounds": True,
        "handle_version": 3,
        "failed_capture_ends_routing": True,
    },
    "2.14": {
        "annotates_blocks": True,
        "out_of_memory_hint": "plain memory",
    },
    "2.15": {
        "exact_address_mark": "internal",
        "out_of_memory_hint": "by reserve",
        "generator_blocks": "none",
        "failed_capture_releases_pool": True,
    },
}
"""The table: what each version changed. Everything else is as in the version before."""


def _all_rules() -> dict[str, Rules]:
    known: dict[str, Rules] = {}
    rules = Rules("")
    for version, changes in _CHANGES.items():
        rules = known[version] = replace(rules, version=version, **changes)
    return known


_RULES: Final = _all_rules()
VERSIONS: Final = tuple(_RULES)
"""The versions whose rules are known, oldest first."""
OLDEST: Final = VERSIONS[0]
NEWEST: Final = VERSIONS[-1]


def rules_of(version: str) -> Rules:
    """Return the rules of a version in `VERSIONS`. Raises KeyError for another one."""
    return _RULES[version]


def has(version: str, since: str) -> bool:
    """Whether a version is `since` or later; both must be in `VERSIONS`."""
    return VERSIONS.index(version) >= VERSIONS.index(since)


def nearest_version(release: str) -> str:
    """Return the version whose rules a release such as "2.13.0+cu130" has: the newest known one up to it."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is None:
        return NEWEST
    found = (int(numbers[1]), int(numbers[2]))
    return max((known for known in VERSIONS if _numbers(known) <= found), key=_numbers, default=OLDEST)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def installed_version() -> str | None:
    """Return the version of the PyTorch that this Python would import, without importing it; None without one."""
    try:
        if importlib.util.find_spec("torch") is None:
            return None
        from importlib.metadata import version  # late: it imports email, csv and zipfile

        return nearest_version(version("torch"))
    except (ValueError, ImportError):  # a missing package is an ImportError too
        return None
