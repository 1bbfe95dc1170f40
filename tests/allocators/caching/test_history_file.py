"""A history in a file: complete, whatever ends the program, and the allocator never waits for long."""

import io
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import allotment
from allotment._core.edge.words import HISTORY_MAGIC, Action, word_of
from allotment._core.records.history import set_user_metadata
from allotment._formats.history_file import HISTORY_FIELD, HistoryFrames
from allotment._formats.history_rows import HEAD_BYTES, FrameKind, checksum_of
from allotment._formats.torch_snapshot import Snapshot, read_snapshot
from allotment.errors import FormatError, RequestError
from allotment.lab.replay.run import read_recording
from helpers.child import output_of

MIB = 1 << 20
STREAM_TO = """
import sys
import allotment

allocator = allotment.Allocator("sim:8GiB", settings="compat:newest")
allocator.record_history(file=sys.argv[1])
kept = [allocator.malloc(size << 20) for size in range(1, 9)]
pairs = 0
while True:
    allocator.free(allocator.malloc(5_000_000 + pairs % 7))
    pairs += 1
    if pairs == 20_000:
        print("ready", flush=True)
"""


def new_allocator(more: str = "") -> allotment.Allocator:
    return allotment.Allocator("sim:8GiB", settings="compat:newest" + more)


def use(allocator: allotment.Allocator) -> None:
    """Make small and large requests, use a private pool, free a block that waits, and empty the cache."""
    blocks = [allocator.malloc(size) for size in (100, 3 * MIB, 15 * MIB, 100)]
    allocator.record_stream(blocks[1], 7)
    for block in blocks[1:]:
        allocator.free(block)
    with allocator.pool():
        inner = allocator.malloc(MIB)
    allocator.empty_cache()
    allocator.free(inner)
    allocator.inspection.check_invariants()


def entries(snapshot: Snapshot) -> list[tuple[str, int, int, int]]:
    (trace,) = snapshot.traces
    columns = zip(*(column.tolist() for column in (trace.action, trace.address, trace.size, trace.stream)), strict=True)
    return [(word_of(Action(action)), *rest) for action, *rest in columns]


def test_a_file_has_every_event_in_order(tmp_path: Path) -> None:
    allocator = new_allocator()
    heard: list[tuple[str, int, int, int]] = []
    allocator.record_history(file=tmp_path / "run.history")
    allocator.history.attach_trace_tracker(lambda *entry: heard.append(entry[:4]))
    use(allocator)
    allocator.record_history(None)
    read = read_snapshot(tmp_path / "run.history")
    assert entries(read) == heard
    assert len(heard) > 10
    assert read.extra[HISTORY_FIELD] == {"records": len(heard), "lost": 0, "cut_at": None}


def test_a_file_and_a_snapshot_of_the_same_run_say_the_same(tmp_path: Path) -> None:
    in_memory, in_file = new_allocator(), new_allocator()
    in_memory.record_history()
    in_file.record_history(file=tmp_path / "run.history")
    for allocator in (in_memory, in_file):
        use(allocator)
    in_memory.history.dump_snapshot(tmp_path / "run.pickle")
    in_file.close()
    kept, streamed = read_snapshot(tmp_path / "run.pickle"), read_snapshot(tmp_path / "run.history")
    reported = [entry for entry in entries(kept) if entry[0] != "snapshot"]
    assert [entry for entry in entries(streamed) if entry[0] != "snapshot"] == reported
    trace = streamed.traces[0]
    places = {streamed.stacks[number][0].filename for number in trace.stack.tolist() if number >= 0}
    assert places == {__file__}
    as_kept, as_streamed = (read_recording(tmp_path / name).replay() for name in ("run.pickle", "run.history"))
    assert as_kept.matches_recording and as_streamed.matches_recording
    assert as_streamed.peak_reserved_bytes == as_kept.peak_reserved_bytes


def test_metadata_annotations_and_compile_contexts_are_in_the_file(tmp_path: Path) -> None:
    allocator = new_allocator()
    allocator.record_history(file=tmp_path / "run.history")
    set_user_metadata("step 1")
    allocator.free(allocator.malloc(MIB))
    set_user_metadata("")
    allocator.history.record_annotation({"name": "here"})
    allocator.close()
    read = read_snapshot(tmp_path / "run.history")
    noted = {read.user_metadata[number] for number in read.traces[0].user_metadata.tolist() if number >= 0}
    assert noted == {"step 1"}
    assert [note["name"] for note in read.external_annotations] == ["here"]


def test_a_file_has_the_stacks_and_texts_of_its_own_records_and_of_no_earlier_recording(tmp_path: Path) -> None:
    def in_both() -> None:
        allocator.free(allocator.malloc(MIB))

    def only_in_the_first() -> None:
        allocator.free(allocator.malloc(3 * MIB))

    def only_in_the_second() -> None:
        allocator.free(allocator.malloc(5 * MIB))

    allocator = new_allocator()
    found = []
    for name, uses in (("first", [only_in_the_first, in_both]), ("second", [in_both, only_in_the_second])):
        allocator.record_history(file=tmp_path / name)
        set_user_metadata(name)
        for use_it in uses:
            use_it()
        set_user_metadata("")
        allocator.record_history(None)
        read = read_snapshot(tmp_path / name)
        columns = read.traces[0]
        named = {
            (read.stacks[stack][0].name, read.user_metadata[text])
            for stack, text in zip(columns.stack.tolist(), columns.user_metadata.tolist(), strict=True)
        }
        found.append((named, len(read.stacks), read.user_metadata))
    assert found == [
        ({("only_in_the_first", "first"), ("in_both", "first")}, 4, ("first",)),
        ({("in_both", "second"), ("only_in_the_second", "second")}, 4, ("second",)),
    ]


def test_what_was_there_before_is_known_exactly(tmp_path: Path) -> None:
    allocator = allotment.Allocator("sim:8GiB", settings="compat:2.11")
    before = [allocator.malloc(size) for size in (17 * MIB + 5, 12 * MIB, 30 * MIB, 100)]
    allocator.free(before[1])
    allocator.record_history(file=tmp_path / "run.history")
    allocator.free(before[0])
    again = [allocator.malloc(size) for size in (16 * MIB, 11 * MIB, 200)]
    allocator.free(again[1])
    allocator.close()
    result = read_recording(tmp_path / "run.history").replay()
    assert result.matches_recording
    assert result.peak_reserved_bytes == allocator.stats()["reserved_bytes.all.peak"]


def recorded_alone(path: Path, more: str, *steps: str) -> bytes:
    """Return a file recorded by a new process: one of this process has all stacks that other tests left."""
    output_of(
        f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from test_history_file import MIB, new_allocator, use

    allocator = new_allocator({more!r})
    kept = allocator.malloc(MIB)
    allocator.record_history(file={str(path)!r})
    use(allocator)
    {"; ".join(steps) or "pass"}
    allocator.free(kept)
    allocator.close()
    """
    )
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return recorded_alone(tmp_path_factory.mktemp("history") / "run.history", "")


@settings(deadline=None)
@given(data=st.data())
def test_a_file_that_was_cut_off_is_read_up_to_its_last_whole_record(whole: bytes, data: st.DataObject) -> None:
    all_of_it = entries(read_snapshot(whole))
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        read = read_snapshot(whole[:cut])
    except FormatError:
        first_frame = len(HISTORY_MAGIC) + 1
        length = int.from_bytes(whole[first_frame + 4 : first_frame + 8], "little")
        assert not all_of_it or cut < first_frame + HEAD_BYTES + length
        return
    assert entries(read) == all_of_it[: len(read.traces[0])]


@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_gives_what_is_before_the_damage_or_an_error(whole: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[place] ^= data.draw(st.integers(1, 255))
    try:
        read = read_snapshot(bytes(damaged))
    except FormatError:
        return
    assert len(read.traces[0]) <= len(entries(read_snapshot(whole)))


def with_numbers_changed(content: bytes, draw: random.Random) -> bytes:
    """Return the content with some of the largest numbers, some other bytes, and other numbers for some text."""
    changed = bytearray(content)
    for _ in range(draw.choice((0, 1, 1, 3, 30))):
        new = draw.choice(
            (b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x7f", bytes([draw.randrange(256)]), b"9" * 30, b"-1")
        )
        place = draw.randrange(len(changed) + 1)
        changed[place : place + len(new) * draw.choice((0, 1))] = new
    return bytes(changed)


def frames_of_a_run(path: Path) -> list[tuple[FrameKind, int, bytes]]:
    annotate = "allocator.history.record_annotation({'step': 1})"
    return list(HistoryFrames(io.BytesIO(recorded_alone(path, ",expandable_segments:True", annotate))))


def is_refused(path: Path, frames: list[tuple[FrameKind, int, bytes]]) -> bool:
    """Return whether a file of these frames, with correct checksums, raises FormatError; other errors propagate."""
    damaged = path.read_bytes()[: len(HISTORY_MAGIC) + 1]
    for kind, records, content in frames:
        head = (kind, len(content), records, checksum_of(content))
        damaged += b"".join(number.to_bytes(4, "little") for number in head) + content
    try:
        read_snapshot(damaged)
    except FormatError:
        return True
    return False


def test_numbers_that_no_allocator_writes_give_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "run.history"
    frames = frames_of_a_run(path)
    draw = random.Random(29)

    def damaged(kind: FrameKind, records: int, content: bytes) -> tuple[FrameKind, int, bytes]:
        if kind is not FrameKind.SNAPSHOT:  # which has its own tests
            content = with_numbers_changed(content, draw)
        return kind, draw.choice((records, records, 0, 2**32 - 1)), content

    assert any([is_refused(path, [damaged(*frame) for frame in frames]) for _ in range(500)])


def test_the_largest_number_at_any_place_of_a_history_gives_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "run.history"
    frames = frames_of_a_run(path)
    (number,) = (number for number, frame in enumerate(frames) if frame[0] is FrameKind.RECORDS)
    kind, records, content = frames[number]
    refused = 0
    for place in range(len(content)):
        frames[number] = (kind, records, content[:place] + b"\xff" * 9 + b"\x01" + content[place:])
        refused += is_refused(path, frames)
    assert refused  # a segment that ends beyond all addresses is among them


def test_a_file_that_another_recorder_writes_is_refused_and_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.history"
    first, second = new_allocator(), new_allocator()
    first.record_history(file=path)
    use(first)
    with pytest.raises(RequestError, match="being written by another recorder"):
        second.record_history(file=path)
    first.close()
    assert entries(read_snapshot(path.read_bytes()))
    second.record_history(file=path)  # the first recording has finished
    second.free(second.malloc(100))
    second.close()
    read = read_snapshot(path.read_bytes())
    assert read.extra[HISTORY_FIELD]["cut_at"] is None
    assert len(entries(read)) < 10


def test_a_recording_that_begins_anew_replaces_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "run.history"
    allocator = new_allocator()
    allocator.record_history(file=path)
    use(allocator)
    allocator.record_history(file=path)
    allocator.free(allocator.malloc(100))
    allocator.close()
    read = read_snapshot(path.read_bytes())
    assert read.extra[HISTORY_FIELD]["cut_at"] is None
    assert len(entries(read)) < 10


class Stalled(Exception):
    pass


@pytest.mark.threads
def test_a_request_that_waits_for_a_stalled_disk_can_be_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # no process reads from it
    allocator = new_allocator()
    allocator.record_history(context=None, file=path)
    requests = [0]
    seen = [-1]

    def tick(number: int, frame: object) -> None:
        if seen[0] == requests[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)  # a second signal could come outside of what expects it
            raise Stalled
        seen[0] = requests[0]

    def drain() -> None:
        os.set_blocking(reader, True)
        while os.read(reader, 1 << 20):
            pass

    rescue = threading.Timer(120, drain)  # otherwise a fault would last for ever
    rescue.start()
    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(Stalled):
            while not rescue.finished.is_set():
                allocator.free(allocator.malloc(1000))
                requests[0] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        rescue.cancel()
    allocator.inspection.check_invariants()
    draining = threading.Thread(target=drain)
    draining.start()
    allocator.close()
    draining.join()
    os.close(reader)


def test_a_file_that_cannot_be_written_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    allocator = new_allocator()
    allocator.record_history()
    allocator.free(allocator.malloc(100))
    with pytest.raises(OSError, match="nowhere"):
        allocator.record_history(file=tmp_path / "nowhere" / "run.history")
    assert allocator.history.is_enabled()
    assert len(allocator.snapshot()["device_traces"][0]) > 3
    with pytest.raises(RequestError, match="a file takes every event"):
        allocator.record_history(file=tmp_path / "run.history", max_entries=10)


@pytest.mark.threads
def test_a_slow_reader_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content: list[bytes] = []
    reader = threading.Thread(target=lambda: content.append(path.read_bytes()))
    reader.start()
    allocator = new_allocator()
    allocator.record_history(context=None, file=path)
    pairs = 40_000
    for _ in range(pairs):
        allocator.free(allocator.malloc(1000))
    allocator.close()
    reader.join()
    read = read_snapshot(content[0])
    assert len(read.traces[0]) >= 3 * pairs
    assert read.extra[HISTORY_FIELD]["lost"] == 0


@pytest.mark.threads
def test_a_child_of_fork_does_not_write_into_the_file(tmp_path: Path) -> None:
    allocator = new_allocator()
    allocator.record_history(file=tmp_path / "run.history")
    allocator.free(allocator.malloc(MIB))
    child = os.fork()
    if child == 0:
        for _ in range(10_000):
            allocator.free(allocator.malloc(3 * MIB))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    allocator.free(allocator.malloc(2 * MIB))
    allocator.close()
    sizes = {entry[2] for entry in entries(read_snapshot(tmp_path / "run.history")) if entry[0] == "alloc"}
    assert sizes == {MIB, 2 * MIB}


@pytest.mark.threads
def test_a_program_that_is_killed_leaves_a_file_that_replays(tmp_path: Path) -> None:
    path = tmp_path / "run.history"
    with subprocess.Popen([sys.executable, "-c", STREAM_TO, str(path)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        while path.stat().st_size < MIB:  # how far the file is behind depends on how busy the machine is
            assert program.poll() is None
        program.send_signal(signal.SIGKILL)
    result = read_recording(path).replay()
    assert result.events > 100_000
    assert result.matches_recording


@pytest.mark.threads
def test_the_end_of_a_program_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.history"
    ends = STREAM_TO.replace('print("ready", flush=True)', "break")
    subprocess.run([sys.executable, "-c", ends, str(path)], check=True)
    reported = entries(read_snapshot(path))
    assert sum(entry[0] == "alloc" for entry in reported) == 20_008
