"""`allotment.lab` for programs and notebooks."""

import sys
from pathlib import Path

import pytest

import allotment
from allotment import lab
from allotment.errors import RequestError, UnsupportedError
from allotment.lab import diff, explain, read_recording, replay, tune


def test_what_the_commands_print_are_objects() -> None:
    recording = read_recording("sample")
    assert isinstance(recording, lab.Recording)
    as_recorded = replay(recording)
    assert isinstance(as_recorded, lab.Result)
    assert as_recorded.matches_recording
    assert replay("sample", capacity="8GiB").ooms == 0
    explained = explain("sample")
    assert isinstance(explained, lab.Explanation)
    assert explained == explain(recording)
    tuned = tune(recording, "min-memory", settings=["", "expandable_segments:True"])
    assert isinstance(tuned, lab.Tuned)
    assert tuned.best.peak_reserved_bytes <= as_recorded.peak_reserved_bytes
    assert isinstance(diff("sample", "sample"), lab.Comparison)
    with pytest.raises(RequestError):
        tune(recording, "fast")


def test_functions_come_before_the_packages_of_their_names() -> None:
    import allotment.lab.explain.report
    import allotment.lab.replay.run
    import allotment.lab.tune.search  # noqa: F401 (that it is imported again changes nothing)

    assert all(callable(getattr(lab, name)) for name in lab.__all__)


def test_results_show_themselves_and_nothing_in_them_is_obeyed(tmp_path: Path) -> None:
    allocator = allotment.Allocator("sim:1GiB", settings="compat:newest")
    allocator.record_history(recorder=lambda: [{"name": "<script>f", "filename": "<b>.py", "line": 1}])
    block = allocator.malloc(3_000_000)
    allocator.history.dump_snapshot(tmp_path / "run.pickle")
    allocator.free(block)
    shown = explain(tmp_path / "run.pickle")._repr_html_()
    assert "&lt;script&gt;f" in shown
    assert "<script>" not in shown
    for result in (replay("sample"), tune("sample", settings=[""]), diff("sample", "sample")):
        assert result._repr_html_().startswith("<table>")


def test_a_result_is_a_dataframe_where_pandas_is_there() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    tuned = tune("sample", settings=["", "expandable_segments:True"])
    frame = tuned.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["peak_reserved_bytes"]) == [each.peak_reserved_bytes for each in tuned.candidates]


def test_without_pandas_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pandas"):
        replay("sample").to_dataframe()
