"""`allotment calibrate`: measures the driver calls of your device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from allotment._cli.options import JsonOption
from allotment._cli.progress import progress_line


def command(
    device: Annotated[str, typer.Argument(help='What to measure, such as "cuda:0" or "host".')] = "cuda:0",
    out: Annotated[
        Path | None, typer.Option(help="The file to write; by default the one that replay and tune read.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each call is made.")] = 30,
    as_json: JsonOption = False,
) -> None:
    """Measure the cost of a device's driver calls, for use by replay and tune.

    Exits with 2 if the device cannot be opened or the file cannot be written.
    """
    from rich.console import Console

    from allotment._allocators.files import replaced
    from allotment.lab.calibrate import measure_costs
    from allotment.lab.replay.driver_costs import user_costs_file, write_costs

    place = out or user_costs_file()
    place.parent.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, quiet=as_json)
    # Opened first: an unwritable path is refused before measuring, and a failed measurement leaves no file.
    with replaced(place) as file:
        with progress_line(console) as progress:
            name, costs = measure_costs(device, rounds, progress)
        write_costs(file, name, costs)
    if as_json:
        print(json.dumps({"device": name, "file": str(place), "costs": costs}))
        return
    console.print(f"Calls of {name}, medians of {rounds}:")
    for kind, points in costs.items():
        shown = "  ".join(f"{cost:g} us" if size == 0 else f"{size:g} MiB {cost:g} us" for size, cost in points)
        console.print(f"  {kind:8} {shown}", soft_wrap=True)
    used = "replay and tune use it from now on" if out is None else f"set ALLOTMENT_COSTS={place} to use it"
    console.print(f"Kept in {place}; {used}.", soft_wrap=True)
