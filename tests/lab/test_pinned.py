"""Pinned memory in a snapshot of PyTorch 2.14 and newer: read, put in order of time, and reported by the commands."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment._cli import main
from allotment._formats.torch_snapshot import HOST, read_snapshot
from allotment.errors import FormatError
from allotment.lab.pinned import pinned_figures
from allotment.lab.timeline.pieces import PieceState
from allotment.lab.timeline.pinned import timeline_of_pinned

MIB = 1 << 20
BASE = 1 << 40
FRAMES = [{"name": "load", "filename": "train.py", "line": 7}]


def entry(action, address, size, time=0, frames=FRAMES):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time, "pool_id": (0, 0),
            "compile_context": "", "user_metadata": "", "frames": frames}  # fmt: skip


def segment(address, size, state="active_allocated"):
    block = {"address": address, "size": size, "requested_size": size, "state": state, "frames": FRAMES}
    return {"device": -1, "address": address, "total_size": size, "allocated_size": size, "active_size": size,
            "requested_size": size, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "blocks": [block], "frames": FRAMES}  # fmt: skip


def snapshot_of(traces, segments=(), device_segments=(), device_traces=()):
    return pickle.dumps(
        {"segments": list(device_segments), "device_traces": list(device_traces), "host_traces": list(traces),
         "host_segments": list(segments)}
    )  # fmt: skip


def read(traces, segments=()):
    return read_snapshot(snapshot_of(traces, segments))


WHOLE_LIFE = [
    entry("segment_alloc", BASE, 4 * MIB, 1),
    entry("alloc", BASE, 4 * MIB, 2),
    entry("segment_alloc", BASE + 8 * MIB, 2 * MIB, 3),
    entry("alloc", BASE + 8 * MIB, 2 * MIB, 4),
    entry("free_requested", BASE, 4 * MIB, 5),
    entry("free_completed", BASE, 4 * MIB, 6),
    entry("segment_free", BASE, 4 * MIB, 7),
]


def test_it_is_a_part_of_the_snapshot_with_a_device_of_its_own():
    snapshot = read(WHOLE_LIFE, [segment(BASE + 8 * MIB, 2 * MIB)])
    assert snapshot.devices == ()
    assert snapshot.extra == {}
    assert snapshot.pinned.devices == (HOST,)
    assert len(snapshot.pinned.traces[0]) == 7
    assert snapshot.pinned.segments.total_size.tolist() == [2 * MIB]
    assert snapshot.stacks[snapshot.pinned.blocks.stack[0]][0].filename == "train.py"


def test_a_snapshot_that_recorded_none_has_no_such_part():
    assert read([]).pinned is None
    assert pinned_figures(read([])) is None


def test_figures_are_of_the_peak():
    found = pinned_figures(read(WHOLE_LIFE, [segment(BASE + 8 * MIB, 2 * MIB)]))
    assert (found.peak_bytes, found.peak_entry, found.in_use_bytes, found.end_bytes) == (6 * MIB, 3, 6 * MIB, 2 * MIB)
    assert found.rounding_bytes_at_most == 3 * MIB - 2
    assert [(holder.where, holder.bytes, holder.blocks) for holder in found.holders] == [
        ("train.py:7 load", 6 * MIB, 2)
    ]


def test_a_block_waits_from_its_free_to_its_completion():
    timeline = timeline_of_pinned(read(WHOLE_LIFE[:6]).pinned)
    states = [timeline.pieces(moment).bytes_in(PieceState.WAITING) for moment in range(timeline.last + 1)]
    assert states == [0, 0, 0, 0, 0, 4 * MIB, 0]


def test_what_is_mentioned_only_by_its_end_was_there_from_the_beginning():
    timeline = timeline_of_pinned(read([entry("free_requested", BASE, 512), entry("free_completed", BASE, 512)]).pinned)
    assert timeline.lives.begin.tolist() == [0]
    assert timeline.reserved_at(0) == 512


def test_without_a_history_the_end_is_shown():
    found = pinned_figures(read([], [segment(BASE, 100), segment(BASE + 4096, 4096, "inactive")]))
    assert (found.entries, found.peak_bytes, found.in_use_bytes, found.cached_bytes) == (0, 4196, 100, 4096)


@pytest.mark.parametrize(
    "traces, segments, complaint",
    [
        ([entry("alloc", 0, 100)], [], "entry 0 of the history of pinned memory cannot be"),
        ([entry("alloc", BASE, 1 << 50)], [], "entry 0 of the history of pinned memory cannot be"),
        ([], [segment(1 << 63, 512)], "segment 0 of the snapshot cannot be"),
    ],
)
def test_what_cannot_be_memory_is_refused(traces, segments, complaint):
    with pytest.raises(FormatError, match=complaint):
        pinned_figures(read(traces, segments))


def test_another_form_is_refused():
    with pytest.raises(FormatError, match=r"host_traces is .* not a list"):
        read_snapshot(pickle.dumps({"segments": [], "host_traces": {}}))


@settings(max_examples=200, deadline=None)
@given(
    traces=st.lists(
        st.builds(
            entry,
            st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom"]),
            st.integers(0, 12).map(lambda place: BASE + 100 * place),
            st.integers(1, 6).map(lambda size: 100 * size),
        )
    ),
    segments=st.lists(st.builds(segment, st.integers(0, 12).map(lambda place: BASE + 100 * place), st.just(300))),
)
def test_any_order_of_entries_gives_moments_that_add_up(traces, segments):
    snapshot = read(traces, segments)
    if snapshot.pinned is None:
        return
    timeline = timeline_of_pinned(snapshot.pinned)
    columns = timeline.columns()
    reserved = [timeline.reserved_at(moment) for moment in range(timeline.last + 1)]
    assert columns.reserved.max() == max(reserved)
    for moment in range(timeline.last + 1):
        pieces = timeline.pieces(moment)
        held = [pieces.bytes_in(state) for state in PieceState if state != PieceState.UNMAPPED]
        assert sum(held) == reserved[moment]
        live = np.flatnonzero((timeline.lives.begin <= moment) & (timeline.lives.freed > moment))
        assert pieces.bytes_in(PieceState.LIVE) == timeline.lives.size[live].sum()


DEVICE_TRACE = [entry("segment_alloc", 1 << 41, 2 * MIB), entry("alloc", 1 << 41, 512)]
DEVICE_SEGMENT = segment(1 << 41, 512) | {"device": 0, "total_size": 2 * MIB}
DEVICE_SEGMENT["blocks"].append({"size": 2 * MIB - 512, "requested_size": 0, "state": "inactive", "frames": []})


@pytest.fixture
def command(tmp_path, capsys):
    """Run a command on a snapshot with both; return its output."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(snapshot_of(WHOLE_LIFE, [segment(BASE + 8 * MIB, 2 * MIB)], [DEVICE_SEGMENT], [DEVICE_TRACE]))

    def command(name, *arguments):
        with pytest.raises(SystemExit) as ended:
            main([name, str(path), *arguments])
        out = capsys.readouterr().out
        assert not ended.value.code, out
        return out

    return command


@pytest.mark.parametrize("name", ["explain", "replay", "tune"])
def test_commands_report_it_beside_the_devices_memory(command, name):
    assert json.loads(command(name, "--json"))["pinned_memory"]["peak_bytes"] == 6 * MIB
    shown = command(name)
    assert "Pinned memory: 6.0 MiB at the most, at entry 3 of its history; 6.0 MiB of it in use" in shown
    assert "--pinned tight does not round" in shown


def test_the_viewer_shows_it_as_a_run_of_its_own(command, tmp_path):
    runs = json.loads(command("view", "--html", str(tmp_path / "page.html"), "--json"))["runs"]
    assert [(run["device"], run["peak_reserved_bytes"]) for run in runs] == [(0, 2 * MIB), (HOST, 6 * MIB)]
