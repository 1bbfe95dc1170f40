"""The lab for programs and notebooks: the output of the commands, as objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import BinaryIO, TypeAlias

from allotment._formats.torch_snapshot import naming
from allotment._settings import Settings
from allotment.lab.explain.difference import Comparison, compare
from allotment.lab.explain.report import AtPeak, Explanation, at_end, at_peak, explain_end, explain_study
from allotment.lab.explain.report import explain as explain_recording
from allotment.lab.explain.study import Study
from allotment.lab.replay.result import Result
from allotment.lab.replay.run import Recording, has_history, read_capacity, read_recording, read_source, recording_of
from allotment.lab.tune.search import Goal, Tuned
from allotment.lab.tune.search import tune as tune_recording

__all__ = ["Source", "diff", "explain", "read_recording", "replay", "tune"]

File: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO
Source: TypeAlias = File | Recording
"""A path, "sample", the content of a file, a file object, or a recording."""

Progress: TypeAlias = Callable[[str], None]


def _recording(source: Source) -> Recording:
    return source if isinstance(source, Recording) else read_recording(source)


def replay(source: Source, settings: Settings | str | None = None, capacity: int | str | None = None) -> Result:
    """Run a recorded history through the engine: as recorded, under other settings, or on a device of a given size.

    Raises FormatError, SettingsError, RequestError for a capacity that no device has, OSError.
    """
    size = read_capacity(capacity) if isinstance(capacity, str) else capacity
    return _recording(source).replay(settings, size)


def explain(source: Source) -> Explanation:
    """Explain why a run needed its memory, and what would help. For a snapshot without a history, explain its end.

    Raises FormatError, OSError.
    """
    return explain_recording(source) if isinstance(source, Recording) else explain_file(source)[0]


def explain_file(
    source: File, device: int | None = None, compat: str | None = None, progress: Progress = lambda what: None
) -> tuple[Explanation, Study | None]:
    """Explain one device of a snapshot by the rules of one PyTorch; also return the study, None without a history.

    Raises FormatError, SettingsError for an unknown PyTorch, OSError.
    """
    if compat is not None:
        compat = Settings.parse(f"compat:{compat}").compat
    progress("reading")
    snapshot = read_source(source)
    with naming(source):
        if not has_history(snapshot):
            return explain_end(snapshot, device), None
        study = Study(recording_of(snapshot, device, progress, compat))
        return explain_study(study, progress), study


def tune(source: Source, goal: str = "balanced", budget: float = 60.0, settings: Iterable[str] | None = None) -> Tuned:
    """Try settings on a recorded run: the goal is "min-memory", "balanced" or "fit:20GiB"; `budget` is in seconds.

    `settings` are those to try; the default is all that are worth it. Raises FormatError, RequestError, SettingsError,
    OSError.
    """
    wanted = Goal.parse(goal)
    return tune_recording(_recording(source), wanted, budget, settings=settings)


def diff(
    a: Source, b: Source | None = None, *, a_settings: str | None = None, b_settings: str | None = None
) -> Comparison:
    """Compare two runs by line of code; without `b`, two settings of one run.

    Each run is as recorded unless settings are given. Raises FormatError, SettingsError, OSError.
    """
    if b is None:
        recording = _recording(a)
        return compare(at_peak(recording, a_settings), at_peak(recording, b_settings))
    return compare(peak_of(a, a_settings), peak_of(b, b_settings))


def peak_of(source: Source, settings: str | None = None, device: int | None = None) -> AtPeak:
    """Return the moment of the peak: as recorded, or under other settings; for a snapshot without a history, its end.

    Raises FormatError, SettingsError, OSError.
    """
    if isinstance(source, Recording):
        return at_peak(source, settings)
    snapshot = read_source(source)
    with naming(source):
        if settings is None and not has_history(snapshot):
            return at_end(snapshot, device)
        return at_peak(recording_of(snapshot, device), settings)
