"""What calls of a driver cost: data, measured on one machine, by which a replay prices the calls that it counts.

`driver_costs.json` is the one place of these numbers; `benchmarks/virtual_memory.py --costs` measures them again on
the machine that it runs on.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

CALLS = ("reserve", "create", "map", "access", "unmap", "release", "malloc", "free", "record", "wait")
"""The kinds of calls, in the order in which the replay's device counts them."""

Points = list[tuple[float, float]]


@cache
def driver_costs() -> dict[str, Points]:
    """By kind of call: points (MiB, microseconds), with straight lines between them and behind the last two."""
    stored = json.loads(files("allotment.lab.replay").joinpath("driver_costs.json").read_text())
    return {kind: [(size, cost) for size, cost in stored["costs"][kind]] for kind in CALLS}
