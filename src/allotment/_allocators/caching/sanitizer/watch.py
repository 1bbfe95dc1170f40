"""An allocator under watch: its requests and frees, and writes where nothing may be written.

Behind each block lies a redzone, a few bytes of a pattern. A freed block is filled with poison and kept in quarantine
before its memory can be reused. The sanitizer writes and checks both in the order of the block's stream, if this
process can read the memory; other blocks are watched without patterns.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from allotment._allocators.caching.sanitizer.blocks import Block, Blocks
from allotment._allocators.caching.sanitizer.order import HOST, Clocks, Point
from allotment._allocators.caching.sanitizer.reports import Access, Report, Stack, stack_here, stream_of
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._devices.streams import Stream, unwatch_streams, watch_streams
from allotment.errors import AllotmentError, SanitizerWarning

if TYPE_CHECKING:
    from allotment._devices.streams import Event

_REDZONE_BYTE, _POISON_BYTE = 0xFB, 0xDB
_QUARANTINE_BYTES = 32 << 20
_QUARANTINE_BLOCKS = 256
_MOST_REPORTS = 1000
_PATIENCE = 1.0


class Sanitizer:
    """What is known of one allocator's blocks, and the findings. Safe to use from several threads.

    `reports` has the findings in order; each is also issued as a SanitizerWarning. `Stream` reports streams and events;
    `Inspection.touch` and the arrays of a watched allocator report accesses.
    """

    redzone = 64
    """Bytes behind each block."""

    def __init__(self, allocator: Any, *, writes_memory: bool) -> None:
        self.reports: list[Report] = []
        self._device = allocator.device
        self._writes_memory = writes_memory
        self._lock = fork_safe_lock()
        self._clocks = Clocks()
        self._blocks = Blocks(self._clocks, self._note)
        self._quarantine: deque[Block] = deque()
        self._kept_bytes = 0
        self._changed = threading.Condition(self._lock)
        self._leaving = 0
        self._left: list[int] = []
        self._running = threading.local()
        self._lent: dict[tuple[int, int], Access] = {}
        self._asleep: dict[tuple[int, int], list[tuple[int, int]]] = {}
        watch_streams(self._device, self)

    def close(self) -> None:
        """Stop observing streams."""
        unwatch_streams(self._device, self)

    def _note(self, report: Report) -> None:
        seen = {(r.kind, r.first.stack, r.second.stack) for r in self.reports}
        if (report.kind, report.first.stack, report.second.stack) in seen or len(self.reports) >= _MOST_REPORTS:
            return
        self.reports.append(report)
        warnings.warn(f"allotment sanitizer: {report}", SanitizerWarning, stacklevel=4)

    # --- what the allocator reports ---

    def allocated(self, address: int, size: int, stream: int) -> None:
        """Record a block of `size` bytes, with a redzone behind it."""
        captured = self._is_captured(stream)
        with self._lock:
            self._blocks.allocated(address, size, stream, of_graph=captured)
            block = self._blocks.at(address)
        if block is not None and not captured:
            block.has_redzone = self._fill(stream, address + size, self.redzone, _REDZONE_BYTE)

    def adopted(self, address: int, size: int, stream: int) -> None:
        """Record a block that existed before the watch; what was done with it until now counts as done."""
        with self._lock:
            if self._blocks.at(address) is None:
                self._blocks.allocated(address, size, stream, of_graph=False)

    def recorded(self, address: int, stream: int) -> None:
        """Record that a stream was declared as a user of a block."""
        with self._lock:
            self._blocks.recorded(address, stream)

    def freed(self, address: int) -> list[int] | None:
        """Record a free; return the addresses that can be freed now, None if the block was freed before."""
        with self._lock:
            block = self._blocks.at(address)
            if block is None or block.address != address:
                return [address]  # not a known block: the allocator reports that
            if block.ended is not None:
                return None
            self._blocks.freed(block, self._here() or self._clocks.now(HOST), self._stack())
            if block.of_graph:
                return [address]  # its graph may go on using it
        if block.has_redzone:
            self._check(block, block.size, self.redzone, _REDZONE_BYTE, "overrun", block.made)
        if block.recorded <= {block.stream}:
            block.is_poisoned = self._fill(block.stream, block.address, block.size, _POISON_BYTE)
        with self._lock:
            self._quarantine.append(block)
            self._kept_bytes += block.size
            while self._kept_bytes > _QUARANTINE_BYTES or len(self._quarantine) > _QUARANTINE_BLOCKS:
                self._leave()
            return self._left_by_now()

    def _leave(self) -> None:
        """Remove the oldest block from quarantine once its stream has done all its work: the host may get it next."""
        block = self._quarantine.popleft()
        self._kept_bytes -= block.size
        self._leaving += 1
        assert block.ended is not None
        if block.is_poisoned:
            self._check(block, 0, block.size, _POISON_BYTE, "written after free", block.ended)
        if not (self._writes_memory and self._in_order(block.stream, self._has_left, block)):
            self._has_left(block)

    def _has_left(self, block: Block) -> None:
        with self._changed:
            self._leaving -= 1
            self._left.append(block.address)
            self._changed.notify_all()

    def _left_by_now(self) -> list[int]:
        left, self._left = self._left, []
        return left

    def emptied(self) -> list[int]:
        """Empty the quarantine because memory is short; return the addresses to free.

        Waits for their streams, but not for long.
        """
        with self._changed:
            while self._quarantine:
                self._leave()
            if not getattr(self._running, "submitted", False):
                self._changed.wait_for(lambda: self._leaving == 0, _PATIENCE)
            return self._left_by_now()

    def touched(self, address: int, stream: int | None, *, writes: bool) -> None:
        """Record an access by work that is submitted to a stream now; by the running function, or the host, if None."""
        with self._lock:
            moment = self._here(access=True) if stream is None else self._clocks.moment(stream)
            if moment is not None:
                self._blocks.touched(address, moment, self._stack(), writes=writes)

    def _here(self, access: bool = False) -> Any:
        """Return where the calling thread is: in a function on a stream, or on the host."""
        if getattr(self._running, "submitted", False):
            return self._running.moment
        return self._clocks.moment(HOST) if access else self._clocks.now(HOST)

    def _stack(self) -> Stack:
        """Return the calling thread's stack; for a function on a stream, also the stack of its submission."""
        submitted = self._running.stack if getattr(self._running, "submitted", False) else ()
        return stack_here() + submitted

    # --- what streams report ---

    def submitting(self, stream: Stream, function: Any) -> Any:
        """Return a function to submit in place of another: it knows its position in the stream's work."""
        with self._lock:
            moment: Point | None = None if stream._is_captured() else self._clocks.moment(stream.handle)

        stack = stack_here()

        def on_stream(*arguments: Any) -> Any:
            with self._at(moment, stack):
                return function(*arguments)

        return on_stream

    @contextmanager
    def _at(self, moment: Point | None, stack: Stack) -> Iterator[None]:
        self._running.submitted, self._running.moment, self._running.stack = True, moment, stack
        try:
            yield
        finally:
            self._running.submitted = False

    def recorded_event(self, stream: Stream, event: Event) -> None:
        """Record that an event was recorded."""
        with self._lock:
            self._clocks.record(event.handle, stream.handle)

    def waited(self, stream: Stream, event: Event) -> None:
        """Record that a stream waits for an event."""
        with self._lock:
            self._clocks.wait(stream.handle, event.handle)

    def synchronized(self, stream: Stream) -> None:
        """Record that the host has waited for a stream."""
        with self._lock:
            self._clocks.host_waited_for_stream(stream.handle)

    def synchronized_event(self, event: Event) -> None:
        """Record that the host has waited for an event."""
        with self._lock:
            self._clocks.host_waited_for_event(event.handle)

    def synchronized_device(self) -> None:
        """Record that the host has waited for everything."""
        with self._lock:
            self._clocks.host_waited_for_all()

    # --- the same from a framework, which has its own streams and events ---

    def ended(self, address: int) -> None:
        """Record that a block was freed and can be reused at once: nothing is kept back."""
        with self._lock:
            block = self._blocks.at(address)
            if block is not None and block.address == address and block.ended is None:
                self._blocks.freed(block, self._here() or self._clocks.now(HOST), self._stack())

    def foreign_record(self, stream: int, event: int) -> None:
        """Record that an event was recorded; both by their handles."""
        with self._lock:
            self._clocks.record(event, stream)

    def foreign_wait(self, stream: int, event: int) -> None:
        """Record that a stream waits for an event."""
        with self._lock:
            self._clocks.wait(stream, event)

    def foreign_event_done(self, event: int) -> None:
        """Record that the host has waited for an event."""
        with self._lock:
            self._clocks.host_waited_for_event(event)

    def foreign_stream_done(self, stream: int) -> None:
        """Record that the host has waited for a stream."""
        with self._lock:
            self._clocks.host_waited_for_stream(stream)

    # --- lent pools ---

    def lent(self, pool: tuple[int, int]) -> None:
        """Record that others may use the idle memory of a pool from now on."""
        self._lent[pool] = Access("lent", None, stack_here())

    def taken_back(self, pool: tuple[int, int], addresses: list[int]) -> None:
        """Record that only the owner uses the pool again; `addresses` are blocks that others still have in it."""
        lent = self._lent.pop(pool, Access("lent", None, ()))
        with self._lock:
            for block in self._blocks.live_within(addresses):
                self._note(Report("lent too long", block.address, block.size, block.made, lent))

    def launched(self, pool: tuple[int, int], stream: Stream) -> None:
        """Record that a graph runs whose memory is in a pool."""
        lent = self._lent.get(pool)
        if lent is not None:
            with self._lock:
                self._note(Report("lent in use", 0, 0, lent, Access("graph", stream.handle, stack_here())))

    # --- paused memory ---

    def asleep(self, pool: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
        """Stop writing patterns to a pool's addresses, which lose their memory.

        Return whether some writes may be queued.
        """
        with self._lock:
            self._asleep[pool] = ranges
        return self._writes_memory

    def awake(self, pool: tuple[int, int], *, kept: bool) -> None:
        """Resume patterns at addresses that have memory again, with the previous contents if those were kept."""
        with self._lock:
            for block in () if kept else self._blocks.within(self._asleep.get(pool, [])):
                block.has_redzone = block.is_poisoned = False
            self._asleep.pop(pool, None)

    def _is_asleep(self, address: int) -> bool:
        return any(base <= address < base + size for ranges in self._asleep.values() for base, size in ranges)

    # --- patterns in memory, in stream order ---

    def _fill(self, stream: int, address: int, size: int, byte: int) -> bool:
        """Queue a pattern; return whether it will be written."""
        with self._lock:  # nothing is queued any more once the memory is put to sleep
            if not self._writes_memory or self._is_asleep(address):
                return False
            return self._in_order(stream, ctypes.memset, address, byte, size)

    def _check(self, block: Block, offset: int, size: int, byte: int, kind: str, first: Access) -> None:
        second = Access("found", stream_of(block.stream), stack_here())
        with self._lock:
            if self._writes_memory and not self._is_asleep(block.address):
                self._in_order(block.stream, self._compare, block, offset, size, byte, kind, first, second)

    def _is_captured(self, stream: int) -> bool:
        return Stream.external(self._device, stream)._is_captured()

    def _in_order(self, stream: int, function: Any, *arguments: Any) -> bool:
        """Queue a function; return whether the stream will run it."""
        if self._is_captured(stream):
            return False
        with suppress(AllotmentError):  # the stream is destroyed and may still work: leave its memory alone
            self._device.submit(stream, function, arguments)
            return True
        return False

    def _compare(
        self, block: Block, offset: int, size: int, byte: int, kind: str, first: Access, second: Access
    ) -> None:
        found = (ctypes.c_char * size).from_address(block.address + offset).raw
        if found != bytes([byte]) * size:
            with self._lock:
                self._note(Report(kind, block.address, block.size, first, second))
