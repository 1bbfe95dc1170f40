"""A snapshot is untrusted: whatever it contains, no code of it runs, nothing crashes, and the cost stays small."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment._formats.pickle_columns import RowReader, StackTable, TextTable
from allotment._formats.pickle_reader import PickleTree, Value
from allotment._formats.torch_snapshot import read_snapshot
from allotment.errors import FormatError
from helpers import hostile_files
from helpers.effort import some
from helpers.snapshot_forms import small_snapshot

MOST_MIB = 256
GROUPS = {
    group.__name__: group
    for group in (
        hostile_files.object_makers,
        hostile_files.lengths_that_lie,
        hostile_files.deep_nesting,
        hostile_files.memo_tricks,
        hostile_files.machine_misuse,
        hostile_files.not_snapshots,
        hostile_files.truncated,
        hostile_files.wrong_types,
        hostile_files.missing_fields,
        hostile_files.broken_gzip,
    )
}


def tree() -> PickleTree:
    return PickleTree(max_memory=1 << 30, max_density=8, free_memory=1 << 25)


def one_line_complaint(name: str, data: bytes) -> str:
    complaint = hostile_files.complaint_about(data)
    assert complaint is not None, f"{name} was accepted"
    assert complaint.isprintable(), f"{name}: {complaint!r}"
    assert complaint.startswith("at byte "), f"{name}: {complaint!r}"
    assert len(complaint) < 300, f"{name}: {complaint!r}"
    return complaint


def test_armed_pickles_would_run_in_python_and_never_run_here(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    armed = list(hostile_files.armed_pickles(f"echo > {marker}"))
    assert len(armed) >= 150
    for name, data in armed:
        one_line_complaint(name, data)
        assert not marker.exists(), f"{name} ran"
    # The same files without the reader: if they did nothing anyway, the test above would prove nothing.
    for name, data in armed:
        with contextlib.suppress(AttributeError, TypeError):  # which some raise after they ran
            pickle.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        assert marker.exists(), f"{name} is not armed"
        marker.unlink()


@pytest.mark.parametrize("group", GROUPS)
def test_every_hostile_file_ends_in_one_line(group: str) -> None:
    for name, data in GROUPS[group]():
        one_line_complaint(name, data)


@pytest.mark.slow
def test_bombs_are_stopped_by_ratio_or_by_density() -> None:
    complaints = {name: one_line_complaint(name, data) for name, data in hostile_files.gzip_bombs()}
    assert "max_ratio" in complaints["bomb of frames"]
    assert "max_density" in complaints["bomb of None"]
    assert "max_density" in complaints["bomb of lists, not packed"]


@pytest.mark.slow
def test_reading_all_hostile_files_takes_little_memory(tmp_path: Path) -> None:
    folder, marker = tmp_path / "files", tmp_path / "marker"
    folder.mkdir()
    for count, (_, data) in enumerate(hostile_files.hostile_files(f"echo > {marker}")):
        (folder / str(count)).write_bytes(data)
    done = subprocess.run(
        [sys.executable, hostile_files.__file__, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["files"] > 7000
    assert report["accepted"] == []
    assert report["grown_mib"] < MOST_MIB, report
    assert not marker.exists()


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_give_a_snapshot_or_one_line(seed: int) -> None:
    outcomes = {True: 0, False: 0}
    for name, data in hostile_files.flipped(2000, seed):
        complaint = hostile_files.complaint_about(data)
        outcomes[complaint is None] += 1
        assert complaint is None or complaint.isprintable(), name
    assert min(outcomes.values()) > 0


# Opcodes of plain values with their arguments, thrown together at random.
ARGUMENTS = st.sampled_from(
    [
        *(bytes([code]) for code in b"N)]}(tueas.\x85\x86\x87\x88\x89\x94\x94\x94\x94"),
        *(b"h" + bytes([number]) for number in range(4)),
        *(b"q" + bytes([number]) for number in (0, 1, 5)),
        b"j\x02\x00\x00\x00",
        b"r\x03\x00\x00\x00",
        b"K\x07",
        b"M\x00\x80",
        b"J\x00\x00\x00\x80",
        b"\x8a\x00",
        b"\x8a\x01\xff",
        b"\x8a\x08" + b"\xff" * 8,
        b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
        b"\x8a\x09" + b"\xff" * 8 + b"\x00",
        b"\x8b\x02\x00\x00\x00\x00\x80",
        b"G?\xf8\x00\x00\x00\x00\x00\x00",
        b"\x8c\x01a",
        b"X\x02\x00\x00\x00\xc3\xa9",
        b"\x8d\x01" + bytes(7) + b"b",
        b"C\x01c",
        b"B\x01\x00\x00\x00d",
        b"\x8e\x01" + bytes(7) + b"e",
        # Whole containers, so that more of the random pickles come to an end.
        b"]\x94(K\x01e",
        b"}\x94(\x8c\x01aK\x01u",
        b"](NNe",
        b"}\x8c\x01kNs",
    ]
)


@settings(deadline=None, max_examples=some(2000))
@given(opcodes=st.lists(ARGUMENTS, max_size=30), cut=st.integers(0, 60))
def test_what_the_tree_accepts_is_what_pickle_loads(opcodes: list[bytes], cut: int) -> None:
    data = b"\x80\x04" + b"".join(opcodes) + b"."
    whole, pieces = tree(), tree()
    try:
        whole.feed(data)
        accepted = whole.finish().plain()
    except FormatError:
        return
    pieces.feed(data[:cut])
    pieces.feed(data[cut:])
    expected = pickle.loads(data)
    assert repr(pieces.finish().plain()) == repr(accepted)
    if not has_tuple_keys(expected):
        assert repr(accepted) == repr(expected)


def test_memoize_counts_numbers_given_rather_than_the_highest_one() -> None:
    data = b"\x80\x04](K\x01q\x05K\x02\x94h\x01e."
    reader = tree()
    reader.feed(data)
    assert reader.finish().plain() == pickle.loads(data) == [1, 2, 2]


def has_tuple_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return any(isinstance(key, tuple) or has_tuple_keys(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(has_tuple_keys(item) for item in value)


@settings(deadline=None, max_examples=some(1000))
@given(
    data=st.binary(max_size=200),
    header=st.sampled_from([b"", b"\x80\x04", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"]),
)
def test_random_bytes_give_a_snapshot_or_one_line(data: bytes, header: bytes) -> None:
    complaint = hostile_files.complaint_about(header + data)
    assert complaint is None or complaint.isprintable()


def test_texts_from_the_file_cannot_break_the_message_into_lines() -> None:
    snapshot = small_snapshot()
    snapshot["device_traces"][0][0]["size"] = "12\n\x1b[31mError: \u2028 all fine\ud800" + "x" * 1000
    assert "all fine" in one_line_complaint("line breaks", pickle.dumps(snapshot))
    snapshot = small_snapshot()
    snapshot["device_traces"][0][0]["\nsize\n"] = {(((),),): 1}
    one_line_complaint("line breaks in a key", pickle.dumps(snapshot))


def test_complaints_name_byte_row_and_field() -> None:
    snapshot = small_snapshot()
    snapshot["device_traces"][0][3]["stream"] = -7
    data = pickle.dumps(snapshot)
    complaint = one_line_complaint("stream", data)
    offset = int(complaint.split("at byte ")[1].split(" ")[0])
    assert data[offset : offset + 1] == b"}"
    assert b"free_requested" in data[offset : offset + 60]
    assert "trace entry 3: 'stream' is the number -7, not an integer from 0 to" in complaint


def test_refused_opcodes_are_named_with_their_byte() -> None:
    data = b"\x80\x02N" + b"cos\nsystem\n."
    assert one_line_complaint("GLOBAL", data).startswith("at byte 3 of the pickle: GLOBAL would load code")


def test_nothing_is_warned_of_while_reading_hostile_numbers() -> None:
    largest = 2**64 - 1
    blocks = [{"size": largest, "state": "inactive"}] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshot = read_snapshot(pickle.dumps([{"address": largest, "total_size": largest, "blocks": blocks}] * 2))
    assert len(snapshot.blocks) == 6


def test_a_tree_cannot_be_used_before_its_end_or_after_it() -> None:
    unfinished, other = tree(), tree()
    unfinished.feed(b"\x80\x04]")
    for user in (TextTable, StackTable):
        with pytest.raises(ValueError, match="not read to its end"):
            user(unfinished)
    with pytest.raises(ValueError, match="not read to its end"):
        RowReader("row", unfinished)
    other.feed(b"\x80\x04].")
    rows = other.finish()
    with pytest.raises(FormatError, match="goes on"):
        other.feed(b"N")
    unfinished.feed(b".")
    unfinished.finish()
    with pytest.raises(ValueError, match="another pickle"):
        RowReader("row", unfinished).read([rows])
    with pytest.raises(ValueError, match="another pickle"):
        RowReader("row", unfinished).stack("stack", "frames", table=StackTable(other))
    with pytest.raises(TypeError):
        Value()
