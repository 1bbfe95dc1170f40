"""A real headless browser, driven over the WebDriver protocol with only the standard library."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]
CODES = {"Tab": 9, "Enter": 13, "Escape": 27}
PATIENCE = 60.0
OPENER = build_opener(ProxyHandler({}))


def missing() -> str | None:
    """Return which program is missing here to drive a browser; None if none is."""
    return next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), None)


class Browser:
    """One window."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 900, *, dark: bool = True) -> None:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._driver.stdout is not None
        port = next(
            found[1] for line in self._driver.stdout if (found := re.search(r"successfully on port (\d+)", line))
        )
        self._base = f"http://127.0.0.1:{port}"
        flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        options = {"binary": shutil.which("chromium"), "args": flags}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL"}}
        session = self._ask("/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self._base += f"/session/{session}"
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.devtools("Emulation.setEmulatedMedia", features=scheme)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("", None, "DELETE")
        finally:
            self._driver.terminate()
            self._driver.wait()

    def _ask(self, path: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        with OPENER.open(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def open(self, address: str) -> None:
        self._ask("/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a script, which may be a promise."""
        return self._ask("/execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, expression: str) -> Any:
        """Wait until an expression of the page is true."""
        give_up = time.monotonic() + PATIENCE
        while not (found := self.run(f"return {expression}")):
            assert time.monotonic() < give_up, f"never true in the page: {expression}"
        return found

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def click(self, x: float, y: float) -> None:
        self.drag(x, y, x, y)

    def drag(self, x: float, y: float, to_x: float, to_y: float, steps: int = 1) -> None:
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1, buttons=1)
        for step in range(1, steps + 1):
            part = step / steps
            self.mouse("mouseMoved", x + (to_x - x) * part, y + (to_y - y) * part, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)

    def wheel(self, x: float, y: float, delta: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, name: str, *, text: str = "") -> None:
        text = text or (name if len(name) == 1 else "\r" if name == "Enter" else "")
        code: dict[str, Any] = {"text": text} if text else {}
        if name in CODES:  # without it, the browser does nothing by itself for such a key
            code["windowsVirtualKeyCode"] = CODES[name]
        self.devtools("Input.dispatchKeyEvent", type="keyDown", key=name, **code)
        self.devtools("Input.dispatchKeyEvent", type="keyUp", key=name)

    def type(self, text: str) -> None:
        self.devtools("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("/screenshot", None, "GET")))

    def requests(self) -> list[str]:
        """Return the addresses of all requests since the last call."""
        messages = [json.loads(line["message"])["message"] for line in self._ask("/se/log", {"type": "performance"})]
        return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]

    def page_mib(self) -> int:
        """Return the memory of the process that shows the page."""
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                status = dict(
                    line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
                )
                parents[int(folder.name)] = (int(status["PPid"]), int(status.get("VmRSS", "0").split()[0]) // 1024)
        ours, found = {self._driver.pid}, 0
        for process in sorted(parents):  # children have higher numbers than their parents
            if parents[process][0] in ours:
                ours.add(process)
                with suppress(OSError):
                    if b"--type=renderer" in Path(f"/proc/{process}/cmdline").read_bytes():
                        found = max(found, parents[process][1])
        return found
