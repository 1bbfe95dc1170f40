"""One HTML document with everything in it: styles, scripts, and in a self-contained file its data too.

Names, frames and settings come from untrusted files. They reach the page only as data and become text there; and the
policy allows only our scripts to run, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["file_page", "page_of", "served_page"]

STYLES = ("uplot/uPlot.min.css", "style.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "words.js",
    "source.js",
    "chart.js",
    "map.js",
    "run.js",
    "panel.js",
    "summary.js",
    "app.js",
)


def served_page() -> tuple[bytes, str]:
    """Return the page that queries its server, and its policy."""
    return _page("", "'self'")


def file_page(about: dict[str, Any], packed: list[bytes]) -> bytes:
    """Return the page with its data, which needs no server and no network."""
    data = {"about": about, "packed": [base64.b64encode(zlib.compress(part, 9)).decode() for part in packed]}
    return page_of("page.html", STYLES, SCRIPTS, data)


def page_of(name: str, styles: Sequence[str], scripts: Sequence[str], data: dict[str, Any]) -> bytes:
    """Return a page with styles, scripts and data, all by their file names; the data is JSON."""
    # In a JSON script, "<" is the only character that could end it.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    embedded = f'<script type="application/json" id="data">{text}</script>'
    page, policy = _page(embedded, "'none'", name, styles, scripts)
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace(b"<!-- policy -->", meta.encode(), 1)


def _page(
    data: str,
    connect: str,
    name: str = "page.html",
    style_names: Sequence[str] = STYLES,
    script_names: Sequence[str] = SCRIPTS,
) -> tuple[bytes, str]:
    styles, scripts = [_text(each) for each in style_names], [_text(each) for each in script_names]
    page = _text(name)
    page = page.replace("<!-- styles -->", "".join(f"<style>{style}</style>" for style in styles))
    page = page.replace("<!-- scripts -->", data + "".join(f"<script>{script}</script>" for script in scripts))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:;"
        f" connect-src {connect}; script-src {_hashes(scripts)}; style-src {_hashes(styles)}"
    )
    return page.encode(), policy


@cache
def _text(name: str) -> str:
    return files("allotment._viewer").joinpath("page", *name.split("/")).read_text("utf-8")


def _hashes(texts: list[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)
