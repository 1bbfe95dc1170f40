"""Captured work on the host device, replayed while other streams allocate and free around it."""

from __future__ import annotations

import ctypes
import random
import threading

import numpy as np
import pytest

import allotment
from allotment._allocators.caching.pool import next_graph_pool_id
from allotment._devices.graphs import DeviceGraph, begin_capture, end_capture
from helpers.child import output_of

pytestmark = pytest.mark.threads

REPLAYS = 1_000
SIZE = 1 << 14


def array_at(address: int, size: int = SIZE) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


Live = list[tuple[int, int]]


def run_chain(allocator: allotment.Allocator, stream: allotment.Stream, result: int) -> None:
    """Submit result = 1 + 2 + 3, step by step, through temporaries that are freed on the way."""
    before = allocator.malloc(SIZE, stream)
    stream.submit(array_at(before).fill, 1)
    for addend in (2, 3):
        after = allocator.malloc(SIZE, stream)
        stream.submit(np.add, array_at(before), addend, array_at(after))
        allocator.free(before)
        before = after
    stream.submit(np.copyto, array_at(result), array_at(before))
    allocator.free(before)


def capture_chain(
    allocator: allotment.Allocator, stream: allotment.Stream, result: int, with_pool: bool
) -> allotment.Graph | DeviceGraph:
    """Capture the chain as a graph. Without a pool, only the device knows of the capture."""
    if with_pool:
        with allotment.capture(stream) as graph:
            run_chain(allocator, stream, result)
        return graph
    begin_capture(stream.device, stream)
    run_chain(allocator, stream, result)
    return end_capture(stream.device, stream)


def churn(allocator: allotment.Allocator, stream: allotment.Stream, live: Live, chance: random.Random) -> None:
    """Other requests meanwhile: allocate, fill, free."""
    for _ in range(4):
        block, value = allocator.malloc(SIZE, stream), chance.randrange(100, 256)
        stream.submit(array_at(block).fill, value)
        live.append((block, value))
    while len(live) > 8:
        allocator.free(live.pop(chance.randrange(len(live)))[0])


def wrong_replays(with_pool: bool) -> int:
    """Return after how many replays the result, or any other block, is wrong."""
    allocator = allotment.Allocator("host")
    streams = [allotment.Stream(allocator) for _ in range(3)]
    result = allocator.malloc(SIZE)
    graph = capture_chain(allocator, streams[0], result, with_pool)
    chance = random.Random(1)
    live: list[Live] = [[], [], []]
    wrong = 0
    for _ in range(REPLAYS):
        array_at(result).fill(0)
        for stream, blocks in zip(streams, live, strict=True):
            churn(allocator, stream, blocks, chance)
        graph.replay(streams[0])
        for stream in streams:
            stream.synchronize()
        wrong += not (array_at(result) == 6).all() or not all(
            (array_at(block) == value).all() for blocks in live for block, value in blocks
        )
    allocator.inspection.check_invariants()
    return wrong


def test_a_graph_replays_right_while_others_allocate_around_it() -> None:
    assert wrong_replays(with_pool=True) == 0


def test_without_its_private_pool_the_same_graph_overwrites_others() -> None:
    """Checks the test above."""
    assert wrong_replays(with_pool=False) > 0


def test_two_graphs_share_a_pool_and_its_memory() -> None:
    allocator = allotment.Allocator("host")
    stream = allotment.Stream(allocator)
    with allotment.capture(stream) as first:
        allocator.free(allocator.malloc(SIZE, stream))
    reserved = allocator.pools.reserved_bytes(first.pool)
    with allotment.capture(stream, pool=first) as second:
        allocator.free(allocator.malloc(SIZE, stream))
    assert second.pool == first.pool
    assert allocator.pools.use_count(first.pool) == 2
    assert allocator.pools.reserved_bytes(first.pool) == reserved
    first.reset()
    assert allocator.pools.reserved_bytes(second.pool) == reserved
    second.reset()
    with pytest.raises(allotment.PoolError):
        allocator.pools.use_count(first.pool)


def test_a_stream_that_waits_joins_the_capture_and_its_pool() -> None:
    allocator = allotment.Allocator("host")
    stream, side = allotment.Stream(allocator), allotment.Stream(allocator)
    with allotment.capture(stream) as graph:
        side.wait(stream.record())
        block = allocator.malloc(SIZE, side)
        side.submit(array_at(block).fill, 9)
        stream.wait(side.record())
    assert [segment["segment_pool_id"] for segment in allocator.history.segments(graph.pool)] == [graph.pool]
    array_at(block).fill(0)
    graph.replay()
    stream.synchronize()
    assert (array_at(block) == 9).all()


def test_a_capture_that_is_left_by_an_exception_leaves_nothing_behind() -> None:
    allocator = allotment.Allocator("host")
    stream = allotment.Stream(allocator)
    with pytest.raises(KeyError), allotment.capture(stream):
        allocator.free(allocator.malloc(SIZE, stream))
        raise KeyError
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    assert allocator.malloc(SIZE, stream)  # served by the default pool, events processed: routing has ended
    assert allocator.history.segments()[0]["segment_pool_id"] == (0, 0)


def test_a_capture_that_cannot_be_ended_leaves_nothing_behind() -> None:
    allocator = allotment.Allocator("host")
    stream, side = allotment.Stream(allocator), allotment.Stream(allocator)
    with pytest.raises(allotment.CaptureError), allotment.capture(stream):
        side.wait(stream.record())
        side.submit(int)
        allocator.free(allocator.malloc(SIZE, stream))
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    with allotment.capture(stream) as graph:
        stream.submit(int)
    graph.replay()
    stream.synchronize()


def test_an_id_taken_before_is_as_good_as_a_pool() -> None:
    allocator = allotment.Allocator("host")
    stream = allotment.Stream(allocator)
    number = next_graph_pool_id()
    with allotment.capture(stream, pool=number) as graph:
        allocator.free(allocator.malloc(SIZE, stream))
    assert graph.pool == number


def test_the_default_stream_cannot_be_captured() -> None:
    allocator = allotment.Allocator("host")
    with pytest.raises(allotment.CaptureError, match="default stream"):
        allotment.capture(allotment.Stream.default(allocator))


def test_a_graph_is_not_replayed_on_a_stream_of_another_device() -> None:
    printed = output_of("""
        import allotment
        one, other = allotment.Allocator("host"), allotment.Allocator("sim:1GiB")
        stream, mine, theirs = allotment.Stream(one), allotment.Stream(one), allotment.Stream(other)
        ran = []
        with allotment.capture(stream, allocator=one) as graph:
            stream.submit(ran.append, 1)
        for wrong in (theirs, allotment.Stream.default(other)):
            try:
                graph.replay(wrong)
            except allotment.StreamError as error:
                print("another device" in str(error))
        try:
            allotment.capture(stream, allocator=other)
        except allotment.CaptureError as error:
            print("another device" in str(error))
        for each in (stream, mine, allotment.Stream.default(one)):
            each.synchronize()
        print(ran)
        graph.replay(mine)
        mine.synchronize()
        print(ran)
    """)
    assert printed.splitlines() == ["True", "True", "True", "[]", "[1]"]


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
@pytest.mark.parametrize("joins", [False, True], ids=["another stream", "a joined stream"])
def test_memory_of_a_graph_returns_after_its_replays_wherever_they_run(settings: str, joins: bool) -> None:
    gate, ran = threading.Event(), []
    with allotment.Allocator("host", settings=settings) as allocator:
        stream, joined, other = (allotment.Stream(allocator) for _ in range(3))
        with allotment.capture(stream) as graph:
            joined.wait(stream.record())
            used = joined if joins else stream
            block = allocator.malloc(SIZE, used)
            used.submit(gate.wait, 0.1)  # only a reset that waits for the graph takes that long
            used.submit(ran.append, True)
            allocator.free(block)
            stream.wait(joined.record())
        graph.replay(stream if joins else other)
        graph.reset()
        assert ran and allocator.stats()["reserved_bytes.all.current"] == 0
        gate.set()
