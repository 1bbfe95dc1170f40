"""What a program says about its own memory: annotations, metadata, tenants, scopes, compiled regions.

A snapshot has such texts in several places, depending on PyTorch's version and on the program:

- *annotation*: an entry about one block in use, `annotate` (2.14 and newer);
- *metadata*: a text of the requesting thread, `torch.cuda.memory._set_memory_metadata`;
- *tenant*: the owner of the block, if several users share an allocator of this package;
- *scope*: `torch.profiler.record_function`, by the time at which the block was allocated;
- *compiled*: the region of `torch.compile` that made the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action
from allotment._texts import printable
from allotment.lab.replay.run import Recording

__all__ = ["Labels", "labels_of", "scope_starts"]

NOT_COMPILED = "N/A"
NOTHING = np.zeros(0, dtype=np.int32)
LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What one of the sources says."""

    source: str
    names: list[str]
    of_life: NDArray[np.int32]
    """By life: the number of its name, -1 for none."""


def labels_of(recording: Recording) -> list[Labels]:
    """Return the labels of those sources that say anything."""
    sources: dict[str, Callable[[Recording], tuple[NDArray[np.int32], Sequence[str]]]] = {
        "annotation": _annotations,
        "metadata": _metadata,
        "tenant": _tenants,
        "scope": _scopes,
        "compiled": _regions,
    }
    found = []
    for source, tell in sources.items():
        number, names = tell(recording)
        if np.any(number >= 0):
            found.append(Labels(source, [printable(name) for name in names], number))
    return found


def _at_allocation(recording: Recording, column: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return by life the value of a history column at the entry that allocated it."""
    entry = recording.allocated_at
    return np.where(entry >= 0, column[np.maximum(entry, 0)], -1).astype(np.int32)


def _at_allocation_named(
    recording: Recording, column: NDArray[np.int32], names: Sequence[str]
) -> tuple[NDArray[np.int32], Sequence[str]]:
    """Variant for a column of texts; empty texts count as none."""
    nameless = [place for place, name in enumerate(names) if name in ("", NOT_COMPILED)]
    if len(nameless) == len(names):
        return NOTHING, ()
    number = _at_allocation(recording, column)
    number[np.isin(number, nameless)] = -1
    return number, names


def _metadata(recording: Recording) -> tuple[NDArray[np.int32], Sequence[str]]:
    return _at_allocation_named(recording, recording.trace.user_metadata, recording.snapshot.user_metadata)


def _regions(recording: Recording) -> tuple[NDArray[np.int32], Sequence[str]]:
    return _at_allocation_named(recording, recording.trace.compile_context, recording.snapshot.compile_contexts)


def _tenants(recording: Recording) -> tuple[NDArray[np.int32], Sequence[str]]:
    tenants = recording.trace.extra.get("tenant", {})
    if not tenants:
        return NOTHING, ()
    numbers: dict[str, int] = {}
    column = np.full(len(recording.trace), -1, dtype=np.int32)
    for entry, name in tenants.items():
        column[entry] = numbers.setdefault(str(name), len(numbers))
    return _at_allocation(recording, column), list(numbers)


def _annotations(recording: Recording) -> tuple[NDArray[np.int32], Sequence[str]]:
    """Return the last text noted for a block, at any point of its life."""
    trace = recording.trace
    entries = np.flatnonzero(trace.action == Action.ANNOTATE)
    if len(entries) == 0:
        return NOTHING, ()
    number = np.full(len(recording.allocated_at), -1, dtype=np.int32)
    lives = recording.lives_at(trace.address[entries], entries)
    number[lives[lives >= 0]] = trace.user_metadata[entries[lives >= 0]]
    return number, recording.snapshot.user_metadata


def _scopes(recording: Recording) -> tuple[NDArray[np.int32], Sequence[str]]:
    """Return the scope that began last among those open when a block was allocated."""
    numbers: dict[str, int] = {}
    times: list[int] = []
    innermost: list[int] = []
    open_scopes: list[int] = []
    for note in sorted(filter(_is_scope, recording.snapshot.external_annotations), key=_time):
        if note.get("device", recording.device) != recording.device:
            continue
        number = numbers.setdefault(str(note["name"]), len(numbers))
        if note["stage"] == "START":
            open_scopes.append(number)
        elif number in open_scopes:
            del open_scopes[len(open_scopes) - 1 - open_scopes[::-1].index(number)]
        times.append(_time(note))
        innermost.append(open_scopes[-1] if open_scopes else -1)
    if not times:
        return NOTHING, ()
    place = np.searchsorted(np.array(times, dtype=np.int64), recording.trace.time_us, "right")
    return _at_allocation(recording, np.array([-1, *innermost], dtype=np.int32)[place]), list(numbers)


def scope_starts(recording: Recording, prefix: str) -> list[int]:
    """Return when scopes with this prefix began on the recording's device, in microseconds and in order."""
    notes = filter(_is_scope, recording.snapshot.external_annotations)
    return sorted(
        _time(note)
        for note in notes
        if note["stage"] == "START"
        and str(note["name"]).startswith(prefix)
        and note.get("device", recording.device) == recording.device
    )


def _is_scope(note: dict[str, Any]) -> bool:
    time_us = note.get("time_us")
    is_time = isinstance(time_us, int) and 0 <= time_us <= LATEST
    return is_time and isinstance(note.get("name"), str) and note.get("stage") in ("START", "END")


def _time(note: dict[str, Any]) -> int:
    return int(note["time_us"])
