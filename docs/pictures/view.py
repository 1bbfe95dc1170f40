"""Pictures of `allotment view` for the documentation, from a real browser: `python docs/pictures/view.py SNAPSHOT`.

Needs `chromium` and `chromedriver`. The pictures in the documentation are of a GPT-2 training run with stacks.
"""

import gzip
import pickle
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from allotment._viewer.runs import Runs  # noqa: E402
from allotment._viewer.server import PageServer  # noqa: E402
from helpers.browser import Browser  # noqa: E402

IDLE = "app.isIdle"


def moved_home(snapshot: Path, copy: Path) -> None:
    """The same snapshot, without the folders in which it was recorded. It unpickles: for one's own alone."""
    found = pickle.loads(gzip.decompress(snapshot.read_bytes()))
    entries = [entry for trace in found["device_traces"] for entry in trace]
    blocks = [block for segment in found["segments"] for block in [segment, *segment["blocks"]]]
    for frame in {id(frame): frame for each in entries + blocks for frame in each.get("frames", ())}.values():
        folder, _, name = frame["filename"].rpartition("/")
        library = folder.partition("site-packages/")[2]
        if folder:
            frame["filename"] = f"/home/me/venv/site-packages/{library}/{name}" if library else f"/home/me/train/{name}"
    copy.write_bytes(pickle.dumps(found))


def main(snapshot: str) -> None:
    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as browser:
        copy = Path(folder) / Path(snapshot).name.removesuffix(".gz")
        moved_home(Path(snapshot), copy)
        runs = Runs()
        runs.read(str(copy))
        server = PageServer(runs)
        browser.open(server.address)
        browser.wait_for(f"typeof app !== 'undefined' && {IDLE}")
        browser.run("app.setBy('frame'); app.setWindow(0.38, 0.48)")
        browser.wait_for(IDLE)
        for _ in range(40):
            browser.key("n")
        browser.wait_for(f"{IDLE} && !document.getElementById('block').hidden")
        browser.screenshot(HERE / "view-run.png")
        browser.run("app.pick(app.views[0], -1); app.setBy('line'); app.compare('try expandable_segments:True')")
        browser.wait_for(f"app.views.length === 2 && {IDLE}")
        browser.run("app.toggleTheme()")
        browser.wait_for(IDLE)
        browser.screenshot(HERE / "view-two-settings.png")
        server.close()


if __name__ == "__main__":
    main(sys.argv[1])
