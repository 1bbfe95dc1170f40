"""Which events are recorded, how many of them, and with which stacks."""

import gc
import pickle
import pickletools
import sys
import threading
import time

import pytest

from allotment import Allocator
from allotment._core.records.history import (
    get_user_metadata,
    pop_compile_context,
    push_compile_context,
    set_user_metadata,
)
from allotment._formats.torch_snapshot import read_snapshot
from allotment.errors import OutOfMemoryError, RequestError
from helpers.engine import BUFFER, MIB, actions, check, on_device, unchanged


def trace(alloc):
    return alloc.snapshot()["device_traces"][0]


def sizes(alloc):
    """The sizes of the requests in the history, oldest first."""
    return [entry["size"] for entry in trace(alloc) if entry["action"] == "alloc"]


def request(alloc, *sizes):
    """Requests that hit the cache, so that each makes one entry."""
    return [alloc.malloc(size) for size in sizes]


@pytest.fixture
def alloc():
    """An allocator with cached memory and only requests in its history."""
    alloc = on_device()
    alloc.malloc(1)
    return alloc


NO_SNAPSHOTS = {"skip_actions": ["snapshot"]}


# --- the ring ---


def test_nothing_is_recorded_by_default(alloc):
    request(alloc, 10, 20)
    assert trace(alloc) == []


def test_the_history_keeps_the_newest_entries_in_order(alloc):
    alloc.record_history(max_entries=3, **NO_SNAPSHOTS)
    for number in range(1, 8):
        request(alloc, number)
        assert sizes(alloc) == list(range(1, 8))[max(0, number - 3) : number]


def test_a_history_of_less_than_one_entry_keeps_one(alloc):
    alloc.record_history(max_entries=0, **NO_SNAPSHOTS)
    request(alloc, 1, 2)
    assert sizes(alloc) == [2]


def test_recording_only_the_state_keeps_one_entry(alloc):
    alloc.record_history("state", max_entries=100, **NO_SNAPSHOTS)
    request(alloc, 1, 2, 3)
    assert sizes(alloc) == [3]


@pytest.mark.parametrize("stored", range(14))
@pytest.mark.parametrize("most", [1, 2, 3, 6, 9])
def test_another_bound_keeps_the_newest_entries_in_order(alloc, stored, most):
    alloc.record_history(max_entries=6, **NO_SNAPSHOTS)
    request(alloc, *range(1, stored + 1))
    remembered = list(range(1, stored + 1))[-6:][-most:]
    alloc.record_history(max_entries=most, **NO_SNAPSHOTS)
    assert sizes(alloc) == remembered
    for number in range(100, 100 + 2 * most):
        request(alloc, number)
        remembered = [*remembered, number][-most:]
        assert sizes(alloc) == remembered
    check(alloc)


def test_a_lowered_and_raised_bound_continues_from_there(alloc):
    alloc.record_history(max_entries=8, **NO_SNAPSHOTS)
    request(alloc, *range(1, 14))
    remembered = list(range(6, 14))
    for most in (2, 5, 1, 30, 3):
        alloc.record_history(max_entries=most, **NO_SNAPSHOTS)
        request(alloc, *range(1, 20))
        remembered = [*remembered[-most:], *range(1, 20)][-most:]
        assert sizes(alloc) == remembered
    check(alloc)


def test_entries_stay_where_they_are_if_it_is_to_be_as_in_pytorch(alloc):
    alloc.history._resize_in_place()
    alloc.record_history(max_entries=3, **NO_SNAPSHOTS)
    request(alloc, 1, 2, 3, 4)  # 4 replaces 1: reading starts at 2
    alloc.record_history(max_entries=5, **NO_SNAPSHOTS)
    request(alloc, 5)
    assert sizes(alloc) == [2, 3, 5, 4]
    alloc.record_history(max_entries=1, **NO_SNAPSHOTS)
    request(alloc, 6, 7)
    assert sizes(alloc) == [7, 2, 3, 5]
    check(alloc)


def test_switching_off_forgets_and_clearing_forgets():
    alloc = on_device()
    alloc.record_history()
    alloc.malloc(1)
    alloc.record_history(clear_history=True)
    assert trace(alloc) == []
    alloc.malloc(1)
    alloc.record_history(None)
    alloc.record_history()
    assert trace(alloc) == []


def test_changing_what_is_recorded_keeps_what_was(alloc):
    alloc.record_history(**NO_SNAPSHOTS)
    request(alloc, 1)
    alloc.record_history(context=None, **NO_SNAPSHOTS)
    request(alloc, 2)
    alloc.record_history(**NO_SNAPSHOTS)
    request(alloc, 3)
    assert sizes(alloc) == [1, 2, 3]
    assert [bool(entry.get("frames")) for entry in trace(alloc)] == [True, False, True]


# --- entries ---


def test_each_action_has_its_address_size_stream_and_pool():
    alloc = on_device(24 * MIB)
    pool = alloc.pool()
    alloc.record_history(context=None)
    with pool:
        address = alloc.malloc(1000, stream=4)
    alloc.free(address)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB - 1, stream=5)
    alloc.history.segments(pool.id)
    pool.close()
    reported = [
        (e["action"], e.get("addr", e.get("device_free")), e["size"], e["stream"], e["pool_id"]) for e in trace(alloc)
    ]
    assert reported == [
        ("segment_alloc", address, BUFFER, 4, pool.id),
        ("alloc", address, 1000, 4, pool.id),
        ("free_requested", address, 1000, 4, pool.id),
        ("free_completed", address, 1000, 4, pool.id),
        ("oom", 22 * MIB, 30 * MIB, 5, (0, 0)),
        ("snapshot", 0, 0, 0, pool.id),
        ("segment_free", address, BUFFER, 4, pool.id),
    ]
    assert ["device_free" in entry for entry in trace(alloc)].count(True) == 1


def wait_for_the_clock():
    """Wait until the clock shows another microsecond."""
    begun = time.time_ns() // 1000
    while time.time_ns() // 1000 == begun:
        pass


def test_the_two_steps_of_a_free_are_one_moment_and_the_next_entry_another(alloc):
    alloc.record_history(**NO_SNAPSHOTS)
    begun = time.time_ns() // 1000
    address = alloc.malloc(1)
    wait_for_the_clock()
    alloc.free(address)
    wait_for_the_clock()
    alloc.malloc(1)
    times = {(entry["action"], n): entry["time_us"] for n, entry in enumerate(trace(alloc))}
    assert list(times) == [("alloc", 0), ("free_requested", 1), ("free_completed", 2), ("alloc", 3)]
    first, requested, completed, last = times.values()
    assert begun <= first < requested == completed < last <= time.time_ns() // 1000


def test_a_snapshot_shows_up_in_the_next_one(alloc):
    alloc.record_history()
    request(alloc, 300)
    assert actions(alloc) == ["alloc"]
    assert actions(alloc) == ["alloc", "snapshot"]
    assert trace(alloc)[-1]["size"] == 1024, "active bytes"


def test_traces_can_be_left_out(alloc):
    alloc.record_history()
    request(alloc, 1)
    assert alloc.snapshot(include_traces=False)["device_traces"] == [[]]


@pytest.mark.parametrize(
    "skipped", ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"]
)
def test_skipped_actions_are_absent_and_all_others_present(skipped):
    alloc = on_device(24 * MIB)
    alloc.record_history(skip_actions=[skipped])
    alloc.free(alloc.malloc(1))
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    alloc.history.segments()
    everything = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"}
    assert set(actions(alloc)) == everything - {skipped}


def test_a_snapshot_can_be_pickled_and_read_with_nothing_but_the_standard_library(alloc):
    alloc.record_history()
    request(alloc, 311 * 411 * 4)
    snapshot = alloc.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert trace(alloc)[0]["size"] == 311 * 411 * 4


def test_after_everything_returned_the_last_entry_says_so():
    for settings, last in (("", "segment_free"), ("expandable_segments:True", "segment_unmap")):
        alloc = on_device(settings=settings)
        alloc.record_history("state")
        alloc.free(alloc.malloc(1))
        alloc.empty_cache()
        assert actions(alloc) == [last]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector looks at every dictionary there")
def test_a_history_without_stacks_is_nothing_to_the_collector(alloc):
    alloc.record_history(context=None)
    with alloc.pool():
        request(alloc, 1)
    request(alloc, 2)
    assert not any(map(gc.is_tracked, trace(alloc)))


@pytest.mark.parametrize("collecting", [True, False])
def test_a_snapshot_leaves_the_collector_as_it_was(alloc, collecting):
    alloc.record_history()
    request(alloc, 1)
    (gc.enable if collecting else gc.disable)()
    try:
        alloc.snapshot()
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


# --- stacks ---


def allocates(alloc, size=12 * MIB):
    return alloc.malloc(size)


def frees(alloc, address):
    alloc.free(address)


def empties_the_cache(alloc):
    alloc.empty_cache()


def functions(record):
    return {frame["name"] for frame in record.get("frames", [])}


@pytest.mark.parametrize(
    ("context", "block", "alloc_entry", "free_entry", "release_entry"),
    [
        (None, set(), set(), set(), set()),
        ("state", {"allocates"}, set(), set(), set()),
        ("alloc", {"allocates"}, {"allocates"}, {"allocates"}, {"allocates"}),
        ("all", {"allocates"}, {"allocates"}, {"frees"}, {"empties_the_cache"}),
    ],
)
def test_stacks_are_kept_as_far_as_requested(context, block, alloc_entry, free_entry, release_entry):
    alloc = on_device()
    alloc.record_history(context=context)
    ours = {"allocates", "frees", "empties_the_cache"}
    address = allocates(alloc)
    (segment,) = alloc.history.segments()
    assert functions(segment["blocks"][0]) & ours == block
    frees(alloc, address)
    empties_the_cache(alloc)
    by_action = {entry["action"]: entry for entry in trace(alloc)}
    assert functions(by_action["alloc"]) & ours == alloc_entry
    assert functions(by_action["segment_alloc"]) & ours == alloc_entry
    assert functions(by_action["free_requested"]) & ours == free_entry
    assert functions(by_action["free_completed"]) & ours == free_entry
    assert functions(by_action["segment_free"]) & ours == release_entry


def test_a_stack_has_names_files_and_lines_innermost_first():
    alloc = on_device()
    alloc.record_history()
    allocates(alloc)
    first = trace(alloc)[-1]["frames"][0]
    assert (first["name"], first["filename"]) == ("allocates", __file__)
    assert first["line"] == allocates.__code__.co_firstlineno + 1


def test_what_a_user_changes_in_one_snapshot_is_not_in_the_next():
    alloc = on_device()
    alloc.record_history()
    allocates(alloc)
    trace(alloc)[-1]["frames"].clear()
    alloc.history.segments()[0]["blocks"][0]["frames"].clear()
    assert functions(trace(alloc)[0]) == functions(alloc.history.segments()[0]["blocks"][0]) != set()


def deeper(alloc, depth):
    return allocates(alloc) if depth == 0 else deeper(alloc, depth - 1)


@pytest.mark.parametrize("depth", [0, 1, 50, 254, 255, 300])
def test_a_stack_is_recorded_in_full_up_to_256_frames(depth):
    alloc = on_device()
    alloc.record_history(**NO_SNAPSHOTS)
    deeper(alloc, depth)
    frames = trace(alloc)[-1]["frames"]
    assert [frame["name"] for frame in frames[: depth + 2]] == ["allocates", *["deeper"] * (depth + 1)][:256]
    assert len(frames) <= 256


def test_stacks_that_differ_anywhere_are_distinguished():
    alloc = on_device()
    alloc.record_history(**NO_SNAPSHOTS)
    for _ in range(2):
        allocates(alloc)
        allocates(alloc)
        deeper(alloc, 1)
        deeper(alloc, 2)
    reported = [entry["frames"] for entry in trace(alloc) if entry["action"] == "alloc"]
    same_place = [[n for n, other in enumerate(reported) if other is frames] for frames in reported]
    assert same_place == [[0, 4], [1, 5], [2, 6], [3, 7]] * 2


def test_a_free_block_has_no_stack_and_a_split_segment_loses_its_own():
    alloc = on_device()
    alloc.record_history()
    address = allocates(alloc, 4096)
    (segment,) = alloc.history.segments()
    assert segment["frames"] == [], "the rest of the buffer keeps it"
    whole = alloc.malloc(12 * MIB)
    assert next(s for s in alloc.history.segments() if s["address"] == whole)["frames"] != []
    alloc.free(address)
    assert [block["frames"] for block in alloc.history.segments()[0]["blocks"]] == [[]]


# --- written to a file ---


def eventful(device="sim:24MiB"):
    """An allocator whose history has an entry of every form, and the blocks and pools that caused them."""
    alloc = Allocator(device)
    alloc.record_history(**NO_SNAPSHOTS)
    alloc.history.record_annotation({"name": "step", "stage": "START", "shared": [(1, 2.5), None, "step"]})
    kept = [alloc.malloc(size, stream=stream) for size, stream in ((1, 0), (1 << 20, 7), (300, (1 << 64) - 2))]
    alloc.free(kept.pop())
    pool = alloc.pool()
    with pool:
        kept.append(allocates(alloc, 512))
    alloc.tenant("somebody").malloc(1000)
    alloc.record_history(context=None, **NO_SNAPSHOTS)
    alloc.tenant("somebody").malloc(1000)
    push_compile_context("0/1")
    set_user_metadata("caf\u00e9 \U0001f375 \udc80")
    try:
        alloc.record_history(**NO_SNAPSHOTS)
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(1 << 40)
        deeper(alloc, 3)
    finally:
        set_user_metadata("")
        pop_compile_context()
    return alloc, pool


def assert_the_file_is_the_snapshot(alloc, path):
    alloc.history.dump_snapshot(path)
    snapshot = alloc.snapshot()
    for loads in (pickle.loads, pickle._loads):  # compiled, and in Python, which is stricter about frames
        loaded = loads(path.read_bytes())
        assert loaded == snapshot
        assert list(loaded) == list(snapshot)
        assert list(map(list, loaded["device_traces"][-1])) == list(map(list, snapshot["device_traces"][-1]))
    return snapshot


@pytest.mark.parametrize("device", ["sim:24MiB", "sim:24MiB#2"])
def test_a_dumped_snapshot_loads_as_the_snapshot(tmp_path, device):
    alloc, _pool = eventful(device)
    snapshot = assert_the_file_is_the_snapshot(alloc, tmp_path / "snapshot.pickle")
    reported = snapshot["device_traces"][-1]
    assert len(snapshot["device_traces"]) == 1 + alloc.device.index
    assert {"tenant", "frames", "device_free", "addr"} <= {key for entry in reported for key in entry}
    assert {entry["compile_context"] for entry in reported} == {"N/A", "0/1"}


def test_our_own_reader_reads_a_dumped_snapshot(tmp_path):
    alloc, _pool = eventful()
    snapshot = assert_the_file_is_the_snapshot(alloc, tmp_path / "snapshot.pickle")
    read = read_snapshot(tmp_path / "snapshot.pickle")
    (reported,) = snapshot["device_traces"]
    assert read.traces[0].size.tolist() == [entry["size"] for entry in reported]
    assert read.traces[0].stream.tolist() == [entry["stream"] for entry in reported]
    assert read.traces[0].time_us.tolist() == [entry["time_us"] for entry in reported]
    stacks = [entry.get("frames", []) for entry in reported]
    assert [[frame._asdict() for frame in read.stacks[n]] if n >= 0 else [] for n in read.traces[0].stack] == stacks
    assert read.segments.total_size.tolist() == [segment["total_size"] for segment in snapshot["segments"]]


@pytest.mark.parametrize("recording", [True, False])
def test_a_dumped_snapshot_of_nothing_loads_as_the_snapshot(tmp_path, recording):
    alloc = on_device()
    if recording:
        alloc.record_history(**NO_SNAPSHOTS)
    snapshot = assert_the_file_is_the_snapshot(alloc, tmp_path / "snapshot.pickle")
    assert read_snapshot(tmp_path / "snapshot.pickle").segments.total_size.size == len(snapshot["segments"]) == 0


def test_a_long_history_is_dumped_in_pieces(tmp_path):
    alloc = on_device()
    alloc.record_history(**NO_SNAPSHOTS)
    for number in range(15_000):
        alloc.free(alloc.malloc(1 + number % 700))
    assert_the_file_is_the_snapshot(alloc, tmp_path / "snapshot.pickle")
    frames = [op for op, _, _ in pickletools.genops((tmp_path / "snapshot.pickle").read_bytes()) if op.name == "FRAME"]
    assert len(frames) > 1


def test_a_snapshot_that_cannot_be_written_leaves_no_trace(alloc, tmp_path):
    alloc.record_history()
    with pytest.raises(FileNotFoundError):
        alloc.history.dump_snapshot(tmp_path / "missing" / "snapshot.pickle")
    assert trace(alloc) == []


# --- metadata of threads ---


@pytest.mark.threads
def test_metadata_is_on_every_entry_of_its_thread_until_it_is_cleared(alloc):
    alloc.record_history(**NO_SNAPSHOTS)
    set_user_metadata("step 1")
    try:
        request(alloc, 1)
        other = threading.Thread(target=lambda: request(alloc, 2))
        other.start()
        other.join()
        assert get_user_metadata() == "step 1"
    finally:
        set_user_metadata("")
    request(alloc, 3)
    assert [(e["size"], e["user_metadata"]) for e in trace(alloc)] == [(1, "step 1"), (2, ""), (3, "")]


def test_the_innermost_compile_context_is_named(alloc):
    alloc.record_history(**NO_SNAPSHOTS)
    request(alloc, 1)
    push_compile_context("outer")
    push_compile_context("inner")
    request(alloc, 2)
    pop_compile_context()
    request(alloc, 3)
    pop_compile_context()
    pop_compile_context()  # one too many is harmless
    request(alloc, 4)
    assert [entry["compile_context"] for entry in trace(alloc)] == ["N/A", "inner", "outer", "N/A"]


# --- wrong arguments ---


@pytest.mark.parametrize(
    "arguments",
    [
        {"enabled": "everything"},
        {"context": "some"},
        {"stacks": "rust"},
        {"skip_actions": ["alloc", "malloc"]},
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(alloc, arguments):
    alloc.record_history(max_entries=5)
    request(alloc, 1)
    entries = trace(alloc)
    with unchanged(alloc), pytest.raises(RequestError):
        alloc.record_history(clear_history=True, **arguments)
    assert trace(alloc)[: len(entries)] == entries
