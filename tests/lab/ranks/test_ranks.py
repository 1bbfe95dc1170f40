"""Many recorded runs at once: found, read by other processes, and tuned for the worst of them."""

import importlib.util
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

import allotment
from allotment._cli import main
from allotment.errors import RequestError, UnsupportedError
from allotment.lab.ranks.figures import figures_of
from allotment.lab.ranks.files import snapshot_files
from allotment.lab.ranks.together import tune_together
from allotment.lab.ranks.workers import for_each_file
from allotment.lab.tune.search import Goal

MIB = 1 << 20


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven small runs; the tenth needs most."""
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(11):
        allocator = allotment.Allocator("sim:8GiB", settings="compat:2.11")
        allocator.record_history()
        blocks = [allocator.malloc((size + (40 if rank == 10 else rank)) * MIB) for size in (30, 20, 10)]
        for block in blocks:
            allocator.free(block)
        last = allocator.malloc((55 + rank) * MIB)
        allocator.history.dump_snapshot(folder / f"rank{rank}.pickle")
        allocator.free(last)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


def test_folders_and_patterns_are_files_in_the_order_of_their_numbers(ranks: Path) -> None:
    names = [f"rank{number}.pickle" for number in range(11)]
    assert [Path(file).name for file in snapshot_files([str(ranks)])] == names
    assert [Path(file).name for file in snapshot_files([str(ranks / "rank*.pickle"), str(ranks)])] == names
    assert snapshot_files(["-"]) == ["-"]
    assert snapshot_files(["no such file"]) == ["no such file"]  # reported when the file is opened


@pytest.mark.parametrize("given", [["nothing*.pickle"], ["-", "other"], [str(Path(__file__).parent)]])
def test_what_stands_for_no_file_is_refused(given: list[str]) -> None:
    with pytest.raises(RequestError):
        snapshot_files(given)


def die_once(marker: str, file: str) -> str:
    """Kills its process the first time that it processes one of the files."""
    if file.endswith("rank3.pickle") and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Path(file).name


def die_always(file: str) -> str:
    if file.endswith("rank1.pickle"):
        os.kill(os.getpid(), signal.SIGKILL)
    return Path(file).name


def test_a_process_that_dies_loses_nothing(ranks: Path, tmp_path: Path) -> None:
    files = snapshot_files([str(ranks)])[:5]
    done = for_each_file(files, partial(die_once, str(tmp_path / "died")))
    assert (tmp_path / "died").exists()
    assert [each.value for each in done] == [Path(file).name for file in files]


@pytest.mark.slow
def test_a_file_that_every_process_dies_over_has_an_error(ranks: Path) -> None:
    files = snapshot_files([str(ranks)])[:3]
    done = for_each_file(files, die_always)
    assert [each.value for each in done] == ["rank0.pickle", None, "rank2.pickle"]
    assert "processes died while reading it" in (done[1].error or "")


def test_settings_for_all_ranks_are_those_of_the_worst(ranks: Path) -> None:
    files = snapshot_files([str(ranks)])[-3:]
    found = tune_together(files, Goal.parse("min-memory"), budget=10.0)
    assert found.deciding == str(ranks / "rank10.pickle")
    best = found.tuned.best
    assert best.peak_reserved_bytes == max(rank.peak_reserved_bytes for rank in found.ranks)
    assert [rank.recorded_peak_reserved_bytes for rank in found.ranks] == [
        figures_of(file).peak_reserved_bytes for file in files
    ]


def test_the_commands_take_folders_and_name_the_rank_that_decides(
    ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 10):
        (tmp_path / f"rank{rank}.pickle").write_bytes((ranks / f"rank{rank}.pickle").read_bytes())
    code, out, _ = run(capsys, "explain", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["file"] == str(tmp_path / "rank10.pickle")
    assert len(json.loads(out)["ranks"]) == 2
    (tmp_path / "rank11.pickle").write_bytes(b"no pickle")
    code, out, err = run(capsys, "stats", str(tmp_path), "--json")
    assert code == 2
    assert [Path(row["file"]).name for row in json.loads(out)["files"]] == ["rank0.pickle", "rank10.pickle"]
    assert "rank11.pickle" in err


def test_a_cluster_without_dask_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, ranks: Path) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnsupportedError, match=r"allotment\[dask\]"):
        for_each_file(snapshot_files([str(ranks)]), figures_of, "tcp://127.0.0.1:1")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")
def test_a_cluster_that_loses_a_worker_comes_to_the_same() -> None:
    from stress.dask_ranks import run as run_on_cluster

    assert run_on_cluster(ranks=12)["equal"]


def in_this_process(files: list[str], work, cluster=None, progress=None) -> list:
    return [done for file in files for done in for_each_file([file], work)]


def test_a_device_and_finer_values_count_for_all_files(
    capsys: pytest.CaptureFixture[str], ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allotment.lab.ranks.together.for_each_file", in_this_process)
    files = [str(ranks / "rank0.pickle"), str(ranks / "rank10.pickle")]
    for command in ("tune", "stats", "explain"):
        assert run(capsys, command, *files, "--device", "0")[0] == 0
        code, _, err = run(capsys, command, *files, "--device", "5")
        assert code == 2 and "no history of device 5" in err
    few = json.loads(run(capsys, "tune", *files, "--json")[1])
    finely = json.loads(run(capsys, "tune", *files, "--json", "--finely")[1])
    assert finely["tried"] > few["tried"]
