"""Replays recorded ground truth through the engine and compares every decision.

It makes the calls of a recording again, on a simulated device that answers from the recording what an allocator cannot
decide itself. Everything else must be equal: each trace entry, each address, each refusal and its text, each counter,
and the segments and settings at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from allotment.errors import AllotmentError, FormatError, InvariantError, UnsupportedError
from allotment.lab.conformance.compare import Difference, compare, compare_segments, compare_stats
from allotment.lab.conformance.file import GroundTruth, Op, TraceEntry, read_ground_truth
from allotment.lab.conformance.ops import OPERATIONS, QUESTIONS, SHAPES
from allotment.lab.conformance.trace import TraceMismatch
from allotment.lab.conformance.world import World, world_of

Status = Literal["equal", "different", "not_yet", "bad"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one file, and the first difference."""

    file: str
    status: Status
    compat: str | None = None
    """The version whose rules were used; None if the file could not be read."""
    op: int | None = None
    """Index of the op; None where the place is not inside one."""
    trace_index: int | None = None
    what: str = ""
    """What was compared there, or the reason for a status other than different."""
    expected: Any = None
    got: Any = None
    order_dependent: tuple[str, ...] = ()
    """Legitimate differences: they depend on an order that the recorded allocator leaves undefined."""


def check_file(path: Path, *, check_invariants: bool = False) -> Result:
    """Replay one file. Does not raise for anything that a file can hold."""
    try:
        recording = read_ground_truth(path, SHAPES)
        run = _Run(recording, check_invariants)
    except FormatError as error:
        return Result(str(path), "bad", what=str(error))
    compat = recording.compat
    try:
        run.all_ops()
    except Difference as found:
        where = found.trace_index if found.trace_index is not None else run.trace_index
        what = (found.what, found.expected, found.got)
        return Result(str(path), "different", compat, run.op, where, *what, run.noted())
    except _NotYet as error:
        return Result(str(path), "not_yet", compat, error.op, error.trace_index, str(error))
    except FormatError as error:
        return Result(str(path), "bad", compat, run.op, what=f"ops[{run.op}] ({run.op_name}): {error}")
    finally:
        run.close()
    return Result(str(path), "equal", compat, order_dependent=run.noted())


class _NotYet(Exception):
    """The engine does not support this op."""

    def __init__(self, what: str, op: int, trace_index: int | None) -> None:
        super().__init__(what)
        self.op = op
        self.trace_index = trace_index


class _Run:
    """One replay in progress."""

    def __init__(self, recording: GroundTruth, check_invariants: bool) -> None:
        self.op: int | None = None
        self._recording = recording
        self._check_invariants = check_invariants
        self._world: World = world_of(recording)
        self._tape = self._world.script.tape
        self._unanswered: _NotYet | None = None

    def close(self) -> None:
        self._world.close()

    @property
    def op_name(self) -> str:
        return "" if self.op is None else str(self._recording.ops[self.op]["op"])

    @property
    def trace_index(self) -> int | None:
        return self._tape.position if self._recording.trace else None

    def noted(self) -> tuple[str, ...]:
        return tuple(sorted(self._world.noted))

    def all_ops(self) -> None:
        points = iter(self._recording.stats)
        point = next(points, None)
        for index, op in enumerate([*self._recording.ops, None]):
            while point is not None and point.at == index:
                stats = self._world.allocator.stats()
                self._world.noted |= compare_stats(point.stats, stats, self._world.peaks_depend_on_order)
                point = next(points, None)
            if op is not None:
                self.op = index
                try:
                    self._one_op(index, op)
                except _NotYet as missing:
                    if op["op"] not in QUESTIONS:
                        raise
                    self._unanswered = self._unanswered or missing
        self.op = None
        self._end_state()
        if self._unanswered is not None:
            raise self._unanswered

    def _one_op(self, index: int, op: Op) -> None:
        script = self._world.script
        script.begin_op(op, index)
        self._world.trace_order_is_free = False
        outcome: Difference | None = None
        try:
            with self._world.current_stream(op):
                OPERATIONS[op["op"]](self._world, op)
            _compare_own_calls(op.get("own", []), script.own_calls)
        except Difference as difference:
            outcome = difference
        except (InvariantError, FormatError):
            raise
        except UnsupportedError as error:
            raise self._not_yet(str(error)) from None
        except AttributeError as error:
            if error.obj is not self._world.allocator:
                raise
            raise self._not_yet(f"no {error.name}") from None
        except AllotmentError as error:
            outcome = Difference("outcome", "no error", f"{type(error).__name__}: {error}")
        # An op's decision shows in the trace before it shows in the op's result.
        self._compare_trace()
        if outcome is not None:
            raise outcome
        if self._check_invariants:
            self._world.allocator.inspection.check_invariants()

    def _not_yet(self, reason: str) -> _NotYet:
        assert self.op is not None
        return _NotYet(f"{self.op_name} ({reason})", self.op, self.trace_index)

    def _compare_trace(self) -> None:
        world = self._world
        try:
            as_recorded = self._tape.end_op(any_order=world.trace_order_is_free)
        except TraceMismatch as mismatch:
            raise _difference(mismatch) from None
        if world.trace_order_is_free and not as_recorded:
            world.peaks_depend_on_order = True

    def _end_state(self) -> None:
        try:
            self._tape.end()
        except TraceMismatch as mismatch:
            raise _difference(mismatch) from None
        snapshot = self._world.allocator.snapshot()
        reordered = self._tape.reordered_completions
        final = self._recording.final_segments
        self._world.noted |= compare_segments("final segments", final, snapshot["segments"], reordered)
        compare("final settings", self._recording.final_settings, snapshot["allocator_settings"])


def _compare_own_calls(expected: list[list[Any]], got: list[list[Any]]) -> None:
    """Compare in order, except for frees: frees of different pools come in any order."""

    def by_kind(calls: list[list[Any]]) -> list[list[Any]]:
        return [call for call in calls if call[0] == "alloc"] + sorted(call for call in calls if call[0] == "free")

    compare("calls of the custom allocator", by_kind(expected), by_kind(got))


def _difference(mismatch: TraceMismatch) -> Difference:
    return Difference("trace entry", _in_words(mismatch.expected), _in_words(mismatch.got), mismatch.index)


def _in_words(entry: TraceEntry | None) -> str:
    if entry is None:
        return "nothing"
    place = f"{entry.address} bytes free" if entry.action == "oom" else f"at {entry.address:#x}"
    pool = "" if entry.pool is None else f", pool {entry.pool}"
    notes = "".join(f", {note!r}" for note in (entry.user_metadata, entry.internal_metadata) if note)
    return f"{entry.action} {place}, {entry.size} bytes, stream {entry.stream}{pool}{notes}"
