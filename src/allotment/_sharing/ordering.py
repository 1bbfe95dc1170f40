"""Order between processes: what a stream was given before its block was shared is waited for by who opens the block.

    device   the device's own events travel, and the other process's stream waits on the device
    pipe     the last of the streams closes one end of a pipe; who has the other end sees that, and also the owner's
             death, after which no work is to come (a counter that nobody raises any more would be waited for for ever)
    polled   devices with neither: the owner replies when the work is done, so that who opens the block waits

Streams that have nothing to do cost nothing.
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


class OrderKind(enum.IntEnum):
    """How it is told that the work is done."""

    NOTHING = 0
    DEVICE = 1
    PIPE = 2
    POLLED = 3


class Pipe:
    """A pipe whose writing end is closed when the last of some streams has come so far."""

    _open: set[Pipe] = set()  # in a child of fork they must not stay open for the parent's sake

    def __init__(self, device: Device, streams: list[int]) -> None:
        self.reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self._left = len(streams)
        self._lock = threading.Lock()
        Pipe._open.add(self)
        for stream in streams:
            try:
                device.submit(stream, self._done, ())  # type: ignore[attr-defined]
            except BaseException:
                self._done()
                self.close()
                raise

    def _done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0 or self._writer < 0:
                return
            writer, self._writer = self._writer, -1
        os.close(writer)

    def close(self) -> None:
        """Who has been given the reading end keeps theirs."""
        Pipe._open.discard(self)
        with self._lock:
            reader, self.reader = self.reader, -1
        if reader >= 0:
            os.close(reader)

    def forget(self) -> None:
        """In a child of fork."""
        for descriptor in (self.reader, self._writer):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.reader = self._writer = -1


@dataclass
class Order:
    """What has to be waited for, of one block that was shared. `events` are kept until nobody has it open any more."""

    device: Device
    kind: OrderKind = OrderKind.NOTHING
    streams: tuple[int, ...] = ()
    events: dict[int, int] = field(default_factory=dict)
    pipe: Pipe | None = None

    def handles(self) -> list[bytes]:
        """The events, for another process."""
        if self.kind is not OrderKind.DEVICE:
            return []
        return [device_calls.export_event(self.device, self.events[stream]) for stream in self.streams]

    def is_over(self) -> bool:
        """Whether all of it is done, for who polls."""
        if self.kind is not OrderKind.POLLED:
            return True
        return all(device_calls.is_event_done(self.device, self.events[stream]) for stream in self.streams)

    def end(self) -> None:
        """Nobody needs it any more."""
        if self.pipe is not None:
            self.pipe.close()
        for event in self.events.values():
            device_calls.destroy_event(self.device, event)
        self.events = {}


def record(device: Device, streams: Iterable[int], before: Order | None) -> Order:
    """What the streams have to do now, in place of what they had to do `before`, whose events are used again.

    Raises CaptureError for a stream that is being captured: what it was given is not done at all.
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
        return Order(device, OrderKind.PIPE, tuple(busy), events, Pipe(device, busy))
    shared = device_calls.has_shared_events(device)
    for stream in busy:
        if stream not in events:
            events[stream] = device_calls.create_event(device, shared)
        device_calls.record_event(device, events[stream], stream)
    return Order(device, OrderKind.DEVICE if shared else OrderKind.POLLED, tuple(busy), events)


def wait(device: Device, stream: int, handles: list[bytes], descriptor: int | None, *, on_stream: bool) -> None:
    """Let a stream of this process wait for another's work; without `on_stream`, the caller waits for a pipe itself.

    The descriptor is taken over.
    """
    for handle in handles:
        device_calls.let_stream_wait(device, stream, handle)
    if descriptor is None:
        return
    if on_stream and hasattr(device, "submit"):
        try:
            device.submit(stream, _wait_for_end, (descriptor,))
        except BaseException:
            os.close(descriptor)
            raise
    else:
        _wait_for_end(descriptor)


class _Exit:
    has_come = False


def _wait_for_end(descriptor: int) -> None:
    """Wait until the other end is closed; no longer than this process lives, whose streams are waited for at exit."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        while not poll.poll(1000 // _LOOKS_A_SECOND) and not _Exit.has_come:
            pass
    finally:
        os.close(descriptor)


def note_exit() -> None:
    """The process is about to end: nothing is waited for any more."""
    _Exit.has_come = True


def forget() -> None:
    """In a child of fork: the parent's pipes are not its own."""
    for pipe in list(Pipe._open):
        pipe.forget()
    Pipe._open.clear()
