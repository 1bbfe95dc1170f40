"""`allotment diff`: two recorded runs side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli import ExitCode
from allotment._cli.explain import explained
from allotment._cli.options import JsonOption
from allotment._cli.progress import progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.explain.difference import Comparison

MOST_LINES = 20


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="A snapshot.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.", show_default=False)],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help='Exit with 1 if this holds of B over A, such as "peak_reserved > 1.05"; may be repeated.'),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what grew from one run to the other, by line of code, at the peak of each.

    Exits with 1 if a condition of --fail-if holds, with 2 if a snapshot cannot be read.
    """
    from rich.console import Console

    from allotment.lab.explain.difference import Condition, compare

    conditions = [Condition.parse(text) for text in fail_if or ()]
    console = Console(highlight=False, quiet=as_json)
    with progress_line(console) as progress:
        found = compare(explained(a, None, None, progress), explained(b, None, None, progress))
    if as_json:
        print(json.dumps({"lines": [asdict(line) for line in found.lines], "ratios": found.ratios}))
    else:
        _print(console, found)
    failed = [condition for condition in conditions if condition.holds(found)]
    for condition in failed:
        console.print(f"[bold red]{condition.ratio} {condition.relation} {condition.bound:g}[/]")
    raise typer.Exit(ExitCode.DIFFERENT if failed else ExitCode.DONE)


def _print(console: Console, found: Comparison) -> None:
    from rich.markup import escape
    from rich.table import Table

    from allotment._viewer.terminal import exact_size

    table = Table(title="In use at the peak, by line")
    for title in ("line", "A", "B", "B - A"):
        table.add_column(title, justify="left" if title == "line" else "right")
    for line in found.lines[:MOST_LINES]:
        change = line.b_bytes - line.a_bytes
        sign = "-" if change < 0 else "+"
        table.add_row(
            escape(line.where), exact_size(line.a_bytes), exact_size(line.b_bytes), f"{sign}{exact_size(abs(change))}"
        )
    console.print(table)
    for name, ratio in found.ratios.items():
        console.print(f"{name}: {'-' if ratio is None else f'{ratio:.3f}'} of A")
