"""`allotment stats`: the figures of recorded runs alone."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from allotment._cli.options import JsonOption


def command(
    snapshots: Annotated[
        list[str], typer.Argument(metavar="SNAPSHOT...", help="Files from torch.cuda.memory._dump_snapshot.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Print the figures of recorded runs, a line for each file.

    Exits with 2 if one of them cannot be read.
    """
    from allotment.lab.replay.run import read_recording

    rows: list[dict[str, Any]] = []
    for snapshot in snapshots:
        recording = read_recording(snapshot)
        result = recording.replay()
        rows.append(
            {
                "file": snapshot,
                "device": recording.device,
                "events": result.events,
                "compat": result.compat,
                "peak_requested_bytes": result.peak_requested_bytes,
                "peak_active_bytes": result.peak_active_bytes,
                "peak_reserved_bytes": result.peak_reserved_bytes,
                "waste_ratio": result.waste_ratio,
                "ooms": result.ooms,
            }
        )
    if as_json:
        print(json.dumps({"files": rows}))
    else:
        _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from allotment._viewer.terminal import exact_size

    table = Table()
    titles = ("file", "device", "events", "PyTorch", "requested", "active", "reserved", "over active", "out of memory")
    for title in titles:
        table.add_column(title, justify="left" if title == "file" else "right")
    for row in rows:
        table.add_row(
            escape(row["file"]),
            str(row["device"]),
            f"{row['events']:,}",
            row["compat"],
            exact_size(row["peak_requested_bytes"]),
            exact_size(row["peak_active_bytes"]),
            exact_size(row["peak_reserved_bytes"]),
            "-" if row["waste_ratio"] is None else f"{row['waste_ratio']:.3f}",
            str(row["ooms"]),
        )
    Console(highlight=False).print(table)
