"""`allotment calibrate`: what the calls of your own device's driver cost."""

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
        Path | None, typer.Option(help="Where to keep it; by default where replay and tune look for it.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each call is made.")] = 30,
    as_json: JsonOption = False,
) -> None:
    """Measure what the calls of a device's driver cost, for replay and tune to reckon with.

    Exits with 2 if the device cannot be opened or the file not be written.
    """
    from rich.console import Console

    from allotment._allocators.files import replaced
    from allotment.lab.calibrate import measure_costs
    from allotment.lab.replay.driver_costs import user_costs_file, write_costs

    place = out or user_costs_file()
    place.parent.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, quiet=as_json)
    # Opened first: a place that cannot be written is refused before the measuring, and if that fails nothing is left.
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
    used = "replay and tune use it from now on" if out is None else f"ALLOTMENT_COSTS={place} puts it in force"
    console.print(f"Kept in {place}; {used}.", soft_wrap=True)
