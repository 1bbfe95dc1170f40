"""A flame graph as one HTML document that needs no server and no network."""

from __future__ import annotations

from allotment._viewer.document import page_of
from allotment.lab.explain.flame import Flame

__all__ = ["flame_page"]


def flame_page(flame: Flame, about: str) -> bytes:
    """Return the page of a tree of frames; `about` says which run it shows."""
    return page_of("flame.html", ("flame.css",), ("flame.js",), {"about": about, **flame.as_json()})
