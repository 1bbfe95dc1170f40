"""The costs of driver calls, measured on one machine, with which a replay prices the calls that it counts.

The packaged `driver_costs.json` was measured on the GPU that it names. `allotment calibrate` measures the user's GPU
and writes a file of the same form, which then replaces it: the one that the environment variable ALLOTMENT_COSTS names,
otherwise `costs.json` in the user's configuration folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from allotment.errors import FormatError

__all__ = ["CALLS", "COSTS_VARIABLE", "Points", "costs_device", "driver_costs", "user_costs_file", "write_costs"]

CALLS = ("reserve", "create", "map", "access", "unmap", "release", "malloc", "free", "record", "wait")
"""The kinds of calls, in the order in which the replay's device counts them."""
COSTS_VARIABLE = "ALLOTMENT_COSTS"
MOST_POINTS = 4
UNIT = "microseconds; a list is of points (MiB, microseconds) with straight lines between and behind them"

Points = list[tuple[float, float]]


def user_costs_file() -> Path:
    """The default file of `allotment calibrate`."""
    named = os.environ.get(COSTS_VARIABLE)
    if named:
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "allotment" / "costs.json"


def driver_costs() -> dict[str, Points]:
    """Return for each kind of call the points (MiB, microseconds), linear between them and after the last two.

    Raises FormatError if the user's file is not a file of costs.
    """
    return _stored(_chosen())[1]


def costs_device() -> str:
    """Return the device that the costs were measured on."""
    return _stored(_chosen())[0]


def write_costs(file: BinaryIO, device: str, costs: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Write the costs of a device to an open file. Raises OSError."""
    lines = ",\n".join(f'    "{kind}": {json.dumps(points)}' for kind, points in costs.items())
    text = f'{{\n  "device": {json.dumps(device)},\n  "unit": {json.dumps(UNIT)},\n  "costs": {{\n{lines}\n  }}\n}}\n'
    file.write(text.encode())
    _stored.cache_clear()


def _chosen() -> Path | None:
    """Return the user's file; None for the packaged one."""
    path = user_costs_file()
    return path if COSTS_VARIABLE in os.environ or path.is_file() else None


@cache
def _stored(path: Path | None) -> tuple[str, dict[str, Points]]:
    if path is None:
        text = files("allotment.lab.replay").joinpath("driver_costs.json").read_text()
    else:
        text = path.read_text()
    try:
        stored = json.loads(text)
        costs = {
            kind: [(float(size), float(cost)) for size, cost in stored["costs"][kind]][:MOST_POINTS] for kind in CALLS
        }
        if not all(costs.values()):
            raise ValueError("a kind of call without points")
        return str(stored["device"]), costs
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: not a file of driver costs ({error}); allotment calibrate writes one") from None
