"""The page in a real browser, driven: a block is looked at, time scrubbed, something found, two settings compared.

Needs `chromium` and `chromedriver`; pictures for the documentation are made by `docs/pictures/view.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allotment._cli import main
from allotment._viewer.runs import Runs
from allotment._viewer.server import PageServer
from helpers.browser import Browser, missing

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(missing() is not None, reason=f"a driven browser needs {missing()}"),
]

IDLE = "typeof app !== 'undefined' && app.isIdle"
LAST = 7215


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.open("about:blank")
        browser.requests()
        yield browser


@pytest.fixture(scope="module")
def served() -> Iterator[PageServer]:
    runs = Runs()
    runs.read(str(Path(__file__).parents[1] / "traces" / "streams_prefetch.default.pickle.gz"))
    server = PageServer(runs)
    yield server
    server.close()


@pytest.fixture
def page(browser: Browser, served: PageServer) -> Browser:
    browser.open(served.address)
    browser.wait_for(IDLE)
    return browser


def middle_of(browser: Browser, element: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    script = f"return document.querySelector({element!r}).getBoundingClientRect().toJSON()"
    box = browser.run(script)
    return box["x"] + box["width"] * across, box["y"] + box["height"] * down


def text_of(browser: Browser, element: str) -> str:
    return str(browser.run(f"return document.querySelector({element!r}).innerText"))


def test_it_opens_at_the_peak_and_asks_its_own_server_alone(page: Browser, served: PageServer) -> None:
    assert "8.490 GiB" in text_of(page, ".title")
    assert page.run("return app.moment === app.views[0].overview.peak_reserved.moment")
    requests = page.requests()
    assert requests and all(each.startswith(served.address) or each.startswith("data:") for each in requests)
    assert page.run("return document.getElementById('notice').hidden")


def test_a_click_on_a_block_shows_its_life(page: Browser) -> None:
    page.run("app.setMoment(3000)")
    page.wait_for(f"{IDLE} && app.views[0].at.moment === 3000")
    place = page.run(
        """const map = app.views[0]._addresses, {place, size, state, life} = app.views[0].at.arrays, g = map._geometry;
        let best = -1;
        for (let i = 0; i < place.length; i++) if (state[i] === 0 && (best < 0 || size[i] > size[best])) best = i;
        const at = place[best] + Math.min(size[best], g.perRow) * 0.25 - map.window[0];
        const row = Math.floor(at / g.perRow), box = map._canvas.getBoundingClientRect();
        return [box.x + 74 + (at - row * g.perRow) * g.scale, box.y + 5 + (row + 0.4) * g.pitch, life[best]]"""
    )
    page.click(place[0], place[1])
    page.wait_for("!document.getElementById('block').hidden")
    shown = text_of(page, "#block")
    life = page.run("return app._picked.life")
    assert life == place[2]
    words = ("size", "asked for", "address", "stream, pool", "allocated", "freed", "lived", "pins")
    assert [word for word in words if word not in shown] == []
    page.key("Escape")
    assert page.run("return document.getElementById('block').hidden")


def test_a_click_on_a_chart_sets_the_moment_and_dragging_the_bar_scrubs(page: Browser) -> None:
    page.click(*middle_of(page, ".live .u-over"))
    page.wait_for(f"{IDLE} && Math.abs(app.moment - {LAST} / 2) < {LAST} / 50")
    start, end = middle_of(page, ".scrub .body", 0.3), middle_of(page, ".scrub .body", 0.8)
    page.drag(*start, *end, steps=12)
    page.wait_for(f"{IDLE} && app.moment > 0.7 * {LAST} && app.views[0].at.moment === app.moment")
    assert f"{page.run('return app.moment'):,}" in text_of(page, "#moment")


def test_the_wheel_zooms_until_single_events_and_a_double_click_shows_all(page: Browser) -> None:
    x, y = middle_of(page, ".live .u-over")
    for _ in range(40):
        page.wheel(x, y, -240)
    page.wait_for(f"{IDLE} && (app.window[1] - app.window[0]) * {LAST} < 20")
    page.wait_for("app.views[0].series.arrays.moment.length <= 40")
    page.key("0")
    page.wait_for(f"{IDLE} && app.window[0] === 0 && app.window[1] === 1")


def test_a_search_counts_marks_and_leads_to_a_block(page: Browser) -> None:
    page.key("/")
    page.type(">1MiB stream:0")
    page.run("document.getElementById('search-form').requestSubmit()")
    page.wait_for(f"{IDLE} && !document.getElementById('found').hidden")
    assert "blocks;" in text_of(page, "#found")
    page.wait_for(f"{IDLE} && app.views[0].at.arrays.hit.some((hit) => hit)")
    assert page.run("return app.views[0].series.arrays.found.some((size) => size > 0)")
    page.run("document.querySelector('#found .row').click()")
    page.wait_for("!document.getElementById('block').hidden")
    page.run("app.find('life>soon')")
    page.wait_for("document.getElementById('notice').textContent.includes('cannot search')")


def test_other_settings_are_tried_and_shown_beside(page: Browser) -> None:
    page.run("document.getElementById('compare').value = 'try expandable_segments:True'")
    page.run("document.getElementById('compare').dispatchEvent(new Event('change'))")
    page.wait_for(f"{IDLE} && app.views.length === 2")
    assert "4.713 GiB" in text_of(page, ".run + .run .title")
    page.run("app.setMoment(1234)")
    page.wait_for(f"{IDLE} && app.views.every((view) => view.at.moment === 1234)")
    page.run("app.compare('')")
    page.wait_for(f"{IDLE} && app.views.length === 1")


def test_keys_do_what_the_list_of_keys_says(page: Browser) -> None:
    page.run("app.setMoment(100)")
    page.key("ArrowRight")
    page.wait_for(f"{IDLE} && app.views[0].at.moment === 101")
    page.key("p")
    page.wait_for(f"{IDLE} && app.views[0].at.moment === app.views[0].overview.peak_reserved.moment")
    before = page.run("return app.by")
    page.key("g")
    page.wait_for(f"{IDLE} && app.by !== {before!r}")
    page.key("x")
    page.wait_for(f"{IDLE} && app.axis === 'time' && app.views[0].series && app.views[0].series.axis === 'time'")
    theme = page.run("return document.documentElement.dataset.theme")
    page.key("t")
    assert page.run("return document.documentElement.dataset.theme") != theme
    page.key("t")
    page.key("n")
    page.wait_for("!document.getElementById('block').hidden")
    page.key("?", text="?")
    page.wait_for("document.getElementById('keys').open")


def written(path: Path, *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(["view", *arguments, "--html", str(path)])
    return path.as_uri()


@pytest.fixture
def offline(browser: Browser) -> Iterator[Browser]:
    limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.open("about:blank")
    browser.devtools("Network.enable")
    browser.devtools("Network.emulateNetworkConditions", offline=True, **limits)
    browser.requests()
    yield browser
    browser.devtools("Network.emulateNetworkConditions", offline=False, **limits)


def test_a_file_works_with_the_network_off(offline: Browser, tmp_path: Path) -> None:
    address = written(tmp_path / "view.html", "sample", "--settings", "expandable_segments:True")
    offline.open(address)
    offline.wait_for(f"{IDLE} && app.views.length === 2")
    assert [each for each in offline.requests() if not each.startswith("data:")] == [address]
    offline.run("app.setMoment(600)")
    offline.wait_for(f"{IDLE} && Math.abs(app.views[0].at.moment - 600) < 20")
    offline.key("n")
    offline.wait_for("!document.getElementById('block').hidden")
    offline.run("app.find('>1MiB')")
    offline.wait_for(f"{IDLE} && !document.getElementById('found').hidden")
    assert offline.run("return app.views[0].series.arrays.found.some((size) => size > 0)")


def test_names_that_are_html_are_shown_as_text_and_run_nothing(
    browser: Browser, hostile_snapshot: Path, tmp_path: Path
) -> None:
    runs = Runs()
    runs.read(str(hostile_snapshot))
    server = PageServer(runs)
    try:
        for address in (server.address, written(tmp_path / "view.html", str(hostile_snapshot))):
            browser.open(address)
            browser.wait_for(IDLE)
            browser.key("n")
            browser.wait_for("!document.getElementById('block').hidden")
            browser.run("app.find('<script>')")
            browser.wait_for(f"{IDLE} && !document.getElementById('found').hidden")
            assert "<script>window.broken = 1</script>" in text_of(browser, "#block .stack")
            assert "<img src=x" in text_of(browser, "#identity")
            assert browser.run("return window.broken === undefined && document.querySelectorAll('img').length === 0")
    finally:
        server.close()


def test_a_snapshot_without_a_history_shows_its_map(browser: Browser, tmp_path: Path) -> None:
    import pickle

    import allotment

    allocator = allotment.Allocator("sim:1GiB")
    kept = [allocator.malloc(size << 20) for size in (3, 7, 30)]
    (tmp_path / "end.pickle").write_bytes(pickle.dumps(allocator.snapshot()))
    browser.open(written(tmp_path / "view.html", str(tmp_path / "end.pickle")))
    browser.wait_for(IDLE)
    assert len(kept) == browser.run("return app.views[0].at.blocks")
    assert "when the snapshot was taken" in text_of(browser, ".map .head")
