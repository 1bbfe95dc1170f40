"""Random programs on host streams from several threads at once, checked against the guaranteed order."""

import ctypes
import random
import threading
from dataclasses import dataclass, field

import pytest

from allotment._core.contract.probe import Probe
from allotment._devices.host.device import HostDevice
from allotment._devices.streams import Event, Stream

pytestmark = pytest.mark.threads

THREADS = 4
STEPS = 600


@dataclass
class Program:
    """Shared by all threads: events to wait for, and the observed work."""

    device: HostDevice
    events: list[tuple[Event, "Item | None"]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Item:
    """One function on a stream; when it runs, all work ordered before it must have run."""

    def __init__(self, program: Program, after: list["Item"]) -> None:
        self.program = program
        self.after = after
        self.runs = 0

    def __call__(self) -> None:
        if any(item.runs == 0 for item in self.after):
            self.program.wrong.append("an item ran before one that it comes after")
        self.runs += 1


class Lane:
    """A stream with the work that its next work is ordered after."""

    def __init__(self, device: HostDevice) -> None:
        self.stream = Stream(device)
        self.last: list[Item] = []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_programs_keep_every_promised_order(seed):
    print(f"seed {seed}")
    program = Program(HostDevice())
    items: list[list[Item]] = [[] for _ in range(THREADS)]
    failures = []

    def run(number: int) -> None:
        try:
            run_thread(program, random.Random(seed * 1000 + number), items[number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Probe(program.device).device_synchronize()
    assert failures == []
    assert program.wrong == []
    assert {item.runs for own in items for item in own} == {1}


def run_thread(program: Program, rng: random.Random, items: list[Item]) -> None:
    lanes = [Lane(program.device) for _ in range(3)]
    for _ in range(STEPS):
        at = rng.randrange(len(lanes))
        lane, action = lanes[at], rng.random()
        if action < 0.5:
            item = Item(program, lane.last)
            items.append(item)
            lane.last = [item]
            lane.stream.submit(item)
        elif action < 0.65:
            program.events.append((lane.stream.record(), lane.last[-1] if lane.last else None))
        elif action < 0.85 and program.events:
            event, item = rng.choice(program.events)
            lane.stream.wait(event)
            if item is not None:
                lane.last = [*lane.last, item]
        elif action < 0.90 and program.events:
            event, item = rng.choice(program.events)
            if event.query() and item is not None and item.runs == 0:
                program.wrong.append("an event was done before its work")
        elif action < 0.93 and program.events:
            event, item = rng.choice(program.events)
            event.synchronize()
            if item is not None and item.runs == 0:
                program.wrong.append("an event was waited for, and its work was not done")
        elif action < 0.95:
            lane.stream.synchronize()
            if any(item.runs == 0 for item in lane.last):
                program.wrong.append("a stream was waited for, and its work was not done")
        elif action < 0.97:
            lane.stream.destroy()
            lanes[at] = Lane(program.device)
        else:
            capture_and_replay(program, lane, rng)


def capture_and_replay(program: Program, lane: Lane, rng: random.Random) -> None:
    lane.stream.synchronize()
    counts = [0] * 3
    side = Stream(program.device)

    def count(at: int) -> None:
        counts[at] += 1

    program.device.begin_capture(lane.stream)
    lane.stream.submit(count, 0)
    side.wait(lane.stream.record())
    side.submit(count, 1)
    lane.stream.wait(side.record())
    lane.stream.submit(count, 2)
    graph = program.device.end_capture(lane.stream)
    side.destroy()
    replays = rng.randint(1, 3)
    for _ in range(replays):
        graph.replay(lane.stream)
    lane.stream.synchronize()
    if counts != [replays] * 3:
        program.wrong.append(f"{replays} replays ran the captured functions {counts} times")


@pytest.mark.parametrize("seed", [4, 5])
def test_copies_in_stream_order_carry_a_value_through_all_streams(seed):
    """Each stream copies what the previous one left, after waiting for it; nothing else orders the copies."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    device = HostDevice()
    probe, size = Probe(device), 1 << 16
    streams = [Stream(device) for _ in range(8)]
    buffers = [probe.segment_allocate(size) for _ in streams]
    for round_ in range(1, 30):
        ctypes.memset(buffers[0], round_, size)
        rng.shuffle(streams)
        event = None
        for at, stream in enumerate(streams[1:], start=1):
            if event is not None:
                stream.wait(event)
            probe.copy(buffers[at], buffers[at - 1], size, device.index, device.index, stream.handle)
            event = stream.record()
        event.synchronize()
        for buffer in buffers:
            assert ctypes.string_at(buffer, size) == bytes([round_]) * size
    for buffer in buffers:
        probe.segment_free(buffer, size)


def test_threads_map_and_unmap_in_shared_ranges_at_once():
    device = HostDevice()
    probe, page, count = Probe(device), 1 << 16, 8
    base = probe.range_reserve(THREADS * count * page)
    failures = []

    def run(number: int) -> None:
        rng = random.Random(number)
        own = base + number * count * page
        try:
            for _ in range(100):
                chunks = [probe.chunk_create(page) for _ in range(rng.randint(1, count))]
                for at, chunk in enumerate(chunks):
                    probe.map(own + at * page, page, chunk)
                probe.set_access(own, len(chunks) * page, device.index)
                ctypes.memset(own, number + 1, len(chunks) * page)
                assert ctypes.string_at(own, len(chunks) * page) == bytes([number + 1]) * (len(chunks) * page)
                probe.unmap(own, len(chunks) * page)
                for chunk in chunks:
                    probe.chunk_release(chunk, page)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert device.used == 0
    probe.range_release(base, THREADS * count * page)
