"""How much of a device's memory each library holds in this process, and what of the driver's figure is unexplained."""

from __future__ import annotations

import os
from typing import Any

from allotment._process.library import TENANTS, Overview, Preloaded, preloaded
from allotment.errors import DeviceError, UnsupportedError

OURS = "allotment"
COMMAND = "python -m allotment.preload script.py"


def process_ledger(allocator: Any) -> dict[str, Any]:
    """Return the result of `Allocator.process`.

    `allocator` has `device`, with `index` and `processes()`, and `tenants()`.
    """
    library = preloaded()
    if library is None or library.depth is None:
        raise UnsupportedError(
            f"a preloaded library counts what the whole process holds: start the program with {COMMAND}",
            operation="process",
        )
    index = allocator.device.index if allocator.device.family == "cuda" else -1
    overview = library.overview(index)
    if overview is None:
        raise UnsupportedError(
            f"{allocator.device.name} is not a CUDA device with a context; only such devices are counted",
            operation="process",
        )
    libraries = _by_library(library, index, allocator, overview)
    total = dict(allocator.device.processes()).get(os.getpid(), 0) or max(0, overview.used - overview.others)
    return _balanced(libraries, overview.context, overview.modules, total)


def process_parts(allocator: Any) -> dict[str, int] | None:
    """Return the ledger as bytes by name: each library, and what else is known. None if nothing counts them."""
    try:
        found = process_ledger(allocator)
    except (UnsupportedError, DeviceError):
        return None
    libraries = {f"library {name}": size for name, size in found["libraries"].items()}
    return libraries | {name: found[name] for name in ("context", "modules", "unexplained")}


def _by_library(library: Preloaded, index: int, allocator: Any, overview: Overview) -> dict[str, int]:
    """Return bytes by library. Memory of the allocator counts for the libraries that requested it."""
    found: dict[str, int] = {}

    def add(name: str, held: int) -> None:
        if held > 0:
            found[name] = found.get(name, 0) + held

    sums = library.libraries(index)
    for name, own in sums.items():
        if name != OURS:
            add(name, own.driver + own.served)
    reserved = sums[OURS].driver if OURS in sums else 0
    lent = sum(own.served for own in sums.values())
    for name, figures in allocator.tenants().items():
        if name and name not in TENANTS:
            add(name, figures["allocated_bytes"])
            lent += figures["allocated_bytes"]
    add(OURS, reserved - lent)
    add("driver pool", overview.pool_kept)
    add("graphs", overview.graphs)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _balanced(libraries: dict[str, int], context: int, modules: int, total: int) -> dict[str, Any]:
    """Return the parts, which add up to `total`.

    Figures that changed while they were read reduce the measured differences.
    """
    beyond = max(0, sum(libraries.values()) + context + modules - total)
    less = min(beyond, modules)
    modules, beyond = modules - less, beyond - less
    context -= min(beyond, context)
    unexplained = max(0, total - sum(libraries.values()) - context - modules)
    return {
        "libraries": libraries, "context": context, "modules": modules, "unexplained": unexplained, "total": total,
    }  # fmt: skip
