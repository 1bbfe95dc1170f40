"""One file with everything in it: complete, small, and without any content of untrusted files that could run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import allotment
from allotment._cli import main
from allotment._viewer.document import served_page
from allotment._viewer.runs import Runs
from allotment._viewer.stills import stills
from allotment.lab import explain

MOST_BYTES = 5_000_000


def written(path: Path, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["view", *arguments, "--html", str(path)])
    assert ended.value.code == 0
    return path.read_text("utf-8")


def data_in(page: str) -> tuple[dict[str, object], list[bytes]]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    return data["about"], [zlib.decompress(base64.b64decode(part)) for part in data["packed"]]


def test_a_file_holds_both_runs_and_is_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = written(tmp_path / "view.html", "sample", "--settings", "expandable_segments:True")
    about, packed = data_in(page)
    assert [run["settings"] for run in about["runs"]] == [None, "expandable_segments:True"]
    assert len(packed) == 2 and len(page) < MOST_BYTES
    assert "Wrote" in capsys.readouterr().out


def test_a_file_makes_no_requests(tmp_path: Path) -> None:
    page = written(tmp_path / "view.html", "sample")
    assert re.findall(r'(?:src|href|action)\s*=\s*"(?!data:)[^"]*"', page) == []
    assert "@import" not in page and "url(" not in page
    assert "connect-src 'none'" in page and "default-src 'none'" in page


def test_every_script_that_may_run_is_named_by_its_hash() -> None:
    page, policy = served_page()
    scripts = re.findall(r"<script>(.*?)</script>", page.decode(), re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert scripts and re.findall(r"script-src ([^;]*)", policy) == [" ".join(f"'sha256-{each}'" for each in hashes)]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", "".join(scripts[1:]))


def test_names_that_are_html_stay_data(tmp_path: Path, hostile_snapshot: Path) -> None:
    page = written(tmp_path / "view.html", str(hostile_snapshot))
    about, _ = data_in(page)
    assert "window.broken" in json.dumps(about)
    assert "<img" not in page and "<script>window.broken" not in page


def test_stills_have_the_peak_and_every_piece_of_it(runs: Runs) -> None:
    run = runs.shown[0]
    timeline = run.timeline
    about, packed = stills(run)
    length = int.from_bytes(packed[:4], "little")
    at, arrays = 4 + length, {}
    kinds = {"Uint8Array": "u1", "Int32Array": "<i4", "Float64Array": "<f8"}
    for name, kind, count in json.loads(packed[4 : 4 + length])["arrays"]:
        arrays[name] = np.frombuffer(packed, kinds[kind], count, at)
        at += -(-arrays[name].nbytes // 8) * 8
    moment = timeline.peak_reserved[0]
    still = arrays["still"].tolist().index(moment)
    there = (arrays["first"] <= still) & (still <= arrays["last_still"])
    pieces = timeline.pieces(moment)
    order = np.argsort(arrays["place"][there])
    assert np.array_equal(arrays["place"][there][order], timeline.axis.places(pieces.address))
    assert np.array_equal(arrays["size"][there][order], pieces.size)
    lives = np.append(arrays["life_number"], -1)[arrays["life"][there][order]]
    assert np.array_equal(lives, pieces.life)
    assert about["waste_at_stills"][still] == timeline.waste(moment)


def test_fewer_pieces_mean_fewer_moments_and_the_peak_stays(runs: Runs) -> None:
    run = runs.shown[0]
    _, few = stills(run, pieces=500)
    _, many = stills(run)
    assert len(few) < len(many)


def test_a_file_that_cannot_be_written_is_refused_before_the_reading(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["view", "no-such-snapshot", "--html", "/no-such-folder/view.html"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "allotment: /no-such-folder/view.html: No such file or directory\n"


def test_json_says_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "view.html"
    with pytest.raises(SystemExit):
        main(["view", "sample", "--json", "--html", str(path)])
    said = json.loads(capsys.readouterr().out)
    assert said["html"] == str(path) and said["runs"][0]["peak_reserved_bytes"] == 9116319744


# --- the moment at which it opens ---


def opened_at(page: str) -> int:
    about, packed = data_in(page)
    run = about["runs"][0]  # type: ignore[index]
    length = int.from_bytes(packed[0][:4], "little")
    at = 4 + length
    for name, kind, count in json.loads(packed[0][4 : 4 + length])["arrays"]:
        size = {"Uint8Array": 1, "Int32Array": 4, "Float64Array": 8}[kind] * count
        if name == "still":
            stills_kept = np.frombuffer(packed[0], "<i4", count, at).tolist()
        elif name == "still_entry":
            kind = {"Int32Array": "<i4", "Float64Array": "<f8"}[kind]
            entries = np.frombuffer(packed[0], kind, count, at).tolist()
        at += -(-size // 8) * 8
    return int(entries[stills_kept.index(run["opens_at"])])  # the file has a map of that very moment


def test_it_opens_at_the_moment_that_explain_speaks_of(tmp_path: Path) -> None:
    assert opened_at(written(tmp_path / "view.html", "sample", "--at", "explain")) == explain("sample").peak.entry


def test_it_opens_at_the_request_that_failed_if_one_did(tmp_path: Path) -> None:
    allocator = allotment.Allocator("sim:64MiB")
    allocator.record_history()
    for size in (30, 10, 40, 5):
        with suppress(allotment.OutOfMemoryError):
            allocator.malloc(size << 20)
    path = tmp_path / "failed.pickle"
    allocator.history.dump_snapshot(path)
    failure = explain(path).failure
    assert failure is not None
    assert opened_at(written(tmp_path / "view.html", str(path), "--at", "explain")) == failure.entry


def test_it_opens_at_an_entry_by_its_number(tmp_path: Path) -> None:
    assert opened_at(written(tmp_path / "view.html", "sample", "--at", "1234")) in (1233, 1234)


@pytest.mark.parametrize("at", ["999999999", "-3", "peak", "", "1e3", "9" * 5000])
def test_a_moment_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], at: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["view", "sample", f"--at={at}", "--html", str(tmp_path / "view.html")])
    assert ended.value.code == 2
    assert '--at takes "explain", or the number of an entry up to 10,919' in capsys.readouterr().err


# --- letters that everybody can read ---


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("letters", ["text", "muted", "faint", "bad", "good", "accent"])
def test_letters_stand_out_from_what_is_behind_them(theme: str, letters: str) -> None:
    page = served_page()[0].decode()
    (rules,) = re.findall(
        r":root \{(.*?)\}" if theme == "dark" else r':root\[data-theme="light"\] \{(.*?)\}', page, re.S
    )
    colors = dict(re.findall(r"--(\w+): (#\w{6})", rules))
    for behind in ("bg", "panel", "raised"):
        low, high = sorted((luminance(colors[letters]), luminance(colors[behind])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{letters} on {behind}"
