"""What the sanitizer knows of each block, and the rules for accesses and frees.

    an access       comes after every earlier access that was a write, and a write after every access; the block is live
    a free          comes after every access by other streams, or those are recorded for the block, or the host waited
    an access to comes after the work of the memory's previous users, on the stream that the block is for
    reused memory

The sanitizer remembers a freed block until its memory is reused, to detect later uses of it.

A function on a stream reports an access when it runs, which may be long after the block was freed or its memory reused.
What counts is the moment of its submission. The access carries that moment, and a block knows how much work each agent
had been given when the block was allocated and when it was freed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from allotment._allocators.caching.sanitizer.order import HOST, Clock, Clocks, Point, latest_of
from allotment._allocators.caching.sanitizer.reports import Access, Report, Stack, stack_here, stream_of


@dataclass(slots=True)
class _Touch:
    moment: Point
    stack: Stack
    writes: bool

    def access(self) -> Access:
        return Access("write" if self.writes else "read", stream_of(self.moment.agent), self.stack)


@dataclass(slots=True)
class Block:
    """`touches` has the last read and the last write of each agent; `before` those of the memory's previous life."""

    address: int
    size: int
    stream: int
    made: Access
    start: Point
    """Moment of the allocation on its stream, which the allocator orders after all previous users of the memory."""
    given_before: Clock
    """Work given before the allocation, which cannot be meant for this block."""
    touches: dict[tuple[int, bool], _Touch] = field(default_factory=dict)
    before: list[_Touch] = field(default_factory=list)
    recorded: set[int] = field(default_factory=set)
    ended: Access | None = None
    given: Clock = field(default_factory=dict)
    """Work given before the free."""
    waited_for: Clock = field(default_factory=dict)
    """The part of that work that was known to be done at the free, or ordered before its stream's next work."""
    has_redzone: bool = False
    is_poisoned: bool = False
    """Not if other streams were recorded for it: they may still read it when its own stream writes the poison."""
    of_graph: bool = False
    """Allocated in a capture: the graph uses its memory whenever it runs, freed or not."""


def _is_settled(block: Block, moment: Point) -> bool:
    """Whether the memory of a freed block is not reused before this work is done."""
    return moment.agent in (HOST, block.stream) or moment.agent in block.recorded or moment.is_within(block.waited_for)


class Blocks:
    """All blocks of one allocator. The caller holds a lock."""

    def __init__(self, clocks: Clocks, report: Callable[[Report], None]) -> None:
        self.clocks = clocks
        self._report = report
        self._by_address: dict[int, Block] = {}
        self._addresses: list[int] = []

    def at(self, address: int) -> Block | None:
        """Return the block that contains an address, live, or freed and not yet reused."""
        place = bisect_right(self._addresses, address)
        if place == 0:
            return None
        block = self._by_address[self._addresses[place - 1]]
        return block if address < block.address + max(block.size, 1) else None

    def allocated(self, address: int, size: int, stream: int, *, of_graph: bool = False) -> None:
        """Begin a block; whatever was there before has ended for good."""
        made = Access("malloc", stream_of(stream), stack_here())
        start = self.clocks.moment(stream)
        block = Block(address, size, stream, made, start, self.clocks.given(), of_graph=of_graph)
        for old in self._overlapping(address, size):
            # The work of other streams is done: it was recorded and waited for, or has been reported.
            block.before += [touch for touch in old.touches.values() if touch.moment.agent == old.stream]
            if old.stream == stream:
                block.before += old.before
            self._forget(old)
        self._by_address[address] = block
        insort(self._addresses, address)

    def _overlapping(self, address: int, size: int) -> list[Block]:
        first = max(bisect_right(self._addresses, address) - 1, 0)
        found = []
        for start in self._addresses[first:]:
            if start >= address + size:
                break
            block = self._by_address[start]
            if start + block.size > address:
                found.append(block)
        return found

    def _forget(self, block: Block) -> None:
        del self._by_address[block.address]
        del self._addresses[bisect_right(self._addresses, block.address) - 1]

    def recorded(self, address: int, stream: int) -> None:
        block = self.at(address)
        if block is not None:
            block.recorded.add(stream)

    def touched(self, address: int, moment: Point, stack: Stack, *, writes: bool) -> None:
        """Check an access to a block; memory outside of known blocks is not checked."""
        block = self.at(address)
        if block is None or moment.is_within(block.given_before):
            return
        touch = _Touch(moment, stack, writes)
        if block.ended is not None and not moment.is_within(block.given):
            self._report_pair("use after free", block, block.ended, touch.access())
            return
        if block.ended is not None and not _is_settled(block, moment):
            self._report_pair("not recorded", block, touch.access(), block.ended)
            return
        for other in list(block.touches.values()):
            if (writes or other.writes) and not moment.is_ordered(other.moment):
                self._report_pair("race", block, other.access(), touch.access())
        for other in block.before if not moment.comes_after(block.start) else ():
            if not moment.comes_after(other.moment):
                self._report_pair("reused too early", block, other.access(), touch.access())
                block.before = []
                break
        latest = block.touches.get((moment.agent, writes))
        if latest is None or latest.moment.time <= moment.time:
            block.touches[moment.agent, writes] = touch

    def freed(self, block: Block, moment: Point, stack: Stack) -> None:
        """Record a free. `moment` is the moment of the free; what the block's stream is ordered after counts too."""
        block.ended = Access("free", stream_of(moment.agent), stack)
        block.given = self.clocks.given()
        block.waited_for = latest_of(moment.seen, self.clocks.now(block.stream).seen)
        for touch in list(block.touches.values()):
            if not _is_settled(block, touch.moment):
                self._report_pair("not recorded", block, touch.access(), block.ended)

    def within(self, ranges: list[tuple[int, int]]) -> list[Block]:
        """Return the blocks within some ranges of memory, each an address and a size."""
        return [block for base, size in ranges for block in self._overlapping(base, size)]

    def live_within(self, addresses: list[int]) -> list[Block]:
        """Return the live blocks at these addresses."""
        found = [self._by_address.get(address) for address in addresses]
        return [block for block in found if block is not None and block.ended is None]

    def _report_pair(self, kind: str, block: Block, first: Access, second: Access) -> None:
        self._report(Report(kind, block.address, block.size, first, second))
