"""The flame graph that `explain --flame` writes: one file, and search, zoom and keys in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from allotment._cli import main
from helpers.browser import Browser, missing
from helpers.known_causes import MIB, Program, leak_of_losses, own

needs_browser = pytest.mark.skipif(missing() is not None, reason=f"a driven browser needs {missing()}")


def written(folder: Path, program: Program) -> Path:
    run, page = folder / "run.pickle", folder / "flame.html"
    run.write_bytes(program.recorded())
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(run), "--flame", str(page)])
    assert not ended.value.code
    return page


def test_the_file_has_everything_in_it_and_names_of_others_as_data_only(tmp_path: Path) -> None:
    program = Program()
    program.ask(3 * MIB, (("</script><script>alert(1)", "<img src=x>.py", 3), *own(5)))
    text = written(tmp_path, program).read_text()
    assert "<script>alert" not in text and "<img" not in text
    assert "Content-Security-Policy" in text and "default-src 'none'" in text
    assert not re.search(r"""(src|href)=["']?https?:""", text)
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert embedded is not None
    data = json.loads(embedded[1])
    assert "</script><script>alert(1) <img src=x>.py:3" in data["labels"]


def test_a_snapshot_without_a_history_has_no_flame_graph(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import pickle

    program = Program()
    program.ask(3 * MIB, own(5))
    snapshot = program.snapshot()
    snapshot["device_traces"] = []
    file = tmp_path / "end.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(file), "--flame", str(tmp_path / "flame.html")])
    assert ended.value.code == 2 and "needs a history" in capsys.readouterr().err
    assert not (tmp_path / "flame.html").exists()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    browser.open(written(tmp_path, leak_of_losses("420MiB")).as_uri())
    browser.wait_for("document.querySelectorAll('.frame').length > 5")
    return browser


def text_of(browser: Browser, element: str) -> str:
    return str(browser.run(f"return document.querySelector({element!r}).innerText"))


def box_of(browser: Browser, label: str) -> dict[str, float]:
    script = "return [...document.querySelectorAll('.frame')].find((each) => each.title.includes(arguments[0]))"
    return dict(browser.run(f"{script}?.getBoundingClientRect().toJSON()", label))


@needs_browser
@pytest.mark.threads
def test_callers_are_on_top_and_search_shows_how_much_matches(page: Browser) -> None:
    assert box_of(page, "train.py:95")["y"] < box_of(page, "model.py:30")["y"]
    page.key("/")
    page.type("model.py:30")
    page.wait_for("document.querySelectorAll('.hit').length > 0")
    assert "frames match: 86.0 MiB" in text_of(page, "#found")
    page.key("Escape")
    assert page.run("return document.querySelectorAll('.hit').length") == 0


@needs_browser
@pytest.mark.threads
def test_a_click_zooms_and_escape_returns(page: Browser) -> None:
    narrow = box_of(page, "train.py:70")
    page.click(narrow["x"] + narrow["width"] / 2, narrow["y"] + 5)
    whole = box_of(page, "all:")["width"]
    assert narrow["width"] < whole == box_of(page, "train.py:70")["width"]
    page.key("Escape")
    page.wait_for("[...document.querySelectorAll('.frame')].some((each) => each.title.includes('train.py:52'))")


@needs_browser
@pytest.mark.threads
def test_keys_walk_from_frame_to_frame_and_enter_zooms(page: Browser) -> None:
    page.run("document.querySelector('.frame').focus()")
    for _ in range(3):
        page.key("ArrowDown")
    assert "train /home/user/project/train.py" in text_of(page, "#details")
    page.key("ArrowRight")
    beside = text_of(page, "#details")
    page.key("Enter", text="\r")
    focused = page.run("return document.activeElement.getBoundingClientRect().width")
    assert focused == box_of(page, "all:")["width"] and text_of(page, "#details") == beside
    labels = page.run("return [...document.querySelectorAll('.frame')].map((each) => each.getAttribute('aria-label'))")
    assert all(labels)


@needs_browser
@pytest.mark.threads
@pytest.mark.parametrize("width", [360, 800, 2560])
def test_other_figures_can_be_shown_and_it_fits_any_width(page: Browser, width: int) -> None:
    page.devtools("Emulation.setDeviceMetricsOverride", width=width, height=700, deviceScaleFactor=1, mobile=False)
    page.run("const m = document.getElementById('metric'); m.value = 'allocated'; m.dispatchEvent(new Event('change'))")
    page.wait_for(f"document.querySelector('.frame').getBoundingClientRect().width >= {width - 20}")
    assert "4,427" in page.run("return document.querySelector('.frame').title")
    assert page.run("return document.documentElement.scrollWidth") <= width
