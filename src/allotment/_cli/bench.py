"""`allotment bench`: the hot path in figures, next to every peer installed."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli import ExitCode
from allotment._cli.options import JsonOption

if TYPE_CHECKING:
    from allotment.lab.bench.run import Figure


def command(
    as_json: JsonOption = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each figure is taken.")] = 7,
    pairs: Annotated[int, typer.Option(min=1000, help="Pairs of calls in one taking.")] = 200_000,
    settings: Annotated[str, typer.Option(help="Settings of the allocators measured.")] = "compat:newest",
) -> None:
    """Measure the hot path in one run: every figure with its median, least and most.

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
    from rich.table import Table

    from allotment.lab.bench.run import run

    console = Console()
    with console.status("measuring"):
        figures = run(rounds, pairs, settings)
    table = Table(title="The hot path, in one run")
    for title in ("figure", "median", "least", "most", "goal", "what it is"):
        table.add_column(title, justify="left" if title in ("figure", "what it is") else "right")
    for figure in figures:
        style = {True: "green", False: "bold red", None: ""}[figure.reached]
        table.add_row(
            figure.name,
            f"[{style}]{_show(figure.value, figure.unit)}[/]" if style else _show(figure.value, figure.unit),
            _show(figure.least, figure.unit),
            _show(figure.most, figure.unit),
            "" if figure.goal is None else ("<= " if figure.goal_is_most else ">= ") + _show(figure.goal, figure.unit),
            figure.meaning,
        )
    console.print(table)
    return figures


def _show(value: float, unit: str) -> str:
    if unit == "1/s":
        return f"{value / 1e6:.1f} M/s"
    return f"{value:.2f} {unit}" if unit == "x" else f"{value:.0f} {unit}"
