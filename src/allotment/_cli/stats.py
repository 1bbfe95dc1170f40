"""`allotment stats`: the figures of recorded runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from allotment._cli import ExitCode
from allotment._cli.options import ClusterOption, DeviceOption, JsonOption, SnapshotsArgument
from allotment._cli.progress import progress_line
from allotment._cli.ranks import print_errors
from allotment._cli.tables import print_table, ratio_shown
from allotment._texts import printable

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.ranks.figures import Figures


def command(
    snapshots: SnapshotsArgument,
    device: DeviceOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the figures of recorded runs, a line for each file, and which of them needs the most memory.

    Exits with 2 if one of them cannot be read.
    """
    from rich.console import Console

    from allotment.lab.ranks.files import snapshot_files
    from allotment.lab.ranks.together import deciding_rank, figures_of_all

    files = snapshot_files(snapshots)
    console = Console(highlight=False, quiet=as_json)
    with progress_line(console) as progress:
        done = figures_of_all(files, device, cluster, progress)
    rows = [each.value for each in done if each.value is not None]
    failed = print_errors(done)
    if as_json:
        print(json.dumps({"files": [asdict(row) for row in rows]}))
    elif rows:
        _print(console, rows, deciding_rank(rows))
    raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.DONE)


def _print(console: Console, rows: list[Figures], deciding: Figures) -> None:
    from rich.markup import escape

    from allotment._texts import exact_size

    folder = _common_folder(rows)
    shown = [
        (
            [_name(row, folder)],
            [
                f"{row.events:,}",
                exact_size(row.peak_requested_bytes),
                exact_size(row.peak_active_bytes),
                exact_size(row.peak_reserved_bytes),
                ratio_shown(row.peak_reserved_bytes, row.peak_active_bytes),
                str(row.ooms),
            ],
        )
        for row in rows
    ]
    headings = ("events", "requested", "active", "reserved", "reserved/active", "OOMs")
    print_table(console, ["file"], headings, shown, title=f"in {printable(folder)}" if folder else "")
    _print_kinds(console, rows, folder)
    if len(rows) > 1:
        most = exact_size(deciding.peak_reserved_bytes)
        console.print(escape(f"{printable(deciding.file)} decides: {most} reserved at most."), soft_wrap=True)


def _print_kinds(console: Console, rows: list[Figures], folder: str) -> None:
    """Print memory in use at its peak by kind of memory, for files whose kinds are known."""
    from allotment._texts import exact_size
    from allotment.lab.explain.kinds import KINDS, NO_GUESS

    known = [row for row in rows if any(each.sure >= NO_GUESS for each in row.kinds)]
    if not known:
        return
    held = [{each.kind: each.bytes for each in row.kinds} for row in known]
    kinds = [kind for kind in KINDS if any(kind in each for each in held)]
    shown = [
        ([_name(row, folder)], [exact_size(each[kind]) if kind in each else "-" for kind in kinds])
        for row, each in zip(known, held, strict=True)
    ]
    print_table(console, ["file"], kinds, shown, title="Requested when most is in use, by kind of memory")


def _name(row: Figures, folder: str) -> str:
    return printable(os.path.relpath(row.file, folder) if folder else row.file) + _device_shown(row)


def _common_folder(rows: list[Figures]) -> str:
    """Return the common folder of all files, which the rows omit."""
    folders = [os.path.dirname(row.file) for row in rows]
    return os.path.commonpath(folders) if len(set(map(os.path.isabs, folders))) == 1 else ""


def _device_shown(row: Figures) -> str:
    """Return the device, if the file has several."""
    if len(row.devices) > 1:
        return f" (device {row.device} of {', '.join(map(str, row.devices))})"
    return f" (device {row.device})" if row.device else ""
