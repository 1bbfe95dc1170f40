"""Compares results with the recording, and finds where they differ.

Every function here raises Difference at the first place that differs. Differences that the recordings leave undefined
(the order inside a run of completions, and what follows from it) are returned, to be reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

ORDER_DEPENDENT = re.compile(r"inactive_split(_bytes)?\..+\.(peak|allocated|freed)")
"""Counters that depend on the order in which neighbours complete."""

MISSING = "nothing"


class Difference(Exception):
    """The first difference from the recording."""

    def __init__(self, what: str, expected: Any, got: Any, trace_index: int | None = None) -> None:
        super().__init__(f"{what}: expected {expected}, got {got}")
        self.what = what
        self.expected = expected
        self.got = got
        self.trace_index = trace_index


def compare(what: str, expected: Any, got: Any) -> None:
    """Compare values in depth; of an object, all recorded keys."""
    if isinstance(expected, dict) and isinstance(got, Mapping):
        for key, value in expected.items():
            compare(f"{what}.{key}", value, got.get(key, MISSING))
    elif isinstance(expected, list) and isinstance(got, (list, tuple)):
        for index, (value, other) in enumerate(zip(expected, got, strict=False)):
            compare(f"{what}[{index}]", value, other)
        if len(expected) != len(got):
            raise Difference(f"length of {what}", len(expected), len(got))
    elif expected != got or isinstance(expected, bool) != isinstance(got, bool):
        raise Difference(what, expected, got)


def compare_stats(expected: dict[str, int], got: Mapping[str, int], peaks_depend_on_order: bool) -> set[str]:
    """Compare counters; return the names of those that may differ, because they depend on an undefined order."""
    if expected.keys() != got.keys():
        raise Difference("names of the counters", sorted(expected.keys() - got.keys()), sorted(got.keys() - expected))
    tolerated = set()
    for name, value in expected.items():
        if value == got[name]:
            continue
        may_differ = ORDER_DEPENDENT.fullmatch(name) or (peaks_depend_on_order and name.endswith(".peak"))
        if not may_differ:
            raise Difference(f"stats[{name!r}]", value, got[name])
        tolerated.add(name)
    return tolerated


def compare_segments(
    what: str, expected: list[Any], got: list[dict[str, Any]], reordered: Collection[int] = ()
) -> set[str]:
    """Compare segments and their blocks, in all recorded keys.

    What an inactive block shows as requested is left from one of the blocks it was merged from; which
    one depends on the order in which they completed. So it may differ in segments where blocks
    completed in another order than recorded (`reordered`, their addresses).
    """
    tolerated = set()
    for index, (segment, other) in enumerate(zip(expected, got, strict=False)):
        try:
            compare(f"{what}[{index}]", segment, other)
        except Difference:
            if not _only_stale_sizes_differ(segment, other, reordered):
                raise
            tolerated.add("requested_size of inactive blocks")
    if len(expected) != len(got):
        raise Difference(f"number of {what}", len(expected), len(got))
    return tolerated


def _only_stale_sizes_differ(expected: Any, got: dict[str, Any], reordered: Collection[int]) -> bool:
    end = got["address"] + got["total_size"]
    if not any(got["address"] <= address < end for address in reordered):
        return False
    try:
        without = {**expected, "blocks": [_without_stale_size(block) for block in expected["blocks"]]}
        compare("", without, got)
    except (Difference, KeyError, TypeError):
        return False
    return True


def _without_stale_size(block: dict[str, Any]) -> dict[str, Any]:
    if block["state"] != "inactive":
        return block
    return {key: value for key, value in block.items() if key != "requested_size"}


def compare_oom_text(expected: str, got: str) -> None:
    """Compare texts, apart from the memory of other processes at the time."""
    wanted, came = _own_figures(expected), _own_figures(got)
    if wanted != came:
        raise Difference("text of the out-of-memory error", wanted, came)


def _own_figures(text: str) -> str:
    before, free, rest = text.partition("is free. ")
    processes, allocated, figures = rest.partition("Of the allocated memory")
    limit = processes.split(" ")[-4:] if processes.endswith(" allowed; ") else []
    return before + free + " ".join(limit) + allocated + figures
