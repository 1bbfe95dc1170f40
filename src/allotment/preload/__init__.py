"""Counts, limits and optionally serves all CUDA memory of a process, whichever library requests it.

    python -m allotment.preload script.py                               # counted, by library
    python -m allotment.preload --limit 40GiB script.py                 # and never more than that, context included
    python -m allotment.preload --depth serve script.py                 # and from the process's allocator

A small library is loaded before all others, between the process and the driver. `environment()` is for your own
launchers; `Allocator.process()` reports which library holds what. Linux only.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any, Literal

from allotment._process.library import TENANTS, Preloaded, preloaded
from allotment._settings.sizes import parse_size
from allotment.errors import RequestError, UnsupportedError

__all__ = ["depth", "environment", "library_path", "stacks"]

Depth = Literal["count", "serve"]

_LIBRARY = Path(__file__).parent / "liballotment_preload.so"
_DEPTH, _LIMIT, _MIN_SIZE, _STACKS = (
    "ALLOTMENT_PRELOAD", "ALLOTMENT_PRELOAD_LIMIT", "ALLOTMENT_PRELOAD_MIN_SIZE", "ALLOTMENT_PRELOAD_STACKS",
)  # fmt: skip


def library_path() -> str:
    """Return the file to preload. Raises UnsupportedError if it was not built, or has a path LD_PRELOAD cannot name."""
    if not _LIBRARY.exists():
        raise UnsupportedError("the library to preload was not built; that needs Linux and gcc", operation="preload")
    if any(character in str(_LIBRARY) for character in " :"):
        raise UnsupportedError(
            f"LD_PRELOAD cannot name a path with a space or a colon: {str(_LIBRARY)!r}", operation="preload"
        )
    return str(_LIBRARY)


def environment(
    depth: Depth = "count",
    limit: int | str | None = None,
    min_size: int | str | None = None,
    stacks: bool = False,
) -> dict[str, str]:
    """Return the environment variables that start a program with the library; add them to the program's environment.

    At depth "serve" the Python program must import `allotment.preload`, otherwise everything passes through. A library
    that LD_PRELOAD names already is loaded after ours. Raises RequestError for an unknown depth, SettingsError for a
    bad size, UnsupportedError if the library was not built or LD_PRELOAD cannot name its path.
    """
    if depth not in ("count", "serve"):
        raise RequestError(f"depth must be 'count' or 'serve', not {depth!r}")
    ours = library_path()
    before = [name for name in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if name != ours]
    found = {"LD_PRELOAD": ":".join([ours, *before]), _DEPTH: depth, _STACKS: "1" if stacks else "0"}
    found[_LIMIT] = str(parse_size(limit)) if limit is not None else ""
    found[_MIN_SIZE] = str(parse_size(min_size)) if min_size is not None else ""
    return found


def depth() -> str | None:
    """The depth at which this process was started: "count", "serve", or None without the library."""
    library = preloaded()
    return library.depth if library is not None else None


def stacks() -> list[dict[str, Any]]:
    """Native stacks that hold memory, the largest first: "bytes", "calls", "frames" (addresses). Needs `--stacks`."""
    library = preloaded()
    found = [] if library is None else [stack for stack in library.stacks() if stack.bytes]
    return [
        {"bytes": stack.bytes, "calls": stack.calls, "frames": list(stack.frames)}
        for stack in sorted(found, key=lambda stack: -stack.bytes)
    ]


def _attach() -> None:
    library = preloaded()
    if library is None or library.depth is None:
        return
    if library.depth == "serve":
        from allotment.preload import _serving  # imported late: it loads the allocators

        library.set_up_with(_serving.set_up_on(library))
    else:
        library.set_up_with(lambda device: _lend_present(library, device))
    atexit.register(library.set_up_with, None)  # the last moment at which Python code can run


def _lend_present(library: Preloaded, device: int) -> bool:
    """Let the library empty the cache of the device's shared allocator; False if the program has none so far."""
    shared = sys.modules.get("allotment._allocators.current")
    allocator = shared.present_caching(f"cuda:{device}") if shared is not None else None
    if allocator is None:
        return False
    from allotment._allocators.caching.entry_points import entry_points_address  # late: it loads the allocators

    library.serve(device, [entry_points_address(allocator)] * len(TENANTS), 0)
    return True


_attach()
