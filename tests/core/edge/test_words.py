"""Words and layouts shared between C and Python, and between writer and reader."""

import io
import pickle

import numpy as np
import pytest

import allotment
from allotment._core.edge.words import ACTIONS, ENTRY_FIELDS, Action, BlockState, SegmentType, word_of
from allotment._formats.torch_snapshot import read_snapshot
from allotment.lab.replay.records import CALL, LAYOUT, PIECE


def eventful_allocator() -> allotment.Allocator:
    """Blocks in every state, segments of both types, and every action that an engine reports in its history."""
    allocator = allotment.Allocator("sim:64MiB", settings="expandable_segments:True")
    allocator.record_history()
    stream = allotment.Stream(allocator)
    small, pending = allocator.malloc(1000), allocator.tenant("other").malloc(1000)
    large = allocator.malloc(30 << 20)
    allocator.free(large)
    allocator.empty_cache()
    with pytest.raises(allotment.OutOfMemoryError):
        allocator.malloc(1 << 30)
    allocator.settings = "expandable_segments:False"
    allocator.free(allocator.malloc(12 << 20))
    allocator.empty_cache()
    allocator.malloc(12 << 20)
    allocator.device.launch(stream.handle)
    allocator.record_stream(pending, stream)
    allocator.free(pending)
    allocator.free(small)
    allocator.history.annotate(allocator.malloc(100), "noted")
    allocator.snapshot()
    return allocator


def test_the_reader_knows_every_word_that_is_written(tmp_path):
    allocator = eventful_allocator()
    written = allocator.snapshot()
    path = tmp_path / "snapshot.pickle"
    allocator.history.dump_snapshot(path)
    for content in (path.read_bytes(), pickle.dumps(written)):
        snapshot = read_snapshot(io.BytesIO(content))
        (trace,) = snapshot.traces
        assert set(trace.extra) <= {"tenant"}, "a word of ours, which PyTorch does not have"
        assert set(snapshot.blocks.extra) <= {"tenant"}
        assert not snapshot.segments.extra
        assert not snapshot.extra
        assert set(trace.action.tolist()) == set(range(len(ACTIONS)))
        assert {word_of(BlockState(state)) for state in snapshot.blocks.state} == {
            "inactive",
            "active_allocated",
            "active_pending_free",
        }
        assert {word_of(SegmentType(kind)) for kind in snapshot.segments.type} == {"small", "large"}
    assert set().union(*written["device_traces"][0]) <= set(ENTRY_FIELDS)


def test_the_numbers_of_actions_are_the_engines_own():
    assert [word_of(Action(number)) for number in range(len(ACTIONS))] == list(ACTIONS)
    assert len(ACTIONS) == Action.USER_DEFINED, "what no engine reports comes behind what engines report"


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        (CALL, "size stream block pool due kind"),
        (PIECE, "size requested block kind"),
        (LAYOUT, "address size stream pool small expandable pieces"),
    ],
)
def test_numpy_sees_the_fields_of_the_compiled_records(layout, fields):
    assert layout.names == tuple(fields.split())
    assert layout.isnative
    assert layout.itemsize == sum(layout[name].itemsize for name in layout.names), "packed"
    assert {layout[name] for name in layout.names} == {np.dtype(np.uint64), np.dtype(np.int32)}
