"""`allotment bench`: measures the hot path, next to every installed peer."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli import ExitCode
from allotment._cli.options import JsonOption

if TYPE_CHECKING:
    from allotment._cli.tables import Row
    from allotment.lab.bench.run import Figure


def command(
    as_json: JsonOption = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each figure.")] = 7,
    pairs: Annotated[int, typer.Option(min=1000, help="Pairs of calls in one round.")] = 200_000,
    settings: Annotated[str, typer.Option(help="Settings of the allocators measured.")] = "compat:newest",
) -> None:
    """Measure the hot path in one run: median, minimum and maximum of every figure.

    Exits with 1 if a goal is missed.
    """
    from allotment.lab.bench.run import run

    if as_json:
        figures = run(rounds, pairs, settings)
        print(json.dumps(_report(figures)))
    else:
        figures = _print_table(rounds, pairs, settings)
    missed = any(figure.reached is False for figure in figures)
    raise typer.Exit(ExitCode.DIFFERENT if missed else ExitCode.DONE)


def _report(figures: list[Figure]) -> dict[str, object]:
    values: dict[str, object] = {figure.name: figure.value for figure in figures}
    return {
        **values,
        "spread": {figure.name: [figure.least, figure.most] for figure in figures},
        "missed": [figure.name for figure in figures if figure.reached is False],
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
    }


def _print_table(rounds: int, pairs: int, settings: str) -> list[Figure]:
    from rich.console import Console
    from rich.text import Text

    from allotment._cli.tables import print_table
    from allotment.lab.bench.run import run

    console = Console()
    with console.status("measuring"):
        figures = run(rounds, pairs, settings)
    rows: list[Row] = []
    for figure in figures:
        style = {True: "green", False: "bold red", None: ""}[figure.reached]
        relation = "<= " if figure.goal_is_most else ">= "
        cells: list[str | Text] = [
            Text(_show(figure.value, figure.unit), style=style),
            _show(figure.least, figure.unit),
            _show(figure.most, figure.unit),
            "" if figure.goal is None else relation + _show(figure.goal, figure.unit),
        ]
        rows.append(([figure.name, figure.meaning], cells))
    headings = ("median", "least", "most", "goal")
    print_table(console, ["figure", "what it is"], headings, rows, title="The hot path, in one run")
    return figures


def _show(value: float, unit: str) -> str:
    if unit == "1/s":
        return f"{value / 1e6:.1f} M/s"
    return f"{value:.2f} {unit}" if unit == "x" else f"{value:.0f} {unit}"
