"""Dense placement with many streams: no request gets memory too early or waits for an unrelated stream."""

from __future__ import annotations

import random
import sys
from collections import defaultdict

import pytest

from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import OutOfMemoryError
from helpers.child import output_of
from helpers.effort import some
from helpers.engine import GIB, KIB, MIB
from helpers.relay_device import RelayDevice

UNIT = 64 * KIB
"""All sizes here are multiples of it."""

Times = dict[int, int]
"""By stream: how much of its work."""


class WitnessedDevice(RelayDevice):
    """A device that derives the order of work only from the calls that it gets."""

    def __init__(self, capacity: int) -> None:
        super().__init__(SimulatedDevice(capacity))
        self.before: dict[int, Times] = defaultdict(dict)  # stream: the work that precedes its next work
        self.at_event: dict[int, Times] = {}
        self.stream_of: dict[int, int] = {}  # the stream on which an event was last recorded
        self.finished: Times = {}
        self.chunk_at: dict[int, tuple[int, int]] = {}  # unit of address -> chunk, unit in it
        self.used: dict[tuple[int, int], Times] = {}  # the last uses of each unit of memory
        self.waits = 0

    def work(self, stream: int) -> int:
        self.before[stream][stream] = self.before[stream].get(stream, 0) + 1
        self.target.launch(stream)
        return self.before[stream][stream]

    def finish(self, stream: int) -> None:
        self.target.finish(stream)
        self.finished[stream] = self.before[stream].get(stream, 0)

    def take(self, address: int, size: int, stream: int) -> None:
        """Memory is in use on a stream from now on: its previous use must come before."""
        for place in self._places(address, size):
            for other, time in self.used.get(place, {}).items():
                known = max(self.before[stream].get(other, 0), self.finished.get(other, 0))
                assert time <= known, f"stream {stream} has memory that stream {other} may still use"

    def give(self, address: int, size: int, times: Times) -> None:
        for place in self._places(address, size):
            self.used[place] = times

    def _places(self, address: int, size: int) -> list[tuple[int, int]]:
        return [self.chunk_at[at] for at in range(address // UNIT, (address + size) // UNIT)]

    def map(self, address: int, size: int, chunk: int) -> None:
        super().map(address, size, chunk)
        for i in range(size // UNIT):
            self.chunk_at[address // UNIT + i] = chunk, i

    def event_record(self, event: int, stream: int) -> None:
        super().event_record(event, stream)
        self.at_event[event] = dict(self.before[stream])
        self.stream_of[event] = stream

    def event_synchronize(self, event: int) -> None:
        super().event_synchronize(event)
        stream = self.stream_of[event]
        self.finished[stream] = max(self.at_event[event].get(stream, 0), self.finished.get(stream, 0))

    def stream_wait(self, stream: int, event: int) -> None:
        super().stream_wait(stream, event)
        self.waits += 1
        mine = self.before[stream]
        for other, time in self.at_event[event].items():
            mine[other] = max(time, mine.get(other, 0))

    def stream_synchronize(self, stream: int) -> None:
        super().stream_synchronize(stream)
        self.finish(stream)

    def device_synchronize(self) -> None:
        super().device_synchronize()
        for stream in list(self.before):
            self.finish(stream)


@pytest.mark.parametrize("streams", [3, 9, 80, 300])
@pytest.mark.parametrize("seed", range(some(4)))
def test_no_stream_has_memory_that_another_may_still_use(streams: int, seed: int) -> None:
    rng = random.Random(seed)
    device = WitnessedDevice(rng.choice((96, 400)) * MIB)
    views, reuse = rng.choice((1, 2, 8)), rng.choice(("0", "2", "off"))
    settings = f"placement:dense,dense_views:{views},dense_wait_reuse:{reuse},dense_slack:0"
    allocator = Allocator(device, settings=settings)
    live: list[tuple[int, int, int]] = []
    served = 0
    for _ in range(1500):
        draw = rng.random()
        stream = rng.randrange(streams)
        if draw < 0.5 and sum(size for _, size, _ in live) < 80 * MIB:
            size = rng.choice((1, 1, 2, 5, 16, 64, 100)) * UNIT
            try:
                address = allocator.malloc(size, stream)
            except OutOfMemoryError:
                continue
            served += 1
            device.take(address, size, stream)
            device.work(stream)
            live.append((address, size, stream))
        elif draw < 0.97 and live:
            address, size, stream = live.pop(rng.randrange(len(live)))
            times = {stream: device.work(stream)}
            for user in rng.sample(range(streams), k=rng.choice((0, 0, 0, 1, 2))):
                if user != stream:
                    times[user] = device.work(user)
                    allocator.record_stream(address, user)
            device.give(address, size, times)
            allocator.free(address)
        elif draw < 0.999:
            device.finish(stream)
        else:
            allocator.empty_cache()
    allocator.inspection.check_invariants()
    assert served > 300 and device.waits > 0 and allocator.stats()["dense.waits"] > 0


def in_waves(allocator: Allocator, streams: int, waves: int) -> None:
    """Every stream allocates, then every stream frees."""
    for _ in range(waves):
        live = [allocator.malloc(64 * KIB, stream) for stream in range(streams)]
        for address in live:
            allocator.free(address)


def test_a_request_waits_for_few_streams_however_many_there_are() -> None:
    allocator = Allocator(SimulatedDevice(GIB), settings="placement:dense")

    in_waves(allocator, 1000, 4)

    calls = allocator.device.calls
    assert 1000 < calls["stream_wait"] < 4 * 4000 and calls["event_record"] < 4 * 4000
    allocator.inspection.check_invariants()


@pytest.mark.parametrize(("streams", "waits"), [(100, 0), (600, 1)])
def test_among_many_streams_a_search_gives_up_sooner(streams: int, waits: int) -> None:
    """Forty places that another stream freed, then one that is ready: each look costs, and so does a wait."""
    device = SimulatedDevice(4 * GIB)
    allocator = Allocator(device, settings="placement:dense")
    for stream in range(3, streams):
        allocator.free(allocator.malloc(512, stream))
    owners = [1] * 40 + [2]
    places = [(allocator.malloc(MIB, stream), allocator.malloc(MIB)) for stream in owners]
    for place, _ in places:
        allocator.free(place)
    before = device.calls["stream_wait"]
    got = allocator.malloc(MIB, 2)
    assert device.calls["stream_wait"] - before == waits
    assert got == places[0 if waits else -1][0]
    allocator.inspection.check_invariants()


def test_a_stream_in_a_capture_costs_the_others_no_waits_in_vain() -> None:
    allocator = Allocator(SimulatedDevice(GIB), settings="placement:dense")
    in_waves(allocator, 200, 1)
    allocator.pools.begin_allocate_to_pool((9, 0), capture=allocator.device.begin_capture(100))
    waited = allocator.device.calls["stream_wait"]

    in_waves(allocator, 99, 3)

    assert allocator.device.calls["stream_wait"] < waited + 4 * 300
    allocator.inspection.check_invariants()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory of a process from /proc")
def test_host_memory_for_streams_grows_with_their_number_and_not_with_its_square() -> None:
    grown = output_of("""
        from allotment import Allocator
        from allotment._devices.simulated.device import SimulatedDevice

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096

        allocator = Allocator(SimulatedDevice(1 << 30), settings="placement:dense")
        before = resident()
        for _ in range(2):
            live = [allocator.malloc(65536, stream) for stream in range(3000)]
            for address in live:
                allocator.free(address)
        print(resident() - before)
    """)

    assert int(grown) < 3000 * 8 * KIB


# --- addresses --------------------------------------------------------------------------------------------------------


def test_an_allocator_that_holds_little_reserves_few_addresses() -> None:
    device = RelayDevice(SimulatedDevice(80 * GIB))
    allocator = Allocator(device, settings="placement:dense")
    allocator.malloc(100)
    assert device.held["ranges"] <= 20 * GIB
    allocator.pools.begin_allocate_to_pool((1, 0))
    allocator.malloc(100)
    assert device.held["ranges"] <= 40 * GIB


def test_an_arena_that_outgrows_its_first_addresses_can_still_hold_all_memory() -> None:
    device = SimulatedDevice(80 * GIB)
    allocator = Allocator(device, settings="placement:dense")
    blocks = [allocator.malloc(GIB) for _ in range(79)]
    assert allocator.stats()["reserved_bytes.all.current"] == 79 * GIB
    assert allocator.stats()["dense.regions"] == 2
    allocator.inspection.check_invariants()
    for block in blocks:
        allocator.free(block)
    allocator.empty_cache()
    assert device.used == 0


def test_with_few_addresses_left_an_arena_takes_what_it_needs() -> None:
    class Scarce(RelayDevice):
        def range_reserve(self, size: int, stream: int) -> int:
            if size > 64 * MIB:
                raise MemoryError("no more addresses")
            return super().range_reserve(size, stream)

    allocator = Allocator(Scarce(SimulatedDevice(GIB)), settings="placement:dense")
    blocks = [allocator.malloc(60 * MIB) for _ in range(10)]
    allocator.inspection.check_invariants()
    for block in blocks:
        allocator.free(block)
    allocator.inspection.check_invariants()


@pytest.mark.parametrize("settings", ["placement:dense", "expandable_segments:True"])
def test_a_shortage_of_addresses_is_not_reported_as_one_of_memory(settings: str) -> None:
    device = SimulatedDevice(GIB)
    allocator = Allocator(device, settings=settings)
    device.refuse("range_reserve", times=1000)
    with pytest.raises(OutOfMemoryError, match=r"Out of address space.*refused to reserve addresses") as raised:
        allocator.malloc(100)
    assert raised.value.facts.address_space
    device.refuse("range_reserve", times=0)
    allocator.malloc(100)
    with pytest.raises(OutOfMemoryError, match="Out of memory") as raised:
        allocator.malloc(2 * GIB)
    assert not raised.value.facts.address_space


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the addresses of a process")
def test_a_process_whose_addresses_are_limited_says_so() -> None:
    words = output_of(f"""
        import resource
        from allotment import Allocator
        from allotment.errors import OutOfMemoryError

        allocators = []
        resource.setrlimit(resource.RLIMIT_AS, ({20 * GIB}, resource.RLIM_INFINITY))
        try:
            while len(allocators) < 1000:
                allocators.append(Allocator("host", settings="placement:dense"))
                allocators[-1].malloc(256 << 20)
        except OutOfMemoryError as error:
            print(str(error).splitlines()[0])
    """)

    assert words.startswith("Out of address space")
