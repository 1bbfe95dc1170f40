"""Collects what is reported through `sys.unraisablehook`, because no caller could catch it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def reported() -> Iterator[list[tuple[Any, str]]]:
    """Return (the object it was raised in, the exception's text) of each, in order."""
    before, seen = sys.unraisablehook, []

    def hook(report: Any) -> None:
        if type(report).__name__ != "UnraisableHookArgs":  # as strict as the interpreter's own hook
            raise TypeError(f"sys.unraisablehook argument type must be UnraisableHookArgs, not {type(report).__name__}")
        seen.append((report.object, f"{report.exc_type.__name__}: {report.exc_value}"))

    sys.unraisablehook = hook
    try:
        yield seen
    finally:
        sys.unraisablehook = before
