"""Recorded ground truth against the engine, and the results for wrong recordings."""

import gc
import gzip
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allotment._cli import main
from allotment.errors import UnsupportedError
from allotment.lab.conformance import file as golden_file
from allotment.lab.conformance import ops as golden_ops
from allotment.lab.conformance import world as golden_world
from allotment.lab.conformance.run import check_file
from helpers.effort import sample

GOLDEN = Path(__file__).parents[1].parent / "golden"
FILES = sample(sorted(GOLDEN.glob("*.json.gz")))
LIMITED = GOLDEN / "edges.gclimit.s1.json.gz"
SETTINGS = GOLDEN / "settings.limit.s1.json.gz"

Content = dict[str, Any]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_every_decision_comes_out_as_recorded(file):
    result = check_file(file, check_invariants=True)
    assert result.status == "equal", result


def changed(tmp_path: Path, file: Path, change: Callable[[Content], object]) -> Path:
    """Return a changed copy of the recording."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    change(content)
    return written(tmp_path, content)


def written(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "changed.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["conformance", *map(str, arguments)])
    return int(exit_.value.code or 0), capsys.readouterr().out


def nth(records: list[Content], count: int, **wanted: object) -> int:
    """Index of the nth record with these fields."""
    found = [i for i, record in enumerate(records) if all(record.get(key) == wanted[key] for key in wanted)]
    return found[count]


def nth_with(records: list[Content], count: int, field: str) -> int:
    return [i for i, record in enumerate(records) if field in record][count]


class TestAWrongRecordingIsNoticedAndItsPlaceNamed:
    def test_a_changed_address(self, tmp_path, capsys):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth_with(content["ops"], 20, "addr")
            content["ops"][place["op"]]["addr"] += 512

        path = changed(tmp_path, LIMITED, change)
        result = check_file(path)
        assert (result.status, result.op, result.what) == ("different", place["op"], "address")
        assert result.expected == result.got + 512
        code, out = command(capsys, path)
        assert code == 1
        assert f"op {place['op']}, trace {result.trace_index}: address: expected {result.expected}" in out

    def test_a_changed_counter(self, tmp_path):
        def change(content: Content) -> None:
            content["stats"][3]["stats"]["active_bytes.small_pool.peak"] += 1

        result = check_file(changed(tmp_path, LIMITED, change))
        assert (result.status, result.what) == ("different", "stats['active_bytes.small_pool.peak']")
        assert result.expected == result.got + 1

    def test_a_changed_counter_that_depends_on_the_order_is_reported_but_is_no_difference(self, tmp_path, capsys):
        def change(content: Content) -> None:
            content["stats"][3]["stats"]["inactive_split.all.peak"] += 1

        path = changed(tmp_path, LIMITED, change)
        assert check_file(path).order_dependent == ("inactive_split.all.peak",)
        code, out = command(capsys, path)
        assert code == 0
        assert "inactive_split.all.peak" in out

    @pytest.mark.parametrize("action", ["alloc", "free_requested", "free_completed", "segment_alloc", "oom"])
    def test_a_trace_entry_that_is_missing(self, tmp_path, action):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["index"] = nth(content["trace"], 5, action=action)
            del content["trace"][place["index"]]

        result = check_file(changed(tmp_path, LIMITED, change))
        assert result.status == "different"
        assert result.trace_index == place["index"]

    def test_the_last_trace_entry_that_is_missing(self, tmp_path):
        result = check_file(changed(tmp_path, LIMITED, lambda content: content["trace"].pop()))
        assert (result.status, result.what, result.expected) == ("different", "trace entry", "nothing")

    def test_a_trace_entry_too_many_at_the_end(self, tmp_path):
        result = check_file(changed(tmp_path, LIMITED, lambda content: content["trace"].append(content["trace"][-1])))
        assert (result.status, result.op, result.got) == ("different", None, "nothing")

    @pytest.mark.parametrize("field", ["addr", "size", "stream"])
    def test_a_changed_trace_entry(self, tmp_path, field):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["index"] = nth(content["trace"], 30, action="alloc")
            content["trace"][place["index"]][field] += 512

        result = check_file(changed(tmp_path, LIMITED, change))
        assert (result.status, result.trace_index, result.what) == ("different", place["index"], "trace entry")

    def test_a_segment_that_was_at_another_address(self, tmp_path):
        """The address is fed to the device, so the first difference is the result of the request."""

        def change(content: Content) -> None:
            content["trace"][nth(content["trace"], 2, action="segment_alloc")]["addr"] = 1 << 40

        assert check_file(changed(tmp_path, LIMITED, change)).status == "different"

    @pytest.mark.parametrize("field", ["size", "requested_size", "address", "state"])
    def test_a_changed_block(self, tmp_path, field):
        def change(content: Content) -> None:
            block = content["segments"][1]["blocks"][0]
            block[field] = "active" if field == "state" else block[field] + 512

        result = check_file(changed(tmp_path, LIMITED, change))
        assert (result.status, result.op) == ("different", None)
        assert result.what == f"final segments[1].blocks[0].{field}"

    def test_a_segment_that_is_missing_at_the_end(self, tmp_path):
        result = check_file(changed(tmp_path, LIMITED, lambda content: content["segments"].pop()))
        assert (result.status, result.what) == ("different", "number of final segments")

    def test_a_changed_figure_in_a_refusal(self, tmp_path):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth_with(content["ops"], 2, "oom")
            op = content["ops"][place["op"]]
            op["oom"] = op["oom"].replace("Tried to allocate ", "Tried to allocate 1")

        result = check_file(changed(tmp_path, LIMITED, change))
        assert (result.status, result.op) == ("different", place["op"])
        assert result.what == "text of the out-of-memory error"

    def test_a_request_that_was_refused_where_it_should_not_be(self, tmp_path):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth_with(content["ops"], 20, "addr")
            content["ops"][place["op"]]["oom"] = "CUDA out of memory."
            del content["ops"][place["op"]]["addr"]

        result = check_file(changed(tmp_path, LIMITED, change))
        assert (result.status, result.op, result.what) == ("different", place["op"], "outcome")

    @pytest.mark.parametrize("which", ["max_split_size", "garbage_collection_threshold", "expandable_segments"])
    def test_a_changed_setting(self, tmp_path, which):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth(content["ops"], 1, op="read_settings")
            recorded = content["ops"][place["op"]]["settings"]
            recorded[which] = not recorded[which] if isinstance(recorded[which], bool) else recorded[which] + 1

        result = check_file(changed(tmp_path, SETTINGS, change))
        assert (result.status, result.op, result.what) == ("different", place["op"], f"settings.{which}")

    def test_a_setting_that_was_another_at_the_end(self, tmp_path):
        def change(content: Content) -> None:
            content["allocator_settings"]["roundup_power2_divisions"]["4"] = 64

        result = check_file(changed(tmp_path, SETTINGS, change))
        assert (result.status, result.op) == ("different", None)
        assert result.what == "final settings.roundup_power2_divisions.4"

    def test_an_error_that_does_not_come(self, tmp_path):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth(content["ops"], 0, op="settings")
            content["ops"][place["op"]]["error"] = "no"

        result = check_file(changed(tmp_path, SETTINGS, change))
        assert (result.status, result.op, result.got) == ("different", place["op"], "no error")

    def test_an_error_that_was_not_recorded(self, tmp_path):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth_with(content["ops"], 0, "error")
            del content["ops"][place["op"]]["error"]

        result = check_file(changed(tmp_path, SETTINGS, change))
        assert (result.status, result.op, result.expected) == ("different", place["op"], "no error")

    @pytest.mark.parametrize(
        ("profile", "op", "field"),
        [
            ("pools2.default", "use_count", "value"),
            ("checkpoint.default", "check_live", "value"),
            ("resets.default", "fraction", "read_back"),
        ],
    )
    def test_a_changed_result(self, tmp_path, profile, op, field):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth(content["ops"], 1, op=op)
            value = content["ops"][place["op"]][field]
            content["ops"][place["op"]][field] = not value if isinstance(value, bool) else value + 1

        result = check_file(changed(tmp_path, GOLDEN / f"{profile}.s1.json.gz", change))
        assert (result.status, result.op) == ("different", place["op"])

    @pytest.mark.parametrize("field", [1, 2, 3])
    def test_a_changed_call_of_a_custom_allocator(self, tmp_path, field):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth_with(content["ops"], 3, "own")
            content["ops"][place["op"]]["own"][0][field] += 512

        result = check_file(changed(tmp_path, GOLDEN / "pools2.own.s1.json.gz", change))
        assert (result.status, result.op) == ("different", place["op"])

    def test_a_changed_summary(self, tmp_path):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth(content["ops"], 0, op="summary")
            content["ops"][place["op"]]["text"] += " "

        result = check_file(changed(tmp_path, GOLDEN / "resets.default.s1.json.gz", change))
        assert (result.status, result.op) == ("different", place["op"])

    def test_a_changed_snapshot(self, tmp_path):
        place: dict[str, int] = {}

        def change(content: Content) -> None:
            place["op"] = nth(content["ops"], 1, op="snapshot")
            content["ops"][place["op"]]["segments"][0]["segment_pool_id"] = [0, 99]

        result = check_file(changed(tmp_path, GOLDEN / "handles.default.s1.json.gz", change))
        assert (result.status, result.op, result.what) == (
            "different",
            place["op"],
            "segments[0].segment_pool_id[1]",
        )


def reshaped(change: Callable[[Content], object]) -> Content:
    content = json.loads(gzip.decompress(LIMITED.read_bytes()))
    content["ops"], content["trace"], content["stats"] = content["ops"][:10], content["trace"][:10], []
    change(content)
    return content


MALFORMED = {
    "a list": [],
    "a number": 7,
    "no ops": reshaped(lambda c: c.pop("ops")),
    "ops that are no list": reshaped(lambda c: c.update(ops={})),
    "an op that is no object": reshaped(lambda c: c["ops"].insert(0, 7)),
    "an unknown op": reshaped(lambda c: c["ops"].insert(0, {"op": "explode"})),
    "an op that is not even a name": reshaped(lambda c: c["ops"].insert(0, {"op": ["alloc"]})),
    "a negative size": reshaped(lambda c: c["ops"][0].update(size=-1)),
    "a size beyond 64 bits": reshaped(lambda c: c["ops"][0].update(size=1 << 64)),
    "a size that is a text": reshaped(lambda c: c["ops"][0].update(size="512")),
    "a size that is true": reshaped(lambda c: c["ops"][0].update(size=True)),
    "a size that is no number": reshaped(lambda c: c["ops"][0].update(size=float("nan"))),
    "a stream that is not there": reshaped(lambda c: c["ops"][0].update(stream=99)),
    "an absurd address": reshaped(lambda c: c["trace"][1].update(addr=1 << 63)),
    "an unknown action": reshaped(lambda c: c["trace"][0].update(action="explode")),
    "an entry without a size": reshaped(lambda c: c["trace"][0].pop("size")),
    "a device without memory": reshaped(lambda c: c.update(total_memory=0)),
    "a limit above the memory": reshaped(lambda c: c.update(limit=c["total_memory"] + 1)),
    "settings that make no sense": reshaped(lambda c: c.update(conf="max_split_size_mb:1")),
    "counters that are texts": reshaped(lambda c: c.update(stats=[{"at": 0, "stats": {"num_ooms": "0"}}])),
    "counters after the last op": reshaped(lambda c: c.update(stats=[{"at": 11, "stats": {}}])),
    "a block freed that was never allocated": reshaped(lambda c: c["ops"].insert(0, {"op": "free", "id": 7})),
    "a pool that was never created": reshaped(lambda c: c["ops"].insert(0, {"op": "pool_end", "pool": 7})),
    "a graph that was never captured": reshaped(lambda c: c["ops"].insert(0, {"op": "graph_reset", "graph": 7})),
    "a call of a custom allocator that is none": reshaped(lambda c: c["ops"][0].update(own=[["alloc", 1]])),
}


class TestABadFile:
    """Return the one line of the message; the exit code must be 2."""

    def refused(self, capsys: pytest.CaptureFixture[str], path: Path) -> str:
        code, out = command(capsys, path)
        assert code == 2
        first, total = out.splitlines()
        assert first.startswith("bad ")
        assert total == "1 file: 1 bad"
        return first

    @pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED.keys())
    def test_with_the_wrong_content(self, tmp_path, capsys, content):
        self.refused(capsys, written(tmp_path, content))

    def test_that_is_truncated(self, tmp_path, capsys):
        path = tmp_path / "short.json.gz"
        path.write_bytes(LIMITED.read_bytes()[:-1000])
        assert "damaged" in self.refused(capsys, path)

    def test_that_is_damaged_in_the_middle(self, tmp_path, capsys):
        content = bytearray(LIMITED.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path = tmp_path / "flipped.json.gz"
        path.write_bytes(content)
        self.refused(capsys, path)

    def test_that_is_not_compressed(self, tmp_path, capsys):
        path = tmp_path / "plain.json.gz"
        path.write_bytes(gzip.decompress(LIMITED.read_bytes()))
        self.refused(capsys, path)

    def test_that_is_not_json(self, tmp_path, capsys):
        path = tmp_path / "words.json.gz"
        path.write_bytes(gzip.compress(b"{not json"))
        self.refused(capsys, path)

    def test_that_is_not_text(self, tmp_path, capsys):
        path = tmp_path / "bytes.json.gz"
        path.write_bytes(gzip.compress(b"\xff\xfe\x80"))
        self.refused(capsys, path)

    def test_that_is_nested_without_end(self, tmp_path, capsys):
        path = tmp_path / "deep.json.gz"
        path.write_bytes(gzip.compress(b"[" * 1_000_000))
        self.refused(capsys, path)

    def test_that_unpacks_to_too_much(self, tmp_path, capsys):
        path = tmp_path / "bomb.json.gz"
        path.write_bytes(gzip.compress(b" " * (golden_file.MAX_BYTES + 1)))
        assert "more than" in self.refused(capsys, path)

    def test_that_does_not_exist(self, tmp_path, capsys):
        assert "No such file" in self.refused(capsys, tmp_path / "nowhere.json.gz")

    def test_that_is_a_folder(self, tmp_path, capsys):
        self.refused(capsys, tmp_path)

    def test_whose_name_would_upset_a_terminal(self, tmp_path, capsys):
        assert "\x1b" not in self.refused(capsys, tmp_path / "\x1b[2J\nname")


class TestCommand:
    def test_equal_files_exit_with_0_and_have_a_line_each(self, capsys):
        code, out = command(capsys, LIMITED, SETTINGS)
        assert code == 0
        assert out.splitlines() == [f"equal     {LIMITED}", f"equal     {SETTINGS}", "2 files: 2 equal"]

    def test_json_is_one_object_and_nothing_else(self, tmp_path, capsys):
        wrong = changed(tmp_path, LIMITED, lambda content: content["trace"].pop())
        code, out = command(capsys, "--json", LIMITED, wrong, tmp_path / "nowhere")
        report = json.loads(out)
        assert code == 2
        assert (report["equal"], report["different"], report["not_yet"], report["bad"]) == (1, 1, 0, 1)
        assert [file["status"] for file in report["files"]] == ["equal", "different", "bad"]
        different = report["files"][1]
        assert different["file"] == str(wrong)
        assert {"op", "trace_index", "expected", "got"} <= different.keys()
        assert different["expected"] == "nothing"

    def test_bad_input_counts_over_a_difference_over_not_yet(self, tmp_path, capsys, monkeypatch):
        def unsupported(world: object, op: object) -> None:
            raise UnsupportedError("no settings here")

        monkeypatch.setitem(golden_ops.OPERATIONS, "settings", unsupported)
        wrong = changed(tmp_path, LIMITED, lambda content: content["trace"].pop())
        nowhere = tmp_path / "nowhere"
        assert command(capsys, SETTINGS, LIMITED)[0] == 3
        assert command(capsys, SETTINGS, wrong)[0] == 1
        assert command(capsys, SETTINGS, wrong, nowhere)[0] == 2

    def test_what_the_engine_lacks_is_named(self, capsys, monkeypatch):
        monkeypatch.setitem(golden_ops.OPERATIONS, "settings", lambda world, op: world.allocator.no_such_thing())
        code, out = command(capsys, SETTINGS)
        assert code == 3
        assert "not yet" in out and "settings" in out and "no_such_thing" in out

    def test_a_difference_behind_a_question_that_cannot_be_answered_is_still_found(self, tmp_path, monkeypatch):
        monkeypatch.setitem(golden_ops.OPERATIONS, "use_count", lambda world, op: world.allocator.no_such_thing())
        file = GOLDEN / "pools2.default.s1.json.gz"
        assert check_file(file).status == "not_yet"
        assert check_file(changed(tmp_path, file, lambda content: content["segments"].pop())).status == "different"

    def test_a_mistake_in_the_runner_is_not_taken_for_a_missing_method(self, monkeypatch):
        monkeypatch.setitem(golden_ops.OPERATIONS, "settings", lambda world, op: op.no_such_thing())
        with pytest.raises(AttributeError):
            check_file(SETTINGS)

    def test_a_replay_leaves_nothing_to_the_garbage_collector(self, monkeypatch):
        scripts = []

        def watched(recording: golden_file.GroundTruth) -> golden_world.World:
            world = golden_world.world_of(recording)
            scripts.append(weakref.ref(world.script))
            return world

        monkeypatch.setattr("allotment.lab.conformance.run.world_of", watched)
        gc.disable()
        try:
            check_file(LIMITED)
            assert scripts[0]() is None
        finally:
            gc.enable()

    def test_without_files_is_a_mistake_in_usage(self, capsys):
        assert command(capsys)[0] == 2

    def test_invariants_are_checked_after_every_op_when_asked(self, monkeypatch):
        checks = []
        original = golden_world.world_of

        class Watched:
            def __init__(self, allocator: Any) -> None:
                self._allocator = allocator

            def __getattr__(self, name: str) -> Any:
                return getattr(self._allocator, name)

            @property
            def inspection(self) -> Any:
                checks.append(self._allocator)
                return self._allocator.inspection

        def watched(recording: golden_file.GroundTruth) -> golden_world.World:
            world = original(recording)
            world.allocator = Watched(world.allocator)
            return world

        monkeypatch.setattr("allotment.lab.conformance.run.world_of", watched)
        assert check_file(LIMITED).status == "equal"
        assert not checks
        assert check_file(LIMITED, check_invariants=True).status == "equal"
        assert len(checks) == 900
