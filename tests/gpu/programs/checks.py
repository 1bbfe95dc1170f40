"""Runs a program's `@check` functions one after the other, and prints their results as JSON.

PyTorch's allocator can be replaced once in a process, so each allocator needs a separate process. A process takes
seconds to start, so it runs many checks.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import traceback
from collections.abc import Callable

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    _checks.append(function)
    return function


def run_checks() -> None:
    """Print {name: error or ""} as the last line.

    Each check has two minutes; then the process prints a traceback and ends.
    """
    results = {}
    for function in _checks:
        print(f"# {function.__name__}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(120, exit=True)
        try:
            function()
            results[function.__name__] = ""
        except Exception:
            results[function.__name__] = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(results), flush=True)
