"""`allotment top`: live figures of this user's processes whose allocators announce themselves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli.options import JsonOption

if TYPE_CHECKING:
    from allotment._monitor.overview import Overview

ONCE_SECONDS = 0.5
"""Time between the two readings that a rate needs."""
COPY_BYTES = 1 << 20


def command(
    pid: Annotated[int | None, typer.Argument(metavar="[PID]", help="One process.", show_default=False)] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once and exit.")] = False,
    as_json: JsonOption = False,
    snapshot: Annotated[
        Path | None,
        typer.Option(help="Write a memory snapshot of the process there; explain and view open it.", dir_okay=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device of the snapshot; by default the one with most memory.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Time between two readings.")] = 1.0,
) -> None:
    """Show the processes of this user that Allotment serves: what they hold on which device, and how busy they are.

    A process appears if it was started with ALLOTMENT_MONITOR=1, or made an allocator with the settings key
    monitor:True. Keys: arrows and Enter open a process and show the lines of code that hold its memory, letters sort, q
    quits. Without a terminal, or with --json, the figures are printed once. Exits with 2 if the process does not
    announce itself.
    """
    import sys

    from allotment.errors import RequestError

    if snapshot is not None:
        if pid is None:
            raise RequestError("--snapshot needs the number of a process: allotment top PID --snapshot FILE")
        _write_snapshot(pid, snapshot, device, as_json)
    elif once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        _print_once(pid, as_json)
    else:
        from allotment._cli.top_live import run

        run(pid, seconds)


def _print_once(pid: int | None, as_json: bool) -> None:
    from rich.console import Console

    from allotment._cli.top_screen import Drawn, process_screen, processes_screen
    from allotment._monitor.asking import ask_lines

    found = _look_twice(pid)
    if as_json:
        print(json.dumps(found.as_json()))
        return
    console = Console()
    if pid is None:
        console.print(Drawn(processes_screen(found, console.width)))
    else:
        console.print(Drawn(process_screen(found.processes[0], ask_lines(pid), console.width)))


def _look_twice(pid: int | None) -> Overview:
    """Return the figures of all processes or of one, with rates.

    Raises RequestError if that one does not announce itself.
    """
    from allotment._monitor.asking import ask_all, unknown
    from allotment._monitor.overview import overview
    from allotment.errors import RequestError

    before = ask_all()
    if before:
        time.sleep(ONCE_SECONDS)
    found = overview(ask_all() if before else [], before)
    if pid is not None:
        found.processes = [each for each in found.processes if each.pid == pid]
        if not found.processes:
            raise RequestError(unknown(pid))
    return found


def _write_snapshot(pid: int, path: Path, device: str | None, as_json: bool) -> None:
    from allotment._allocators.files import replaced
    from allotment._monitor.asking import ask_snapshot

    descriptor, name, has_history = ask_snapshot(pid, device)
    with os.fdopen(descriptor, "rb") as source, replaced(path) as target:
        while part := source.read(COPY_BYTES):
            target.write(part)
    size = path.stat().st_size
    if as_json:
        report = {"pid": pid, "device": name, "snapshot": str(path), "bytes": size, "history": has_history}
        print(json.dumps(report))
        return
    print(f"Wrote {path} ({size:,} bytes): {name} of process {pid}.")
    if not has_history:
        print("It has no history, because the program records none: allocator.record_history().")
