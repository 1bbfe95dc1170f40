"""The allocator over a device's own pool: any order of calls, any call refused, many threads.

A model knows only the holder of each block, and which streams had work when it was freed. Memory that a stream may
still use must not be allocated for work that is not ordered after that use.
"""

from __future__ import annotations

import random
import threading
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allotment import AllotmentError, DeviceError, OutOfMemoryError, SimulatedDevice, make_allocator
from allotment._core.contract.probe import Probe
from helpers.effort import some
from helpers.faulty import faulty
from helpers.relay_device import OrderedRelay

MIB = 1 << 20
CAPACITY = 64 * MIB
STREAMS = (0, 5, 7)
POOL = (1 << 20, 0)
SETTINGS = "backend:cudaMallocAsync"

pytestmark = pytest.mark.filterwarnings("ignore")  # about captures; other tests check each warning


@dataclass
class Block:
    address: int
    size: int
    stream: int
    capture: int | None
    """Number of the capture it was allocated in."""
    uses: set[int] = field(default_factory=set)


@dataclass
class Reader:
    """Freed memory, until each of these streams has finished so much; its next owner may be ordered after them."""

    address: int
    size: int
    moments: dict[int, int]
    heir: int | None


class World:
    """An allocator on a simulated device, and its invariants."""

    def __init__(self, device: Any = None) -> None:
        self.sim = SimulatedDevice(CAPACITY)
        self.alloc = make_allocator(self.sim if device is None else device(self.sim), settings=SETTINGS)
        self.blocks: list[Block] = []
        self.readers: list[Reader] = []
        self.postponed: list[Block] = []
        self.launched = dict.fromkeys(STREAMS, 0)
        self.finished = dict.fromkeys(STREAMS, 0)
        self.capturing: int | None = None  # the stream
        self.captures = 0

    def malloc(self, size: int, stream: int) -> None:
        address = self.alloc.malloc(size, stream)
        self.drop_readers()
        for reader in self.readers:
            assert reader.address != address or reader.heir == stream, "a stream still works with this memory"
        assert all(block.address != address for block in self.blocks + self.postponed)
        self.readers = [reader for reader in self.readers if reader.address != address]
        self.blocks.append(Block(address, size, stream, self.captures if stream == self.capturing else None))

    def use(self, block: Block, stream: int) -> None:
        self.alloc.record_stream(block.address, stream)
        if stream != block.stream:
            block.uses.add(stream)

    def free(self, block: Block) -> None:
        self.alloc.free(block.address)
        self.blocks.remove(block)
        if self.capturing is not None and block.capture != self.captures:
            self.postponed.append(block)
        else:
            self.note_free(block)

    def note_free(self, block: Block) -> None:
        if block.capture is None:
            moments = {stream: self.launched[stream] for stream in {block.stream, *block.uses}}
            self.readers.append(Reader(block.address, block.size, moments, None if block.uses else block.stream))

    def catch_up(self) -> None:
        for block in self.postponed:
            self.note_free(block)
        self.postponed.clear()

    def drop_readers(self) -> None:
        self.readers = [
            reader for reader in self.readers
            if any(self.finished[stream] < tick for stream, tick in reader.moments.items())
        ]  # fmt: skip

    def launch(self, stream: int) -> None:
        self.sim.launch(stream)
        self.launched[stream] += stream != self.capturing

    def finish(self, stream: int) -> None:
        self.sim.finish(stream)
        self.finished[stream] = self.launched[stream]

    def empty_cache(self) -> None:
        self.alloc.empty_cache()
        self.finished.update(self.launched)

    def begin_capture(self, stream: int) -> None:
        capture = self.sim.begin_capture(stream)
        self.alloc.pools.begin_allocate_to_pool(POOL, capture=capture)
        self.capturing = stream
        self.captures += 1

    def end_capture(self) -> None:
        stream, self.capturing = self.capturing, None
        try:
            self.alloc.pools.join_capture(stream)
        finally:
            self.end_device_capture(stream)
            self.alloc.pools.end_allocate_to_pool(POOL)
            self.catch_up()

    def end_device_capture(self, stream: int | None) -> None:
        """Even if the device refuses to end it, or the capture was invalidated."""
        self.sim.refuse_calls(0)
        with suppress(DeviceError):
            self.sim.end_capture(stream)

    def check(self) -> None:
        self.alloc.inspection.check_invariants()
        for block in self.blocks:
            assert self.alloc.inspection.base_allocation(block.address) == (block.address, block.size)

    def wind_up(self) -> None:
        """When nothing is in use, everything returns to the device."""
        if self.capturing is not None:
            self.end_capture()
        for block in list(self.blocks):
            self.alloc.free(block.address)
            self.blocks.remove(block)
        self.alloc.empty_cache()
        self.check()
        assert Probe(self.sim).ordered_usage()[::2] == (0, 0)
        assert self.sim.used == 0


# Any order.


class DriverPoolMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()

    @rule(size=st.sampled_from((1, 512, 1000, MIB, 3 * MIB, 20 * MIB, CAPACITY)), stream=st.sampled_from(STREAMS))
    def malloc(self, size: int, stream: int) -> None:
        try:
            self.world.malloc(size, stream)
        except OutOfMemoryError as error:
            assert error.facts.requested == size
            assert error.facts.allocated == sum(b.size for b in self.world.blocks + self.world.postponed)

    @precondition(lambda self: self.world.readers)
    @rule(data=st.data(), stream=st.sampled_from(STREAMS))
    def malloc_again(self, data: st.DataObject, stream: int) -> None:
        """As a block freed earlier whose memory fits."""
        self.malloc(data.draw(st.sampled_from(self.world.readers), "freed").size, stream)

    @precondition(lambda self: self.world.blocks)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.world.free(data.draw(st.sampled_from(self.world.blocks), "block"))

    @precondition(lambda self: self.world.blocks and self.world.capturing is None)
    @rule(data=st.data(), stream=st.sampled_from(STREAMS))
    def use(self, data: st.DataObject, stream: int) -> None:
        self.world.use(data.draw(st.sampled_from(self.world.blocks), "block"), stream)
        self.world.launch(stream)

    @rule(stream=st.sampled_from(STREAMS))
    def launch(self, stream: int) -> None:
        self.world.launch(stream)

    @rule(stream=st.sampled_from(STREAMS))
    def finish(self, stream: int) -> None:
        self.world.finish(stream)

    @precondition(lambda self: self.world.capturing is None)
    @rule(stream=st.sampled_from(STREAMS[1:]))
    def begin_capture(self, stream: int) -> None:
        self.world.begin_capture(stream)

    @precondition(lambda self: self.world.capturing is not None)
    @rule()
    def end_capture(self) -> None:
        self.world.end_capture()

    @rule()
    def empty_cache(self) -> None:
        self.world.empty_cache()

    @rule(limit=st.sampled_from((None, None, 1000, 4 * MIB, CAPACITY)))
    def limit(self, limit: int | None) -> None:
        self.world.alloc.limit = limit

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.wind_up()


TestDriverPoolMachine = DriverPoolMachine.TestCase
TestDriverPoolMachine.settings = settings(max_examples=some(100), stateful_step_count=40, deadline=None)


# Any call refused.

LIFE: list[tuple[Any, ...]] = [
    ("malloc", MIB, 5),
    ("malloc", 1000, 5),
    ("malloc", MIB, 0),
    ("use", 0, 7),
    ("use", 0, 0),
    ("launch", 7),
    ("free", 0),
    ("malloc", MIB, 5),
    ("finish", 7),
    ("malloc", MIB, 7),
    ("free", 0),
    ("empty_cache",),
    ("malloc", CAPACITY, 0),
    ("begin_capture", 5),
    ("malloc", MIB, 5),
    ("malloc", MIB, 0),
    ("free", 0),
    ("free", -2),
    ("end_capture",),
    ("malloc", 20 * MIB, 7),
    ("use", -1, 5),
    ("free", -1),
    ("malloc", 1, 0),
    ("empty_cache",),
]


def live(world: World) -> None:
    """The sequence above; a refused step changes neither the model nor the records."""
    for name, *arguments in LIFE:
        if name == "end_capture" and world.capturing is None:
            continue
        if name in ("use", "free"):
            if not world.blocks:
                continue
            position = arguments[0]
            arguments[0] = world.blocks[max(-len(world.blocks), min(position, len(world.blocks) - 1))]
        with suppress(AllotmentError):
            getattr(world, name)(*arguments)
        if name == "begin_capture" and world.capturing is None:
            with suppress(AllotmentError):  # it did not even begin
                world.end_device_capture(*arguments)
        world.alloc.inspection.check_invariants()


@pytest.mark.parametrize("out_of_memory", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_any_call_to_the_device_may_be_refused(out_of_memory: bool, times: int) -> None:
    undisturbed = World()
    before = sum(undisturbed.sim.calls.values())
    live(undisturbed)
    undisturbed.wind_up()
    count = sum(undisturbed.sim.calls.values()) - before
    assert count > 40
    for number in range(count):
        world = World()
        world.sim.refuse_calls(times, number, out_of_memory=out_of_memory)
        live(world)
        world.sim.refuse_calls(0)
        world.wind_up()


@pytest.mark.parametrize("operation", ["stream_create", "memory_info"])
def test_an_allocator_that_cannot_be_made_leaves_nothing(operation: str) -> None:
    sim = SimulatedDevice(CAPACITY)
    sim.refuse(operation, out_of_memory=False)
    with pytest.raises(DeviceError, match=operation):
        make_allocator(sim, settings=SETTINGS)
    assert type(make_allocator(sim, settings=SETTINGS)).__name__ == "AsyncAllocator"


def test_what_a_device_in_python_raised_is_the_cause() -> None:
    world = World(faulty(OrderedRelay))
    device: Any = world.alloc.device
    planted = OSError("planted")
    address = world.alloc.malloc(MIB, 5)
    world.alloc.record_stream(address, 7)
    start = device.calls
    for number, method in enumerate(("event_create", "event_record", "stream_wait"), start + 1):
        device.calls = start
        device.faults = lambda called, _, at=number: planted if called == at else None
        with pytest.raises(DeviceError, match=method) as caught:
            world.alloc.free(address)
        assert caught.value.__cause__ is planted
    device.faults = lambda number, method: None
    world.alloc.free(address)
    world.wind_up()


# Many threads.


@pytest.mark.threads
def test_threads_never_see_each_others_memory() -> None:
    sim = SimulatedDevice(1 << 30)
    alloc = make_allocator(sim, settings=SETTINGS, limit=512 * MIB)
    live: dict[int, int] = {}
    wrong: list[BaseException] = []
    starting = threading.Barrier(6)

    def work(number: int) -> None:
        choose = random.Random(number)
        mine: list[int] = []
        starting.wait()
        try:
            for _ in range(5000):
                if len(mine) < 20 and choose.random() < 0.55:
                    with suppress(OutOfMemoryError):
                        address = alloc.malloc(choose.choice((1, 700, 4096, MIB)), choose.choice(STREAMS))
                        assert live.setdefault(address, number) == number
                        mine.append(address)
                elif mine:
                    address = mine.pop(choose.randrange(len(mine)))
                    if choose.random() < 0.5:
                        alloc.record_stream(address, choose.choice((5, 7, 9)))
                    del live[address]
                    alloc.free(address)
                if choose.random() < 0.02:
                    alloc.stats()
                    alloc.empty_cache()
            for address in mine:
                del live[address]
                alloc.free(address)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    alloc.inspection.check_invariants()
    alloc.empty_cache()
    assert sim.used == 0


@pytest.mark.threads
def test_one_of_many_threads_frees_a_block() -> None:
    alloc = make_allocator(SimulatedDevice(CAPACITY), settings=SETTINGS)
    for _ in range(200):
        address = alloc.malloc(MIB)
        starting = threading.Barrier(3)
        freed = []

        def free(address: int = address, starting: threading.Barrier = starting, freed: list[int] = freed) -> None:
            starting.wait()
            with suppress(AllotmentError):
                alloc.free(address)
                freed.append(1)

        threads = [threading.Thread(target=free) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert freed == [1]
    alloc.inspection.check_invariants()


@pytest.mark.threads
def test_threads_may_free_while_a_capture_comes_and_goes() -> None:
    alloc = make_allocator(SimulatedDevice(1 << 30), settings=SETTINGS)
    sim: Any = alloc.device
    stop = threading.Event()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                alloc.free(alloc.malloc(4096, 9))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for _ in range(200):
            capture = sim.begin_capture(5)
            alloc.pools.begin_allocate_to_pool(POOL, capture=capture)
            alloc.free(alloc.malloc(MIB, 5))
            alloc.pools.join_capture(5)
            sim.end_capture(5)
            alloc.pools.end_allocate_to_pool(POOL)
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    alloc.empty_cache()
    assert sim.used == 0
    alloc.inspection.check_invariants()
