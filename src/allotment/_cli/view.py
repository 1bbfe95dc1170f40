"""`allotment view`: a run as a page in the browser, as one file, or as a trace for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli.options import JsonOption, SnapshotArgument
from allotment._cli.progress import progress_line

if TYPE_CHECKING:
    from allotment._viewer.runs import Runs


def command(
    snapshot: SnapshotArgument,
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="Another snapshot, shown beside it.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(help="Show the first one also under these settings; may be repeated."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write one file that needs neither a server nor a network.", dir_okay=False)
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help='Write a trace for ui.perfetto.dev; compressed if named "*.gz".', dir_okay=False)
    ] = None,
    at: Annotated[
        str,
        typer.Option(help='Open at "explain", the moment that allotment explain describes, or at an entry.'),
    ] = "explain",
    device: Annotated[int | None, typer.Option(help="The device; by default the one with most memory.")] = None,
    port: Annotated[int, typer.Option(help="The port to serve on; by default any free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show a run in the browser: memory over time by owner, the map of addresses at any moment, the waste.

    Only programs on this machine that have the page's address can open it. With --html or --perfetto it writes a file
    and serves nothing. Exits with 2 if the snapshot cannot be read or a file cannot be written.
    """
    written = {name: path for name, path in (("html", html), ("perfetto", perfetto)) if path is not None}
    for path in written.values():
        _refuse_unwritable(path)  # before a long read
    runs = _made(snapshot, other, settings or [], device, as_json)
    runs.open_at(at)
    if html is not None:
        _write_page(runs, html)
    if perfetto is not None:
        from allotment._viewer.perfetto import write_perfetto

        write_perfetto(runs.shown, perfetto)
    report = {name: str(path) for name, path in written.items()}
    if not written:
        _serve(runs, port, browser, as_json)
    elif as_json:
        print(json.dumps({**report, "runs": _figures(runs)}))
    else:
        for path in written.values():
            print(f"Wrote {path} ({path.stat().st_size:,} bytes).")


def _made(snapshot: str, other: str | None, settings: list[str], device: int | None, quiet: bool) -> Runs:
    from rich.console import Console

    from allotment._settings import Settings
    from allotment._viewer.runs import Runs

    for text in settings:
        Settings.parse(text)  # report bad arguments before a long read
    with progress_line(Console(stderr=True, quiet=quiet)) as progress:
        runs = Runs(device, progress)
        for source in (snapshot, other):
            if source is not None:
                runs.read(source)
        for text in settings:
            runs.try_settings(text)
    return runs


def _write_page(runs: Runs, path: Path) -> None:
    from allotment._viewer.document import file_page
    from allotment._viewer.stills import stills

    parts = [stills(run) for run in runs.shown]
    path.write_bytes(file_page({"runs": [about for about, _ in parts]}, [packed for _, packed in parts]))


def _serve(runs: Runs, port: int, browser: bool, as_json: bool) -> None:
    import webbrowser

    from allotment._viewer.server import PageServer

    server = PageServer(runs, port)
    try:
        if as_json:
            print(json.dumps({"address": server.address, "runs": _figures(runs)}), flush=True)
        else:
            print(f"{server.address}\nOnly on this machine; Ctrl+C ends it.", flush=True)
        if browser:
            webbrowser.open(server.address)
        server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


def _figures(runs: Runs) -> list[dict[str, Any]]:
    return [
        {
            "name": run.about["name"],
            "settings": run.about["settings"],
            "device": run.about["device"],
            "peak_reserved_bytes": run.timeline.peak_reserved[1],
            "peak_live_bytes": run.timeline.peak_live[1],
        }
        for run in runs.shown
    ]


def _refuse_unwritable(path: Path) -> None:
    """Raise OSError for a file that could not be written at the end."""
    was_there = path.exists()
    with open(path, "ab"):
        pass
    if not was_there:
        path.unlink()
