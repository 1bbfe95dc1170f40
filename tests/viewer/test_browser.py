"""The page in a driven, real browser: tests select a block, scrub time, search, and compare two settings.

Needs `chromium` and `chromedriver`; pictures for the documentation are made by `docs/pictures/view.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import allotment
from allotment._cli import main
from allotment._viewer.runs import Runs
from allotment._viewer.server import PageServer
from allotment.lab.explain.report import explain
from allotment.lab.replay.run import read_recording
from helpers.browser import Browser, missing

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(missing() is not None, reason=f"a driven browser needs {missing()}"),
]

IDLE = "typeof app !== 'undefined' && app.isIdle"
LAST = 7215
LAST_ENTRY = 10919
RECORDED = Path(__file__).parents[1] / "traces" / "streams_prefetch.default.pickle.gz"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.open("about:blank")
        browser.requests()
        yield browser


@pytest.fixture(scope="module")
def served() -> Iterator[PageServer]:
    runs = Runs()
    runs.read(str(RECORDED))
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


def test_the_flame_graph_of_the_run_opens_from_the_page(page: Browser, served: PageServer) -> None:
    # In this window: another one would take the input of the tests that follow.
    page.run(
        """addEventListener("click", (event) => { window.opened = event.target.href; event.preventDefault(); },
            {once: true})"""
    )
    page.key("f")
    address = page.run("return window.opened")
    assert address == f"{served.address}flame?run=0"
    page.open(address)
    assert page.wait_for("document.querySelectorAll('[role=treeitem]').length") >= 1


def test_it_opens_at_the_peak_and_calls_only_its_own_server(page: Browser, served: PageServer) -> None:
    assert "8.490 GiB" in text_of(page, ".title")
    assert page.run("return app.moment === app.views[0].overview.peak_reserved.moment")
    requests = page.requests()
    assert requests and all(each.startswith(served.address) or each.startswith("data:") for each in requests)
    assert page.run("return document.getElementById('notice').hidden")


def test_the_moment_that_explain_explains_is_found_by_its_number(
    page: Browser, browser: Browser, tmp_path: Path
) -> None:
    peak = explain(read_recording(RECORDED)).peak
    for address in (None, written(tmp_path / "view.html", str(RECORDED))):
        if address is not None:
            browser.open(address)
            browser.wait_for(IDLE)
        page.key("Home")
        page.wait_for(f"{IDLE} && app.views[0].at.entry < 100")
        assert "Before the history" in text_of(page, "#moment")
        page.key("p")
        page.wait_for(f"{IDLE} && app.views[0].at.entry === {peak.entry}")
        assert f"Entry {peak.entry:,}" in text_of(page, "#moment")
        assert f"after entry {peak.entry:,}" in text_of(page, ".map .right")
        assert page.run("return app.views[0].at.live") == peak.live_bytes
        drawn = page.run("const chart = app.views[0]._liveChart; return [chart._moment, chart.starts.at(-1)]")
        assert drawn == [peak.entry, LAST_ENTRY + 1]


@pytest.fixture(scope="module")
def two_served() -> Iterator[PageServer]:
    """A run side by side with itself under other settings."""
    runs = Runs()
    runs.read(str(RECORDED))
    runs.try_settings("expandable_segments:True")
    server = PageServer(runs)
    yield server
    server.close()


@pytest.mark.parametrize("width", [320, 360, 480, 699, 820])
def test_a_narrow_window_has_all_controls_and_wide_charts(browser: Browser, two_served: PageServer, width: int) -> None:
    size = {"height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.devtools("Emulation.setDeviceMetricsOverride", width=width, **size)
    try:
        browser.open(two_served.address)
        browser.wait_for(f"{IDLE} && app.views.length === 2")
        for views in (2, 1):
            if views == 1:
                browser.run("app.compare('')")
                browser.wait_for(f"{IDLE} && app.views.length === 1")
            boxes = browser.run(
                """const shown = [...document.querySelectorAll("header input, header select, header button")];
                return shown.map((each) => each.getBoundingClientRect().toJSON())"""
            )
            assert len(boxes) >= 5
            assert all(box["left"] >= 0 and box["right"] <= width and box["width"] > 20 for box in boxes)
            assert browser.run("return document.documentElement.scrollWidth") <= width
            charts = browser.run(
                """const bodies = [...document.querySelectorAll(".card .body")];
                return bodies.map((each) => [each.clientWidth, each.clientHeight])"""
            )
            least = 0.85 * width if width < 760 else 200
            assert len(charts) == 4 * views
            assert all(across >= least and down >= 40 for across, down in charts)
    finally:
        browser.devtools("Emulation.setDeviceMetricsOverride", width=1440, **{**size, "height": 900})


def test_a_click_on_a_block_shows_its_life(page: Browser) -> None:
    page.run("app.setMoment(3000)")
    page.wait_for(f"{IDLE} && app.views[0].at.moment === 3000")
    place = page.run(
        """const map = app.views[0]._addresses, {place, size, state, life} = app.views[0].at.arrays, g = map._geometry;
        let best = -1;
        for (let i = 0; i < place.length; i++) if (state[i] === 0 && (best < 0 || size[i] > size[best])) best = i;
        const at = place[best] + Math.min(size[best], g.perRow) * 0.25 - map.window[0];
        const row = Math.floor(at / g.perRow), box = map._canvas.getBoundingClientRect();
        return [box.x + g.left + (at - row * g.perRow) * g.scale, box.y + 5 + (row + 0.4) * g.pitch, life[best]]"""
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
    page.wait_for(f"{IDLE} && Math.abs(app.views[0].at.entry - {LAST_ENTRY} / 2) < {LAST_ENTRY} / 50")
    start, end = middle_of(page, ".scrub .body", 0.3), middle_of(page, ".scrub .body", 0.8)
    page.drag(*start, *end, steps=12)
    page.wait_for(f"{IDLE} && app.moment > 0.7 * {LAST} && app.views[0].at.moment === app.moment")
    assert f"Entry {page.run('return app.views[0].at.entry'):,}" in text_of(page, "#moment")


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


@contextmanager
def resized(browser: Browser, width: int, height: int, *, dark: bool = True) -> Iterator[None]:
    """A window of another size, with the dark or the light theme."""

    def set_to(width: int, height: int, scheme: str) -> None:
        browser.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    set_to(width, height, "dark" if dark else "light")
    try:
        yield
    finally:
        set_to(1440, 900, "dark")


CUT_OFF = """
    const texts = ".key, .figure, .label, .row .name, .row .amount span, .facts dd, .about, h2, .right";
    const shown = [...document.querySelectorAll(texts)];
    const cut = shown.filter((each) => {
        for (let box = each; box !== document.body; box = box.parentElement) {
            if (getComputedStyle(box).overflowX !== "visible" && box.scrollWidth > box.clientWidth + 1) return true;
        }
        const {left, right} = each.getBoundingClientRect();
        return left < 0 || right > innerWidth + 1;
    });
    return cut.map((each) => each.textContent)"""


@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
@pytest.mark.parametrize(("width", "height"), [(360, 740), (800, 900), (1400, 900), (2560, 1440), (3840, 2160)])
def test_no_legend_figure_or_name_is_cut_off_on_any_screen(
    browser: Browser, two_served: PageServer, width: int, height: int, dark: bool
) -> None:
    with resized(browser, width, height, dark=dark):
        browser.open(two_served.address)
        browser.run("localStorage.clear()")
        browser.open(two_served.address)
        browser.wait_for(f"{IDLE} && app.views.length === 2")
        assert browser.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert browser.run(CUT_OFF) == []
        assert browser.run("return document.documentElement.scrollWidth") <= width
        browser.run("app.compare('')")
        browser.wait_for(f"{IDLE} && app.views.length === 1")
        browser.key("n")
        browser.wait_for("!document.getElementById('block').hidden")
        assert browser.run(CUT_OFF) == []
        letters = browser.run("return parseFloat(getComputedStyle(document.body).fontSize)")
        assert letters == (13 if width < 2200 else 16 if width < 3200 else 20)
    browser.run("localStorage.clear()")


def test_a_name_has_one_color_in_both_runs_and_the_legend_has_the_names_of_both(
    browser: Browser, tmp_path: Path
) -> None:
    paths = []
    for number, names in enumerate((["embed", "attention", "loss"], ["head", "attention", "embed", "norm"])):
        allocator = allotment.Allocator("sim:1GiB")
        frames: list[dict[str, Any]] = []
        allocator.record_history(recorder=lambda frames=frames: frames)
        for line, name in enumerate(names):
            frames[:] = [{"name": name, "filename": f"/{name}.py", "line": 3}]
            allocator.malloc((line + 3) << 20)
        paths.append(tmp_path / f"{number}.pickle")
        allocator.history.dump_snapshot(paths[-1])
    browser.open(written(tmp_path / "view.html", *map(str, paths)))
    browser.wait_for(f"{IDLE} && app.views.length === 2")
    colors = browser.run(
        """return app.views.map((view) => Object.fromEntries(view.overview.groupings.line.map(
            (name, band) => [name.split(" ")[1], app.bandColor(view.overview, "line", band)])))"""
    )
    assert set(colors[0]) == {"embed", "attention", "loss"}
    assert colors[0]["embed"] == colors[1]["embed"] and colors[0]["attention"] == colors[1]["attention"]
    assert all(len(set(each.values())) == len(each) for each in colors)
    legend = text_of(browser, "#holders")
    assert all(f"{name}.py:3" in legend for name in ("embed", "attention", "loss", "head", "norm"))


def test_everything_that_can_have_the_focus_has_a_name_and_shows_it(page: Browser) -> None:
    page.devtools("Accessibility.enable")
    nodes = page.devtools("Accessibility.getFullAXTree")["nodes"]
    focusable = [
        node
        for node in nodes
        if any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", []))
        and node["role"]["value"] not in ("RootWebArea", "option", "MenuListPopup")
    ]
    assert len(focusable) > 10
    assert [node["role"]["value"] for node in focusable if not node["name"]["value"].strip()] == []
    named = {node["role"]["value"]: node["name"]["value"] for node in nodes if "name" in node}
    assert named["slider"] == "Moment"
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in ("image", "img")]
    images = [node["name"]["value"] for node in shown]
    assert any("in use over time" in name for name in images)
    assert any("Addresses after entry" in name for name in images)
    slider = page.run("return document.querySelector('[role=slider]').getAttribute('aria-valuetext')")
    assert "GiB in use, 8.490 GiB reserved" in slider


def show_one_run(page: Browser) -> None:
    """Another test may have tried settings, which the server shows beside it from then on."""
    page.run("app.compare('')")
    page.wait_for(f"{IDLE} && app.views.length === 1")


def focused(page: Browser) -> str:
    return str(
        page.run(
            """const at = document.activeElement;
            if (at === document.body) return "BODY";
            return at.id || at.className || at.tagName + (at.getAttribute("role") || "")"""
        )
    )


def test_the_page_can_be_used_with_only_the_keyboard(page: Browser) -> None:
    show_one_run(page)
    reached = []
    for _ in range(40):
        page.key("Tab")
        reached.append(focused(page))
        if reached[-1] == "BODY":
            break
        seen = page.run(
            """const at = document.activeElement, style = getComputedStyle(at);
            return at.matches(":focus-visible") && style.outlineStyle !== "none" && style.outlineWidth !== "0px";"""
        )
        assert seen, f"{reached[-1]} does not show that it has the focus"
    controls = ["search", "by", "axis", "compare", "flame", "share", "theme", "help", "body", "CANVASimg"]
    assert reached[: len(controls)] == controls
    assert any(each.startswith("row") for each in reached[len(controls) :])

    page.open(page.run("return location.href"))  # from the start, and now with a purpose
    page.wait_for(IDLE)
    show_one_run(page)
    page.key("Home")
    page.key("ArrowRight")
    page.wait_for(f"{IDLE} && app.views[0].at.moment === app.moment && app.moment <= 2")
    page.wait_for("document.getElementById('said').textContent.includes('in use')")
    page.key("p")
    page.wait_for(f"{IDLE} && app.moment > 2")
    page.key("+")
    page.key("+")
    page.wait_for(f"{IDLE} && app.window[1] - app.window[0] < 0.5")
    assert page.run("const at = app.views[0]._momentFraction; return app.window[0] <= at && at <= app.window[1]")
    page.key("/")
    page.type(">100MiB")
    page.key("Enter")
    page.wait_for(f"{IDLE} && !document.getElementById('found').hidden")
    for _ in range(40):
        page.key("Tab")
        if page.run("return document.activeElement.closest('#found .rows') !== null"):
            break
    page.key("Enter")
    page.wait_for("!document.getElementById('block').hidden")
    whole = page.run("const [low, high] = app.views[0]._addresses.window; return high - low")
    page.key("]")
    page.wait_for(IDLE)
    assert page.run("const [low, high] = app.views[0]._addresses.window; return high - low") < whole
    page.key("Escape")
    assert page.run("return document.getElementById('block').hidden")
    page.key("c")
    assert focused(page) == "compare"
    page.key("Escape")
    assert focused(page) == "BODY"
    page.key("s")
    page.wait_for("document.getElementById('summary').open")
    inside = set()
    for _ in range(8):
        inside.add(focused(page))
        page.key("Tab")
    assert inside >= {"copy-text", "copy-picture", "save-picture", "close-summary", "summary-text"}
    page.key("Escape")
    page.wait_for("!document.getElementById('summary').open")


def test_a_summary_can_be_pasted_as_text_and_as_a_picture(page: Browser) -> None:
    page.key("s")
    page.wait_for("document.getElementById('summary').open")
    text = page.run("return document.getElementById('summary-text').value")
    peak = explain(read_recording(RECORDED)).peak
    assert "8.490 GiB reserved at most" in text and f"Entry {peak.entry:,}: 4.261 GiB in use" in text
    assert "- 3.711 GiB free, and could be released to the device" in text
    assert "| in use | blocks | by " in text
    painted = page.run(
        """const picture = document.getElementById("summary-picture");
        const {data} = picture.getContext("2d").getImageData(0, 0, picture.width, picture.height);
        const colors = new Set();
        for (let i = 0; i < data.length; i += 4) colors.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
        return [picture.width, picture.height, colors.size]"""
    )
    assert painted[0] > 500 and painted[1] > 500 and painted[2] > 20
    page.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.key("Enter")
    page.wait_for("document.getElementById('notice').textContent.includes('clipboard')")
    assert page.run("return navigator.clipboard.readText()") == text
    page.run("document.getElementById('copy-picture').click()")
    page.wait_for("document.getElementById('notice').textContent.includes('picture is in')")
    assert page.run("return navigator.clipboard.read().then((items) => items[0].types.includes('image/png'))")


def test_names_in_a_summary_stay_names(page: Browser) -> None:
    assert page.run("return code('a`b|c')") == "``a`b\\|c``"
    assert page.run("return code('`x\\ny')") == "`` `x y ``"


def test_it_opens_at_an_entry_that_is_named(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path / "view.html", str(RECORDED), "--at", "1234"))
    browser.wait_for(IDLE)
    assert browser.run("return app.views[0].at.entry") in (1233, 1234)


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

    allocator = allotment.Allocator("sim:1GiB")
    kept = [allocator.malloc(size << 20) for size in (3, 7, 30)]
    (tmp_path / "end.pickle").write_bytes(pickle.dumps(allocator.snapshot()))
    browser.open(written(tmp_path / "view.html", str(tmp_path / "end.pickle")))
    browser.wait_for(IDLE)
    assert len(kept) == browser.run("return app.views[0].at.blocks")
    assert "when the snapshot was taken" in text_of(browser, ".map .head")
