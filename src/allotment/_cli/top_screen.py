"""What `allotment top` shows for a given width: the list of processes, and one process."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from allotment._cli.progress import is_ascii
from allotment._viewer.terminal import human_size

if TYPE_CHECKING:
    from allotment._monitor.figures import Line
    from allotment._monitor.overview import DeviceShare, Overview, Process, WholeDevice

BAR = 24
MOST_NAMED = 8
"""Number of a process's tenants and tags that are named."""
NARROW, MEDIUM, WIDE = 60, 78, 112
"""Terminal widths from which on more is shown."""


_ASCII = str.maketrans("█▒░▾·…↑↓⏎←", "#+.v|.^v><")


class Drawn:
    """A drawing, in ASCII for a terminal that shows only that."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = _ASCII if is_ascii(console) else {}
        for segment in console.render(self._shown, options):
            yield Segment(segment.text.translate(table), segment.style, segment.control)


@dataclass(frozen=True)
class Column:
    """A column of figures, the key that sorts by it, and the least width of a terminal that shows it."""

    title: str
    key: str
    width: int
    show: Callable[[DeviceShare], str]
    value: Callable[[DeviceShare], Any]


def _rate(share: DeviceShare) -> str:
    return "-" if share.requests_per_s is None else f"{share.requests_per_s:,.0f}"


COLUMNS = [
    Column("reserved", "r", 0, lambda d: human_size(d.reserved_bytes), lambda d: d.reserved_bytes),
    Column("live", "l", 0, lambda d: human_size(d.allocated_bytes), lambda d: d.allocated_bytes),
    Column("waste", "w", MEDIUM, lambda d: human_size(d.waste_bytes), lambda d: d.waste_bytes),
    Column("requests/s", "n", NARROW, _rate, lambda d: d.requests_per_s or 0),
    Column(
        "asleep",
        "a",
        WIDE,
        lambda d: human_size(sum(d.paused.values())) if d.paused else "",
        lambda d: sum(d.paused.values()),
    ),
    Column("ooms", "o", WIDE, lambda d: str(d.ooms) if d.ooms else "", lambda d: d.ooms),
    Column(
        "limit",
        "m",
        WIDE,
        lambda d: "" if d.limit_bytes is None else human_size(d.limit_bytes),
        lambda d: d.limit_bytes or 0,
    ),
]
SORTS = {column.key: column.title for column in COLUMNS} | {"p": "process"}
INTERPRETER = re.compile(r"python[\d.]*t?")


def sorts_shown(width: int) -> str:
    """Return the sort keys of the columns that fit a terminal of this width."""
    hidden = {column.key for column in COLUMNS if width < column.width}
    return " ".join(f"{key} {title}" for key, title in SORTS.items() if key not in hidden)


def in_order(processes: Sequence[Process], sort: str) -> list[Process]:
    """Return the processes, largest first, by the column whose key is `sort`; by number for "p"."""
    column = next((each for each in COLUMNS if each.key == sort), None)
    if column is None:
        return sorted(processes, key=lambda each: each.pid)
    return sorted(processes, key=lambda each: (-sum(map(column.value, each.devices)), each.pid))


def processes_screen(
    found: Overview, width: int, *, sort: str = "r", chosen: int | None = None, rows: int | None = None
) -> RenderableType:
    """Return the devices, and a line for each process and device; `rows` is the number of lines that fit."""
    if not found.processes:
        return Text(
            "No process of this user announces itself.\n\nStart one with ALLOTMENT_MONITOR=1, or give its allocator the"
            " settings key monitor:True.",
            style="dim",
        )
    return Group(*(_device_line(each, width) for each in found.devices), _table(found, width, sort, chosen, rows))


def _device_line(whole: WholeDevice, width: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{whole.device:8} ", style="bold")
    if width >= WIDE:
        parts = [
            (whole.reserved_bytes, "█", "green"),
            (whole.others_bytes, "▒", "yellow"),
            (whole.free_bytes, "░", "dim"),
        ]
        total = sum(size for size, _, _ in parts) or 1
        drawn = 0
        reached = 0
        for size, mark, style in parts:
            reached += size
            until = round(BAR * reached / total)
            line.append(mark * (until - drawn), style=style)
            drawn = until
        line.append("  ")
    line.append(f"{human_size(whole.reserved_bytes)} here", style="green")
    line.append(f" · {human_size(whole.others_bytes)} others", style="yellow")
    line.append(f" · {human_size(whole.free_bytes)} free of {human_size(whole.total_bytes)}")
    return line


def _table(found: Overview, width: int, sort: str, chosen: int | None, rows: int | None) -> Table:
    columns = [each for each in COLUMNS if width >= each.width]
    table = Table(box=None, padding=(0, 1), expand=True, header_style="bold")
    table.add_column("process", justify="right", no_wrap=True)
    table.add_column("device", no_wrap=True)
    for column in columns:
        title = Text(f"{column.title}▾" if column.key == sort else column.title)
        table.add_column(title, justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column("tenants", no_wrap=True, overflow="ellipsis", max_width=20)
    table.add_column("command", no_wrap=True, overflow="ellipsis", ratio=1)
    lines = [
        (process, share)
        for process in in_order(found.processes, sort)
        for share in (process.devices or [None])  # type: ignore[list-item]
    ]
    for process, share in _around(lines, chosen, rows):
        style = "reverse" if process.pid == chosen else ""
        cells = [""] * len(columns) if share is None else [column.show(share) for column in columns]
        command = Text(_command(process), style="" if process.answers else "dim")
        tenants = [] if width < WIDE else [Text(_names(share.tenants) if share is not None else "")]
        device = Text(share.device if share is not None else "")
        table.add_row(str(process.pid), device, *cells, *tenants, command, style=style)
    return table


def _command(process: Process) -> str:
    """Return what runs, without folders, and without the interpreter if a script follows."""
    if not process.answers:
        return "does not answer"
    program, *arguments = process.command.split(" ")
    program = program.rpartition("/")[2]
    if arguments and INTERPRETER.fullmatch(program) and not arguments[0].startswith("-"):
        program, *arguments = arguments[0].rpartition("/")[2], *arguments[1:]
    return " ".join([program, *arguments])


def _around(lines: list[Any], chosen: int | None, rows: int | None) -> list[Any]:
    """Return as many lines as fit, including the chosen process."""
    if rows is None or len(lines) <= rows:
        return lines
    place = next((at for at, (process, _) in enumerate(lines) if process.pid == chosen), 0)
    start = min(max(place - rows // 2, 0), len(lines) - rows)
    return lines[start : start + max(rows, 1)]


def _names(tenants: dict[str, int]) -> str:
    return ", ".join(name for name, _ in sorted(tenants.items(), key=lambda each: -each[1]) if name)


def process_screen(
    process: Process, lines: Sequence[Line] | None, width: int, *, rows: int | None = None
) -> RenderableType:
    """Return one process: its devices, tags and tenants, and the lines of code that hold its memory."""
    heading = Text(f"process {process.pid}  ", style="bold", no_wrap=True, overflow="ellipsis")
    heading.append(_command(process), style="dim")
    parts: list[Text] = [heading]
    for share in process.devices:
        parts += [Text(), Text(share.device, style="bold"), *_figures(share, width)]
        for title, named in (("tenant", share.tenants), ("tag", share.tags)):
            if any(named):
                largest = sorted(named.items(), key=lambda each: -each[1])
                parts += [_named(title, name, size, share) for name, size in largest[:MOST_NAMED]]
                if rest := largest[MOST_NAMED:]:
                    size = human_size(sum(size for _, size in rest))
                    parts.append(Text(f"  {size:>10}  {len(rest):,} other {title}{'s' if len(rest) > 1 else ''}"))
        if share.process:
            parts.append(Text("  the whole process:", style="dim"))
            parts += [_named("", name, size, share) for name, size in share.process.items() if size]
    parts += [Text(), *_lines(lines)]
    return Group(*(parts if rows is None else parts[:rows]))


def _figures(share: DeviceShare, width: int) -> list[Text]:
    """Return all figures, in as many lines as they need."""
    shown = [f"{column.title} {text}" for column in COLUMNS if (text := column.show(share))]
    lines = [""]
    for figure in [*shown, f"retries {share.retries:,}"]:
        if not lines[-1]:
            lines[-1] = figure
        elif 2 + len(lines[-1]) + 3 + len(figure) <= width:
            lines[-1] += f" · {figure}"
        else:
            lines.append(figure)
    return [Text(f"  {line}", no_wrap=True, overflow="ellipsis") for line in lines]


def _named(title: str, name: str, size: int, share: DeviceShare) -> Text:
    line = Text(f"  {human_size(size):>10}  ", no_wrap=True, overflow="ellipsis")
    line.append(f"{title} {name}".strip() if name else f"no {title}")
    if title == "tag" and name in share.paused:
        line.append(f", paused: {human_size(share.paused[name])} released", style="cyan")
    return line


def _lines(lines: Sequence[Line] | None) -> list[Text]:
    if lines is None:
        return []
    if not any(line.where for line in lines):
        return [
            Text("Lines of code are known for allocations made while stacks are recorded:", style="dim"),
            Text('  allocator.record_history("state")', style="dim"),
        ]
    shown = [Text("lines of code that hold memory", style="bold")]
    for line in lines:
        blocks = "block " if line.blocks == 1 else "blocks"
        text = Text(f"  {human_size(line.bytes):>10}  {line.blocks:>7,} {blocks}  ", no_wrap=True, overflow="ellipsis")
        text.append(line.where or "without a stack", style="" if line.where else "dim")
        shown.append(text)
    return shown
