"""`allotment top` in a terminal: reads figures every second, and reacts to keys and changes of size at once."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from allotment._cli.top_screen import SORTS, Drawn, in_order, process_screen, processes_screen, sorts_shown
from allotment._monitor.asking import Silent, ask_all, ask_lines, unknown
from allotment._monitor.overview import overview
from allotment.errors import AllotmentError, RequestError

if TYPE_CHECKING:
    from allotment._monitor.figures import Line, Report

UP, DOWN, ENTER, BACK, QUIT = "up", "down", "enter", "back", "q"
SEQUENCES = {b"\x1b[A": UP, b"\x1bOA": UP, b"\x1b[B": DOWN, b"\x1bOB": DOWN, b"\x1b[C": ENTER, b"\x1b[D": BACK}
SINGLES = {b"k": UP, b"j": DOWN, b"\r": ENTER, b"\n": ENTER, b"\x1b": BACK, b"\x7f": BACK, b"\b": BACK, b"\x04": QUIT}


class Top:
    """The displayed state, and what a key does to it."""

    def __init__(self, opened: int | None = None) -> None:
        self.reports: list[Report | Silent] = []
        self.found = overview([])
        self.sort = "r"
        self.chosen: int | None = None
        self.opened = opened
        self.lines: list[Line] | None = None
        self.message = ""

    def look(self) -> None:
        """Ask all processes again."""
        reports = ask_all()
        self.found = overview(reports, self.reports)
        self.reports = reports
        if self.opened is not None and self.found.process(self.opened) is None:
            self.message = f"process {self.opened} has ended"
            self.opened = None
        if self.chosen is None or self.found.process(self.chosen) is None:
            self.chosen = next(iter(self.pids()), None)

    def pids(self) -> list[int]:
        return [each.pid for each in in_order(self.found.processes, self.sort)]

    def press(self, key: str) -> None:
        self.message = ""
        if key == BACK:
            self.opened = None
        elif key == ENTER:
            self.open(self.chosen)
        elif key == "t" and self.opened is not None:
            self.open(self.opened)
        elif key in (UP, DOWN):
            self.move(-1 if key == UP else 1)
        elif key in SORTS:
            self.sort = key

    def move(self, by: int) -> None:
        pids = self.pids()
        if pids and self.chosen in pids:
            self.chosen = pids[min(max(pids.index(self.chosen) + by, 0), len(pids) - 1)]

    def open(self, pid: int | None) -> None:
        """Show one process. Its lines are fetched only now, because that visits every block."""
        if pid is None:
            return
        self.lines = None
        try:
            self.lines = ask_lines(pid)
        except AllotmentError as error:
            self.message = str(error)
        self.opened = self.chosen = pid

    def screen(self, width: int, height: int) -> RenderableType:
        room = max(height - 4, 1)
        process = self.found.process(self.opened) if self.opened is not None else None
        body: RenderableType
        if process is not None:
            body, keys = process_screen(process, self.lines, width, rows=room), "q end   ← back   t lines again"
        else:
            rows = max(room - len(self.found.devices) - 1, 1)
            body = processes_screen(self.found, width, sort=self.sort, chosen=self.chosen, rows=rows)
            keys = f"q end  ↑↓ choose  ⏎ open  sort {sorts_shown(width)}"
        count = len(self.found.processes)
        title = Text("allotment top", style="bold")
        title.append(f"  {count} process{'' if count == 1 else 'es'}  {time.strftime('%H:%M:%S')}", style="dim")
        title.append(f"  {self.message}", style="red")
        for line in (title, footer := Text(keys, style="dim")):
            line.no_wrap, line.overflow = True, "ellipsis"
        return Drawn(Group(title, Text(), body, Text(), footer))


def read_key(data: bytes) -> str:
    """Return the key for the bytes from a terminal; "" for one without a meaning here."""
    if data in SEQUENCES:
        return SEQUENCES[data]
    return SINGLES.get(data[:1] if data[:1] != b"\x1b" else data) or data[:1].decode("ascii", "replace")


@contextmanager
def _keys_at_once(descriptor: int) -> Iterator[None]:
    """Make a terminal pass each key on at once, and not echo it."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _told_of_resizes() -> Iterator[int]:
    """Yield a descriptor that becomes readable when the window has changed its size."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.signal(signal.SIGWINCH, lambda number, frame: None)
    old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(old)
        signal.signal(signal.SIGWINCH, before)
        os.close(reader)
        os.close(writer)


def run(pid: int | None, seconds: float) -> None:
    """Run until q. Raises RequestError for a process that does not announce itself."""
    top = Top()
    top.look()
    if pid is not None:
        if top.found.process(pid) is None:
            raise RequestError(unknown(pid))
        top.open(pid)
    console = Console()
    keyboard = sys.stdin.fileno()
    with (
        _keys_at_once(keyboard),
        _told_of_resizes() as resized,
        Live(console=console, screen=True, auto_refresh=False) as live,
        suppress(KeyboardInterrupt),
    ):
        next_look = time.monotonic() + min(seconds, 0.5)  # rates need two readings
        while True:
            # The terminal's own size: COLUMNS and LINES in the environment do not follow a resize.
            columns, lines = os.get_terminal_size(keyboard)
            console.size = (columns or 80, lines or 24)  # type: ignore[assignment]  # a terminal may not know its size
            live.update(top.screen(*console.size), refresh=True)
            ready, _, _ = select.select([keyboard, resized], [], [], max(next_look - time.monotonic(), 0))
            if keyboard in ready:
                data = os.read(keyboard, 16)
                key = read_key(data)
                if key == QUIT or not data:
                    return
                top.press(key)
            if resized in ready:
                os.read(resized, 512)
            if time.monotonic() >= next_look:
                top.look()
                next_look = time.monotonic() + seconds
