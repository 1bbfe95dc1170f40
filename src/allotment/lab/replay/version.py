"""Which version of PyTorch a snapshot comes from.

Few snapshots name their version. Most have marks: fields that a version added, so the snapshot comes from it or a later
one; and a history without pool ids is older than all of those. Of the remaining versions, the newest that reproduces
every recorded decision is chosen. Versions with the same rules cannot be distinguished, and need not be.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from allotment._core.edge.words import Action
from allotment._formats.torch_snapshot import Snapshot, Trace
from allotment._rules import OLDEST, VERSIONS, has, nearest_version, rules_of

CompatSource: TypeAlias = Literal["given", "field", "marks", "reproduced", "assumed"]
"""How the version is known: it was given; a field names it; the marks leave no other; it was the only or the first one
to reproduce every decision; or it is assumed."""

FIELDS = ("torch_version", "pytorch_version", "torch")
"""Fields of a snapshot that may name the version."""


def named_version(snapshot: Snapshot) -> str | None:
    """Return the version that a field of the snapshot names."""
    for field in FIELDS:
        if isinstance(found := snapshot.extra.get(field), str):
            return nearest_version(found)
    return None


def possible_versions(snapshot: Snapshot, trace: Trace) -> list[str]:
    """Return the versions that can have written such a snapshot, newest first."""
    if len(trace) > 0 and not trace.has_pools:
        return [OLDEST]
    marks = {
        "2.12": trace.has_pools,
        "2.13": "max_round_threshold" in snapshot.allocator_settings,
        "2.14": "host_segments" in snapshot.extra or bool(np.any(trace.action == Action.ANNOTATE)),
        "2.15": "internal_metadata" in trace.extra,
    }
    least = max((version for version, marked in marks.items() if marked), key=VERSIONS.index, default=OLDEST)
    return [version for version in reversed(VERSIONS) if has(version, least)]


def that_decide_differently(versions: list[str]) -> list[str]:
    """Return the first of each group of versions with the same rules."""
    seen = set()
    kept = []
    for version in versions:
        rules = rules_of(version)
        decisions = (rules.free_order, rules.only_captures_defer, rules.end_of_routing_settles, rules.limit_is_rounded)
        if decisions not in seen:
            seen.add(decisions)
            kept.append(version)
    return kept
