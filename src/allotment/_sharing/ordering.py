"""Order between processes: a process that opens a block waits for work submitted before the block was shared.

    device   the device's own events are shared, and the other process's stream waits on the device
    pipe     a process that opens the block before the work is done gets one end of a pipe, and the last of the
             streams closes the other end. So does the owner's death, which a counter would not survive
    polled   devices with neither: the owner replies when the work is done, so that the opening process waits

Idle streams cost nothing.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from allotment._sharing import device_calls
from allotment.errors import CaptureError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

_LOOKS_A_SECOND = 5


class Pipe:
    """A descriptor of the reading end of a pipe, closed with its last reference: an interrupt cannot leave it open."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class OrderKind(enum.IntEnum):
    """How another process learns that the work is done."""

    NOTHING = 0
    DEVICE = 1
    PIPE = 2
    POLLED = 3


class Marker:
    """A point in the queues of some streams of this process. Costs no descriptor until somebody waits for it."""

    _waited_for: set[Marker] = set()  # a child of fork must not keep their pipes open

    def __init__(self, device: Device, streams: list[int]) -> None:
        self._left = len(streams)
        self._writers: list[int] = []
        self._lock = threading.Lock()
        for stream in streams:
            device.submit(stream, self._reached, ())  # type: ignore[attr-defined]

    def _reached(self) -> None:
        """Runs on each stream; the last one closes the pipes."""
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
            writers, self._writers = self._writers, []
            Marker._waited_for.discard(self)
        for writer in writers:
            os.close(writer)

    def waiting_end(self) -> Pipe | None:
        """Return a new pipe that ends when all streams are past the marker, or when this process dies.

        None if they are past it already. Raises OSError.
        """
        with self._lock:
            if self._left == 0:
                return None
            reader, writer = os.pipe2(os.O_CLOEXEC)
            self._writers.append(writer)
            Marker._waited_for.add(self)
            return Pipe(reader)

    def forget(self) -> None:
        """In a child of fork, where no other thread runs: the lock may stay locked for ever."""
        writers, self._writers = self._writers, []
        for writer in writers:
            with contextlib.suppress(OSError):
                os.close(writer)


@dataclass
class Order:
    """What to wait for, for one shared block. `events` are kept until nobody has the block open any more."""

    device: Device
    kind: OrderKind = OrderKind.NOTHING
    streams: tuple[int, ...] = ()
    events: dict[int, int] = field(default_factory=dict)
    marker: Marker | None = None

    def handles(self) -> list[bytes]:
        """Return the events' handles, for another process."""
        if self.kind is not OrderKind.DEVICE:
            return []
        return [device_calls.export_event(self.device, self.events[stream]) for stream in self.streams]

    def waiting_end(self) -> Pipe | None:
        """Return a pipe that ends when the work is done, if that is how to wait for it. Raises OSError."""
        return self.marker.waiting_end() if self.marker is not None else None

    def is_over(self) -> bool:
        """Whether all of it is done; for polling."""
        if self.kind is not OrderKind.POLLED:
            return True
        return all(device_calls.is_event_done(self.device, self.events[stream]) for stream in self.streams)

    def end(self) -> None:
        """Destroy the events: nobody needs them any more."""
        for event in self.events.values():
            device_calls.destroy_event(self.device, event)
        self.events = {}


def record(device: Device, streams: Iterable[int], before: Order | None) -> Order:
    """Record the streams' current work, in place of the work `before`, whose events are reused.

    Raises CaptureError for a stream that is being captured: its work does not run.
    """
    busy = []
    for stream in dict.fromkeys(streams):
        if device_calls.is_captured(device, stream):
            raise CaptureError(
                f"a block of stream {stream:#x} of {device.name} cannot be shared while the stream is being captured"
            )
        if device_calls.has_events(device) and not device_calls.is_idle(device, stream):
            busy.append(stream)
    events = before.events if before is not None else {}
    if not busy:
        return Order(device, events=events)
    if hasattr(device, "submit"):
        return Order(device, OrderKind.PIPE, tuple(busy), events, Marker(device, busy))
    shared = device_calls.has_shared_events(device)
    for stream in busy:
        if stream not in events:
            events[stream] = device_calls.create_event(device, shared)
        device_calls.record_event(device, events[stream], stream)
    return Order(device, OrderKind.DEVICE if shared else OrderKind.POLLED, tuple(busy), events)


def wait(device: Device, stream: int, handles: list[bytes], pipe: Pipe | None, *, on_stream: bool) -> None:
    """Make a stream of this process wait for another's work; without `on_stream`, the caller waits for a pipe."""
    for handle in handles:
        device_calls.let_stream_wait(device, stream, handle)
    if pipe is None:
        return
    if on_stream and hasattr(device, "submit"):
        device.submit(stream, _wait_for_end, (pipe,))
    else:
        _wait_for_end(pipe)


def wait_here(order: Order, stream: int, pipe: Pipe | None, *, on_stream: bool) -> None:
    """`wait` in the process that shared the block: its events need no export."""
    for busy in order.streams:
        if busy != stream and busy in order.events:
            device_calls.let_stream_wait_here(order.device, stream, order.events[busy])
    wait(order.device, stream, [], pipe, on_stream=on_stream)


class _Exit:
    has_come = False


def _wait_for_end(pipe: Pipe) -> None:
    """Wait until the other end is closed; only while this process lives, whose streams are waited for at exit."""
    poll = select.poll()
    poll.register(pipe.descriptor, select.POLLIN)
    while not poll.poll(1000 // _LOOKS_A_SECOND) and not _Exit.has_come:
        pass


def note_exit() -> None:
    """The process is about to end: stop waiting."""
    _Exit.has_come = True


def forget() -> None:
    """In a child of fork: drop the parent's pipes."""
    for marker in list(Marker._waited_for):
        marker.forget()
    Marker._waited_for.clear()
