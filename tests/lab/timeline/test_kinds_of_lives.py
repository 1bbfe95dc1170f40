"""A timeline grouped by the lines and kinds of memory that `explain` reports."""

from __future__ import annotations

from allotment.lab import explain, read_recording
from allotment.lab.timeline.timeline import timeline_of
from helpers.known_causes import Program, Training


def test_a_timeline_can_be_grouped_by_kind_of_memory() -> None:
    program = Program()
    training = Training(program)
    training.load()
    for _ in range(6):
        training.step()
    timeline = timeline_of(read_recording(program.recorded()))
    assert "kind" in timeline.groupings
    expected = {"parameters", "gradients", "optimizer", "activations", "temporaries"}
    assert set(timeline.grouping("kind").names) == expected


def test_a_timeline_of_unknown_memory_offers_no_kinds() -> None:
    assert "kind" not in timeline_of(read_recording("sample")).groupings


def test_lines_of_a_timeline_are_those_of_explain_in_the_backward_pass_too() -> None:
    program = Program()
    training = Training(program)
    training.load()
    for _ in range(6):
        training.step()
    recording = read_recording(program.recorded())
    names = timeline_of(recording).grouping("line").names
    assert any(name.endswith("train.py:56 train, in the backward pass") for name in names)
    assert {each.where for each in explain(recording).peak.holders} <= {*names}
