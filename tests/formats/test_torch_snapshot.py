"""A snapshot's columns agree with its dict form, whichever program wrote it and however it was packed."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allotment._core.edge.words import Action, BlockState, SegmentType
from allotment._formats.pickle_reader import PickleTree
from allotment._formats.torch_snapshot import Frame, Limits, read_snapshot
from allotment.errors import FormatError
from helpers.snapshot_forms import PICKLE_PROTOCOLS, assert_columns_equal, small_snapshot, write_as_torch_cpp

RECORDED = sorted((Path(__file__).parent / "data").glob("*.pickle.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_snapshot_equals_what_pickle_loads(path: Path) -> None:
    with gzip.open(path) as file:
        expected = pickle.load(file)
    snapshot = read_snapshot(path)
    assert len(snapshot.traces[0]) > 1000
    assert_columns_equal(snapshot, expected)
    assert snapshot.devices == (0,)
    assert not snapshot.traces[0].has_pools
    assert snapshot.extra == {} == snapshot.traces[0].extra == snapshot.segments.extra == snapshot.blocks.extra


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
@pytest.mark.parametrize("protocol", PICKLE_PROTOCOLS)
def test_recorded_snapshot_reads_the_same_in_every_protocol(path: Path, protocol: int) -> None:
    with gzip.open(path) as file:
        expected = pickle.load(file)
    assert_columns_equal(read_snapshot(pickle.dumps(expected, protocol)), expected)


@pytest.mark.parametrize("protocol", (0, 1))
def test_protocols_before_2_are_refused_by_name(protocol: int) -> None:
    with pytest.raises(FormatError, match="protocol 2 to 5"):
        read_snapshot(pickle.dumps(small_snapshot(), protocol))


def test_python_and_cpp_writers_give_the_same_columns() -> None:
    expected = small_snapshot()
    expected["segments"][1]["address"] = 0x7F1000000000  # the C++ writer has signed integers only
    assert_columns_equal(read_snapshot(write_as_torch_cpp(expected)), expected)


def test_every_known_field_reaches_its_column() -> None:
    expected = small_snapshot()
    snapshot = read_snapshot(pickle.dumps(expected))
    assert_columns_equal(snapshot, expected)
    assert snapshot.devices == (0, 1)
    assert snapshot.traces[0].action.tolist()[-1] == Action.OOM
    assert snapshot.traces[0].address.tolist()[-1] == 12345


def test_columns_have_the_promised_types() -> None:
    snapshot = read_snapshot(pickle.dumps(small_snapshot()))
    trace = snapshot.traces[0]
    assert {name: getattr(trace, name).dtype for name in ("action", "time_us", "stack", "compile_context")} == {
        "action": np.uint8,
        "time_us": np.int64,
        "stack": np.int32,
        "compile_context": np.int32,
    }
    for name in ("address", "size", "stream", "pool_first", "pool_second"):
        assert getattr(trace, name).dtype == np.uint64
    assert snapshot.segments.device.dtype == np.int32
    assert snapshot.segments.is_expandable.dtype == np.bool_


def test_equal_stacks_are_stored_once_whether_shared_or_copied() -> None:
    snapshot = read_snapshot(pickle.dumps(small_snapshot()))
    main, forward = Frame("main", "train.py", 7), Frame("forward", "model.py", 300)
    assert sorted(snapshot.stacks) == [(forward, main), (main,)]
    assert snapshot.traces[0].stack.tolist()[1] == snapshot.traces[0].stack.tolist()[2] == snapshot.segments.stack[0]


def test_plain_gzipped_path_bytes_and_file_are_all_read(tmp_path: Path) -> None:
    expected = small_snapshot()
    data = pickle.dumps(expected)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    packed = gzip.compress(data)
    middle = len(data) // 2
    two_members = gzip.compress(data[:middle]) + gzip.compress(data[middle:])
    for source in (path, str(path), data, io.BytesIO(data), packed, io.BytesIO(packed), two_members, packed + bytes(9)):
        assert_columns_equal(read_snapshot(source), expected)


class Trickle(io.BytesIO):
    """A file that returns a few bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(1 + self.tell() % 3)


def test_a_file_that_trickles_is_read_too() -> None:
    data = pickle.dumps(small_snapshot())
    assert_columns_equal(read_snapshot(Trickle(data)), small_snapshot())
    assert_columns_equal(read_snapshot(Trickle(gzip.compress(data))), small_snapshot())


def test_pieces_of_one_byte_read_like_one_piece() -> None:
    data = pickle.dumps(small_snapshot())
    tree = PickleTree(max_memory=1 << 30, max_density=8, free_memory=1 << 25)
    for byte in data:
        tree.feed(bytes([byte]))
    assert tree.finish().plain() == small_snapshot()


def test_bare_list_of_segments_is_a_snapshot_without_history() -> None:
    segments = small_snapshot()["segments"]
    snapshot = read_snapshot(pickle.dumps(segments))
    assert_columns_equal(snapshot, {"segments": segments})
    assert snapshot.traces == ()
    assert snapshot.devices == (0, 1)


def test_missing_fields_leave_neutral_values_and_are_reported() -> None:
    snapshot = read_snapshot(
        pickle.dumps(
            {
                "segments": [{"address": 4096, "total_size": 100}],
                "device_traces": [[{"action": "alloc", "addr": 4096, "size": 7}]],
            }
        )
    )
    trace = snapshot.traces[0]
    assert trace.present == {"action", "address", "size"}
    assert (trace.stream[0], trace.time_us[0], trace.stack[0], trace.compile_context[0]) == (0, 0, -1, -1)
    assert snapshot.segments.present == {"address", "total_size"}
    assert snapshot.segments.type[0] == SegmentType.UNKNOWN
    assert len(snapshot.blocks) == 0
    assert snapshot.allocator_settings == {}


def test_old_blocks_get_address_size_and_stack_from_their_surroundings() -> None:
    frame = {"name": "f", "filename": "f.py", "line": 1}
    blocks = [
        {"size": 512, "state": "active_allocated", "history": [{"addr": 4096, "real_size": 500, "frames": [frame]}]},
        {"size": 1536, "state": "active_awaiting_free", "history": [{"addr": 4608, "real_size": 1400}]},
    ]
    segments = [
        {"address": 4096, "total_size": 2048, "blocks": blocks},
        {"address": 65536, "total_size": 512, "blocks": [{"size": 512, "state": "inactive"}]},
    ]
    snapshot = read_snapshot(pickle.dumps(segments))
    assert snapshot.blocks.address.tolist() == [4096, 4608, 65536]
    assert snapshot.blocks.requested_size.tolist() == [500, 1400, 0]
    assert snapshot.blocks.state.tolist()[1] == BlockState.ACTIVE_PENDING_FREE
    assert snapshot.stacks[snapshot.blocks.stack[0]] == (Frame("f", "f.py", 1),)
    assert "address" not in snapshot.blocks.present
    assert "requested_size" in snapshot.blocks.present


def test_pool_ids_are_read_where_a_version_writes_them() -> None:
    entries = [
        {"action": "alloc", "addr": 1, "size": 2, "pool_id": (0, 3)},
        {"action": "alloc", "addr": 1, "size": 2, "pool_id": [5, 0]},
        {"action": "alloc", "addr": 1, "size": 2, "pool_id": None},
    ]
    trace = read_snapshot(pickle.dumps({"device_traces": [entries]})).traces[0]
    assert trace.has_pools
    assert trace.pool_first.tolist() == [0, 5, 0]
    assert trace.pool_second.tolist() == [3, 0, 0]


def test_unknown_fields_are_kept_with_their_values() -> None:
    expected = small_snapshot()
    expected["version"] = {"torch": "3.0", "parts": [1, 2.5, None, b"\0", (True, 2**64 - 1, -(2**63))]}
    expected["device_traces"][0][1]["forward_frames"] = ["a", "b"]
    expected["segments"][1]["numa_node"] = 1
    expected["segments"][0]["blocks"][2]["color"] = "red"
    expected["device_traces"][0][3]["frames"][0]["fx_node"] = "add_1"
    snapshot = read_snapshot(pickle.dumps(expected))
    assert snapshot.extra == {"version": expected["version"]}
    assert snapshot.traces[0].extra == {"forward_frames": {1: ["a", "b"]}}
    assert snapshot.segments.extra == {"numa_node": {1: 1}}
    assert snapshot.blocks.extra == {"color": {2: "red"}}
    assert snapshot.frame_extra == {"fx_node": {Frame("main", "train.py", 7): "add_1"}}


def test_unknown_names_of_actions_types_and_states_are_kept() -> None:
    expected = small_snapshot()
    expected["device_traces"][0][0]["action"] = "segment_defragment"
    expected["device_traces"][0][1]["action"] = "user_defined"
    expected["segments"][0]["segment_type"] = "medium"
    expected["segments"][0]["blocks"][0]["state"] = "lost"
    snapshot = read_snapshot(pickle.dumps(expected))
    assert snapshot.traces[0].action.tolist()[:2] == [Action.UNKNOWN, Action.USER_DEFINED]
    assert snapshot.traces[0].extra == {"action": {0: "segment_defragment"}}
    assert snapshot.segments.extra == {"segment_type": {0: "medium"}}
    assert snapshot.blocks.extra == {"state": {0: "lost"}}


def test_pool_ids_as_dict_keys_are_shown_as_text() -> None:
    snapshot = read_snapshot(pickle.dumps({"segments": [], "bytes_by_pool": {(0, 1): 512, "all": 512}}))
    assert snapshot.extra == {"bytes_by_pool": {"(0, 1)": 512, "all": 512}}


def test_limits_are_overridable() -> None:
    data = pickle.dumps(small_snapshot())
    with pytest.raises(FormatError, match="max_bytes"):
        read_snapshot(data, limits=Limits(max_bytes=len(data) - 1))
    with pytest.raises(FormatError, match="max_memory"):
        read_snapshot(data, limits=Limits(max_memory=1000))
    with pytest.raises(FormatError, match="max_density"):
        read_snapshot(data, limits=Limits(max_density=1, free_memory=1000))
    repetitive = gzip.compress(pickle.dumps({"segments": [], "note": "x" * 100_000}))
    with pytest.raises(FormatError, match="max_ratio"):
        read_snapshot(repetitive, limits=Limits(free_bytes=0))
    assert read_snapshot(repetitive, limits=Limits(free_bytes=0, max_ratio=1000)).extra["note"] == "x" * 100_000


NUMBERS = st.integers(0, 2**64 - 1)
FRAMES = st.lists(
    st.fixed_dictionaries({"name": st.text(max_size=3), "filename": st.text(max_size=3), "line": st.integers(0, 9999)}),
    max_size=3,
)
POOLS = st.tuples(NUMBERS, NUMBERS)
ENTRIES = st.fixed_dictionaries(
    {
        "action": st.sampled_from([a.name.lower() for a in Action if a is not Action.UNKNOWN]),
        "addr": NUMBERS,
        "size": NUMBERS,
    },
    optional={
        "stream": NUMBERS,
        "time_us": st.integers(-(2**63), 2**63 - 1),
        "compile_context": st.text(max_size=4),
        "user_metadata": st.text(max_size=4),
        "pool_id": POOLS,
        "frames": FRAMES,
    },
)
BLOCKS = st.fixed_dictionaries(
    {
        "address": st.integers(1, 2**64 - 1),
        "size": NUMBERS,
        "requested_size": NUMBERS,
        "state": st.sampled_from(["inactive", "active_allocated", "active_pending_free"]),
    },
    optional={"frames": FRAMES},
)
SEGMENTS = st.fixed_dictionaries(
    {"address": NUMBERS, "total_size": NUMBERS},
    optional={
        "device": st.integers(0, 7),
        "allocated_size": NUMBERS,
        "active_size": NUMBERS,
        "requested_size": NUMBERS,
        "stream": NUMBERS,
        "segment_type": st.sampled_from(["small", "large"]),
        "segment_pool_id": POOLS,
        "is_expandable": st.booleans(),
        "frames": FRAMES,
        "blocks": st.lists(BLOCKS, max_size=4),
    },
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
SNAPSHOTS = st.fixed_dictionaries(
    {"segments": st.lists(SEGMENTS, max_size=4)},
    optional={
        "device_traces": st.lists(st.lists(ENTRIES, max_size=5), max_size=3),
        "allocator_settings": st.dictionaries(st.text(max_size=4), PLAIN, max_size=3),
        "external_annotations": st.lists(st.dictionaries(st.text(max_size=4), PLAIN, max_size=3), max_size=2),
    },
)


@settings(deadline=None)
@given(expected=SNAPSHOTS, protocol=st.sampled_from((3, 4, 5)), packed=st.booleans())
def test_any_snapshot_reads_as_it_was_written(expected: dict[str, Any], protocol: int, packed: bool) -> None:
    data = pickle.dumps(expected, protocol)
    assert_columns_equal(read_snapshot(gzip.compress(data) if packed else data), expected)


@settings(deadline=None)
@given(value=PLAIN, protocol=st.sampled_from((3, 4, 5)))
def test_any_plain_value_survives_the_tree(value: Any, protocol: int) -> None:
    tree = PickleTree(max_memory=1 << 30, max_density=8, free_memory=1 << 25)
    tree.feed(pickle.dumps(value, protocol))
    assert tree.finish().plain() == value


def test_lists_longer_than_a_batch_keep_every_entry_in_order() -> None:
    entries = [{"action": "alloc", "addr": i, "size": 2 * i, "time_us": -i} for i in range(12_345)]
    snapshot = read_snapshot(pickle.dumps({"device_traces": [entries, entries[:1001]]}))
    assert_columns_equal(snapshot, {"device_traces": [entries, entries[:1001]]})
