"""Any sequence of calls, against a model that knows only the holder of each block.

The model never decides where a block goes. It knows which addresses are in use, which ones other streams still read (by
its own events, recorded just before each free), and which pool must serve a request. It keeps a second set of records
from the trace. After every step all of that must agree with what the allocator shows.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment._allocators.caching.pool import PoolId, next_graph_pool_id
from allotment._core.contract.probe import Probe
from allotment.errors import DeviceError, OutOfMemoryError, PoolError
from helpers.engine import BUFFER, KIB, MIB, SEGMENT, check, on_device, segment_of

CAPACITY = 256 * MIB
STREAMS = (0, 7, 1 << 40)
DEFAULT: PoolId = (0, 0)

BOUNDARIES = (512, 512 * KIB, MIB, BUFFER, 10 * MIB, SEGMENT, 40 * MIB, 64 * MIB)
SMALL = st.integers(1, MIB)
LARGE = st.integers(MIB, 48 * MIB)
BOUNDARY = st.tuples(st.sampled_from(BOUNDARIES), st.sampled_from((-512, -1, 0, 1, 512))).map(sum)
HUGE = st.sampled_from((0, 120 * MIB, 200 * MIB, 255 * MIB, 300 * MIB))
STREAM = st.sampled_from(STREAMS)
SETTINGS = (
    "",
    "expandable_segments:True",
    "expandable_segments:False",
    "max_split_size_mb:40",
    "max_split_size_mb:64,max_non_split_rounding_mb:48,expandable_segments:True",
    "garbage_collection_threshold:0.3",
    "garbage_collection_threshold:0.6,max_split_size_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,>:4]",
    "graph_capture_record_stream_reuse:True",
    "graph_capture_record_stream_reuse:False",
    "release_lock_on_cudamalloc:True",
    "large_segment_size_mb:40",
    "large_segment_size_mb:20",
)
REFUSABLE = (
    "segment_allocate", "segment_free", "range_reserve", "range_release", "chunk_create", "chunk_release", "map",
    "unmap", "set_access", "stream_synchronize", "event_synchronize",
)  # fmt: skip


class OwnMemory:
    """The source of segments for a pool with its own allocator."""

    def __init__(self) -> None:
        self.next_address = 1 << 50
        self.segments: dict[int, int] = {}

    def allocate(self, size: int, stream: int) -> int:
        if sum(self.segments.values()) + size > 64 * MIB:
            return 0
        address = self.next_address
        self.next_address += size
        self.segments[address] = size
        return address

    def free(self, address: int, size: int, stream: int) -> None:
        assert self.segments.pop(address) == size


@dataclass
class Block:
    address: int
    size: int
    stream: int
    pool: PoolId | None
    """None: it came directly from the device."""
    uses: dict[int, bool] = field(default_factory=dict)
    """Other streams, and whether they were declared while requests were routed."""


@dataclass
class Reader:
    """Addresses that a stream may still read, which must not be allocated before `event` has finished."""

    start: int
    end: int
    event: int


@dataclass
class Route:
    pool: PoolId
    stream: int | None = None
    thread: int | None = None
    capture: int | None = None


@dataclass
class Traced:
    """The state according to the trace."""

    live: dict[int, int] = field(default_factory=dict)
    waiting: int = 0
    reserved: int = 0
    ooms: int = 0

    def note(self, action: str, address: int, size: int, stream: int, pool: PoolId) -> None:
        match action:
            case "alloc":
                assert address not in self.live
                self.live[address] = size
            case "free_requested":
                assert self.live.pop(address) == size
                self.waiting += 1
            case "free_completed":
                self.waiting -= 1
            case "segment_alloc" | "segment_map":
                self.reserved += size
            case "segment_free" | "segment_unmap":
                self.reserved -= size
            case "oom":
                self.ooms += 1


class AllocatorMachine(RuleBasedStateMachine):
    @initialize(text=st.sampled_from(("", "expandable_segments:True", "max_split_size_mb:40")))
    def begin(self, text: str) -> None:
        self.alloc = on_device(CAPACITY, text)
        self.device = self.alloc.device
        self.probe = Probe(self.device)
        self.own = OwnMemory()
        self.traced = Traced()
        self.broken: list[BaseException] = []
        self.alloc.history.attach_trace_tracker(self.note)
        self.blocks: dict[int, Block] = {}
        self.readers: list[Reader] = []
        self.freed: list[tuple[int, int]] = []  # size and stream
        self.routes: list[Route] = []  # newest last
        self.uses: dict[PoolId, int] = {}  # pools in use -> number of users
        self.lenders: set[PoolId] = set()
        self.whole: set[PoolId] = set()  # pools that hand out whole segments
        self.captures: dict[int, tuple[int, PoolId]] = {}  # id -> the stream it began on, its pool
        self.refusing = False
        self.unreleased = False  # the device may still have pages that it refused to take back
        self.ooms_before_reset = 0
        self.marks: dict[str, int] = {}

    def note(self, *entry: Any) -> None:
        try:
            self.traced.note(*entry)
        except AssertionError as error:  # a tracker's exceptions reach no caller
            self.broken.append(error)

    # --- requests ---

    @rule(size=SMALL, stream=STREAM)
    def malloc_small(self, size: int, stream: int) -> None:
        self.malloc(size, stream)

    @rule(size=LARGE | HUGE, stream=STREAM)
    def malloc_large(self, size: int, stream: int) -> None:
        self.malloc(size, stream)

    @precondition(lambda self: self.freed)
    @rule(data=st.data())
    def malloc_again(self, data: st.DataObject) -> None:
        """As a block freed earlier: its memory fits, once no stream reads it any more."""
        self.malloc(*data.draw(st.sampled_from(self.freed[-8:])))

    @rule(sizes=st.lists(SMALL | LARGE | BOUNDARY, min_size=2, max_size=6), stream=STREAM)
    def malloc_several(self, sizes: list[int], stream: int) -> None:
        for size in sizes:
            self.malloc(size, stream)

    @rule(size=SMALL, stream=STREAM)
    def malloc_past_the_cache(self, size: int, stream: int) -> None:
        self.alloc.pools.caching = False
        self.malloc(size, stream)
        self.alloc.pools.caching = True

    def malloc(self, size: int, stream: int) -> None:
        pool = self.pool_for(stream)
        try:
            address = self.alloc.malloc(size, stream)
        except OutOfMemoryError as error:
            self.check_out_of_memory(error)
            return
        except DeviceError:
            assert self.refusing
            return
        except PoolError:
            assert pool == DEFAULT
            assert any(route.pool in self.lenders for route in self.routes), "only a pool in use refuses to lend"
            return
        if size == 0:
            assert address == 0
            return
        self.check_no_stream_reads(address, size)
        assert not any(b.address < address + size and address < b.address + b.size for b in self.blocks.values())
        self.blocks[address] = Block(address, size, stream, pool if self.alloc.pools.caching else None)
        if self.alloc.pools.caching:
            self.check_place(self.blocks[address])

    def pool_for(self, stream: int) -> PoolId:
        for route in reversed(self.routes):
            if (
                route.stream in (None, stream)
                and route.thread in (None, threading.get_ident())
                and route.capture in (None, self.device.capture_of(stream))
            ):
                return route.pool
        return DEFAULT

    def check_place(self, block: Block) -> None:
        segment = segment_of(self.alloc, block.address)
        lent = block.pool == DEFAULT and segment["segment_pool_id"] in self.lenders
        assert segment["stream"] == block.stream
        assert segment["segment_pool_id"] == block.pool or lent
        block.pool = segment["segment_pool_id"]
        given = next(b for b in segment["blocks"] if b["address"] == block.address)
        assert given["requested_size"] == block.size <= given["size"]
        if segment["segment_type"] == "small" and block.pool not in self.whole:
            fewest_divisions = 4
            assert given["size"] - block.size < max(512, block.size / fewest_divisions + 512) or block.size > 512 * KIB

    def check_no_stream_reads(self, address: int, size: int) -> None:
        for reader in [r for r in self.readers if r.start < address + size and address < r.end]:
            assert self.probe.event_query(reader.event), "a block was handed out while another stream reads it"
            self.readers.remove(reader)

    def check_out_of_memory(self, error: OutOfMemoryError) -> None:
        facts, stats = error.facts, self.alloc.stats()
        if not self.alloc.pools.caching:
            return
        assert facts.reserved == stats["reserved_bytes.all.current"]
        assert facts.allocated == stats["allocated_bytes.all.current"]
        excused = self.routes or self.refusing or self.alloc.settings.expandable_segments
        if not excused:
            within_limit = facts.limit is None or facts.reserved + facts.segment_size <= facts.limit
            assert not within_limit or facts.segment_size > self.device.capacity - self.device.used

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free_one(self, data: st.DataObject) -> None:
        self.free(self.choose(data))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free_several(self, data: st.DataObject) -> None:
        for address in data.draw(st.sets(st.sampled_from(sorted(self.blocks)), min_size=1)):
            self.free(self.blocks[address])

    def choose(self, data: st.DataObject) -> Block:
        return self.blocks[data.draw(st.sampled_from(sorted(self.blocks)))]

    def free(self, block: Block) -> None:
        readers = self.readers_of(block)
        try:
            self.alloc.free(block.address)
        except DeviceError:
            assert self.refusing
            return
        del self.blocks[block.address]
        self.readers += readers
        self.freed.append((block.size, block.stream))

    def readers_of(self, block: Block) -> list[Reader]:
        """Return the uses that the free has to wait for: those that no capture has ordered."""
        if block.pool is None or (self.routes and self.alloc.settings.graph_capture_record_stream_reuse):
            return []
        waited = [stream for stream, routed in block.uses.items() if not (self.routes and routed)]
        readers = []
        for stream in waited:
            event = self.probe.event_create()
            self.probe.event_record(event, stream)
            readers.append(Reader(block.address, block.address + block.size, event))
        return readers

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), stream=STREAM, busy=st.booleans(), freed=st.booleans())
    def read_on(self, data: st.DataObject, stream: int, busy: bool, freed: bool) -> None:
        """Another stream reads a block, which may be freed meanwhile."""
        block = self.choose(data)
        if busy:
            self.device.launch(stream)
        self.alloc.record_stream(block.address, stream)
        if stream != block.stream:
            block.uses[stream] = block.uses.get(stream, False) or bool(self.routes)
        if freed:
            self.free(block)

    @rule()
    def empty_cache(self) -> None:
        try:
            self.alloc.empty_cache()
        except DeviceError:
            # A stream that is being captured cannot be waited for either.
            assert self.refusing or self.captures
            self.unreleased = True
        else:
            # While requests are routed, neither the default pools nor their deferred frees are processed.
            self.unreleased = self.unreleased and (self.refusing or bool(self.routes))

    # --- the device ---

    @rule(stream=st.sampled_from((None, *STREAMS)))
    def finish(self, stream: int | None) -> None:
        self.device.finish(stream)

    @rule(operation=st.sampled_from(REFUSABLE), times=st.integers(1, 3), out_of_memory=st.booleans())
    def refuse(self, operation: str, times: int, out_of_memory: bool) -> None:
        self.device.refuse(operation, times, out_of_memory=out_of_memory)
        self.refusing = self.unreleased = True

    @precondition(lambda self: self.refusing)
    @rule()
    def heal(self) -> None:
        for operation in REFUSABLE:
            self.device.refuse(operation, times=0)
        self.refusing = False

    # --- settings and figures ---

    @rule(text=st.sampled_from(SETTINGS))
    def configure(self, text: str) -> None:
        self.alloc.settings = text

    @rule(limit=st.sampled_from((None, None, None, 0, 60 * MIB, 100 * MIB, 200 * MIB)))
    def set_limit(self, limit: int | None) -> None:
        self.alloc.limit = limit

    @rule(totals=st.booleans())
    def reset(self, totals: bool) -> None:
        if totals:
            self.alloc.inspection.reset_accumulated_stats()
            self.ooms_before_reset = self.traced.ooms
            stats = self.alloc.stats()
            self.marks = {key: stats[f"{key[:-10]}.current"] for key in stats if key.endswith(".allocated")}
        else:
            self.alloc.reset_peak_stats()
            stats = self.alloc.stats()
            assert all(stats[key] == stats[f"{key[:-5]}.current"] for key in stats if key.endswith(".peak"))

    # --- pools ---

    @rule(lends=st.booleans(), whole=st.booleans(), own=st.booleans())
    def new_pool(self, lends: bool, whole: bool, own: bool) -> None:
        if len(self.uses) == 4:
            return
        pool = self.alloc.pool(use_on_oom=lends, no_split=whole, allocator=self.own if own else None)
        pool._closed = True  # the machine counts the uses itself
        self.uses[pool.id] = 1
        if lends:
            self.lenders.add(pool.id)
        if whole:
            self.whole.add(pool.id)

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def release_pool(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from(sorted(self.uses)))
        routed = any(route.pool == pool for route in self.routes)
        if self.uses[pool] == 1 and routed:
            return
        self.give_up(pool)

    def give_up(self, pool: PoolId) -> None:
        self.uses[pool] -= 1
        if self.uses[pool] == 0:
            self.alloc.pools.set_use_on_oom(pool, False)
            self.lenders.discard(pool)
            del self.uses[pool]
        self.alloc.pools.release(pool)
        if pool not in self.uses:
            try:
                self.alloc.empty_cache(pool)
            except DeviceError:
                assert self.refusing or self.captures
                self.unreleased = True

    @precondition(lambda self: self.uses)
    @rule(data=st.data(), kind=st.sampled_from(("all", "thread", "other thread", *STREAMS)))
    def route(self, data: st.DataObject, kind: str | int) -> None:
        pool = data.draw(st.sampled_from(sorted(self.uses)))
        route = Route(pool)
        if kind in STREAMS:
            route.stream = int(kind)
        elif kind != "all":
            route.thread = threading.get_ident() + (kind == "other thread")
        if any(known.pool == pool for known in self.routes):
            with pytest.raises(PoolError, match="already"):
                self.alloc.pools.begin_allocate_to_pool(pool, stream=route.stream, thread=route.thread)
            return
        self.alloc.pools.begin_allocate_to_pool(pool, stream=route.stream, thread=route.thread)
        self.uses[pool] += 1
        self.routes.append(route)

    @precondition(lambda self: any(route.capture is None for route in self.routes))
    @rule(data=st.data())
    def end_route(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from([r.pool for r in self.routes if r.capture is None]))
        self.alloc.pools.end_allocate_to_pool(ended)
        self.routes = [route for route in self.routes if route.pool != ended]
        self.give_up(ended)

    # --- captures ---

    @rule(stream=st.sampled_from(STREAMS[1:]), data=st.data())
    def begin_capture(self, stream: int, data: st.DataObject) -> None:
        if self.device.capture_of(stream) or any(stream == origin for origin, _ in self.captures.values()):
            return
        unrouted = [pool for pool in sorted(self.uses) if pool not in {r.pool for r in self.routes}]
        pool = data.draw(st.sampled_from([None, *unrouted]))
        pool = next_graph_pool_id() if pool is None else pool
        capture = self.device.begin_capture(stream)
        self.alloc.pools.begin_allocate_to_pool(pool, capture=capture)
        self.uses[pool] = self.uses.get(pool, 0) + 1
        self.routes.append(Route(pool, capture=capture))
        self.captures[capture] = (stream, pool)

    @precondition(lambda self: self.captures)
    @rule(stream=st.sampled_from(STREAMS[1:]), on=st.sampled_from(STREAMS[1:]))
    def wait(self, stream: int, on: int) -> None:
        """Work on a stream, for which another waits: it joins the capture. Two captures cannot be joined."""
        self.device.launch(on)
        if self.device.capture_of(stream) in (0, self.device.capture_of(on)) and stream not in {
            origin for origin, _ in self.captures.values()
        }:
            self.device.wait(stream, on)

    @precondition(lambda self: self.captures)
    @rule(data=st.data())
    def end_capture(self, data: st.DataObject) -> None:
        capture = data.draw(st.sampled_from(sorted(self.captures)))
        stream, pool = self.captures.pop(capture)
        # Fails if a stream that joined was not joined back, or the capture was spoilt; routing ends all the same.
        with suppress(DeviceError):
            self.device.end_capture(stream)
        self.alloc.pools.end_allocate_to_pool(pool)
        self.routes = [route for route in self.routes if route.capture != capture]

    # --- invariants ---

    @invariant()
    def everything_agrees(self) -> None:
        check(self.alloc)
        assert not self.broken
        cached = {block.address: block.size for block in self.blocks.values() if block.pool is not None}
        direct = sum(block.size for block in self.blocks.values() if block.pool is None)
        stats = self.alloc.stats()
        segments = self.alloc.history.segments()
        assert (
            cached
            == self.traced.live
            == {
                block["address"]: block["requested_size"]
                for segment in segments
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            }
        )
        assert stats["active.all.current"] == len(cached) + self.traced.waiting
        assert stats["reserved_bytes.all.current"] == self.traced.reserved
        assert stats["num_ooms"] == self.traced.ooms - self.ooms_before_reset
        for before, after in pairwise(segments):
            assert before["address"] + before["total_size"] <= after["address"]
        accounted = self.traced.reserved + direct
        held = self.device.used + sum(self.own.segments.values())
        assert held >= accounted if self.unreleased else held == accounted
        for pool, uses in self.uses.items():
            assert self.alloc.pools.use_count(pool) == uses

    @invariant()
    def totals_agree(self) -> None:
        stats = self.alloc.stats()
        for key in stats:
            if key.endswith(".peak"):
                name = key[:-5]
                assert stats[key] >= stats[f"{name}.current"]
                moved = stats[f"{name}.allocated"] - stats[f"{name}.freed"]
                assert moved == stats[f"{name}.current"] - self.marks.get(f"{name}.allocated", 0)

    def teardown(self) -> None:
        if not hasattr(self, "alloc"):
            return
        self.heal()
        for capture, (stream, pool) in self.captures.items():
            with suppress(DeviceError):
                self.device.end_capture(stream)
            self.alloc.pools.end_allocate_to_pool(pool)
            self.routes = [route for route in self.routes if route.capture != capture]
        self.captures.clear()
        for route in self.routes:
            self.alloc.pools.end_allocate_to_pool(route.pool)
        self.routes.clear()
        for pool, uses in list(self.uses.items()):
            for _ in range(uses):
                self.give_up(pool)
        for address in list(self.blocks):
            self.alloc.free(address)
        self.blocks.clear()
        self.alloc.empty_cache()
        check(self.alloc)
        stats = self.alloc.stats()
        oversize = {"oversize_allocations.current", "oversize_segments.current"}  # counted by the current limit
        assert [k for k, n in stats.items() if k.endswith(".current") and n != 0 and k not in oversize] == []
        assert self.device.used == 0
        assert self.own.segments == {}
        assert self.alloc.inspection.pending_events() == []
