"""A program as users write it, for type checkers: `make lint` runs mypy on it, in strict mode. It never runs."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import allotment
from allotment import cpu, devices, entry, errors, metadata


def ten_lines_of_use() -> int:
    allocator = allotment.Allocator("host", limit="1GiB")
    assert_type(allocator, allotment.Allocator)
    buffer = allocator.empty(4_000_000)
    assert_type(buffer, allotment.Buffer)
    numbers: NDArray[np.float32] = np.frombuffer(buffer, np.float32)
    numbers[:] = 1.0
    view = memoryview(buffer)
    address = allocator.malloc(3_000_000)
    assert_type(address, int)
    allocator.free(address)
    assert_type(allocator.stats(), dict[str, int])
    assert_type(allocator.limit, int | None)
    allocator.limit = "2GiB"
    allocator.limits.memory_fraction = 0.5
    return len(buffer) + len(view)


def one_budget() -> dict[str, dict[str, int]]:
    assert_type(allotment.make_allocator("sim:1GiB"), allotment.Allocator | allotment.AsyncAllocator)
    return allotment.current("cuda:0").tenants()


def streams(allocator: allotment.Allocator) -> None:
    producer, consumer = allotment.Stream(allocator), allotment.Stream(allocator.device)
    address = allocator.malloc(1024, producer)
    producer.submit(ctypes.memmove, address, b"hello", 6)
    event = producer.record()
    assert_type(event, allotment.Event)
    consumer.wait(event)
    consumer.submit(lambda: print(ctypes.string_at(address)))
    allocator.record_stream(address, consumer)
    allocator.free(address)
    consumer.synchronize()
    assert_type(producer.query(), bool)


def pools_and_graphs(allocator: allotment.Allocator, stream: allotment.Stream) -> None:
    with allocator.pool() as pool:
        assert_type(pool, allotment.Pool)
        address = allocator.malloc(1024)
        state = pool.checkpoint()
        assert_type(state, allotment.PoolState)
        allocator.free(address)
        freed, created = pool.restore(state)
        assert_type(freed, list[int])
        assert_type(created, list[int])
    with allotment.capture(stream) as graph:
        allocator.malloc(512, stream)
    graph.replay()


def out_of_memory(allocator: allotment.Allocator) -> int:
    try:
        return allocator.malloc(1 << 40)
    except errors.OutOfMemoryError as error:
        assert_type(error.facts, allotment.OutOfMemoryFacts)
        return error.facts.largest_free


class FileDevice(allotment.Backend):
    """A device with the two operations that every device has."""

    def __init__(self) -> None:
        super().__init__(name="file", index=3)
        self.next = 1 << 20

    def allocate(self, size: int, stream: int) -> int:
        self.next += size
        return self.next - size

    def free(self, address: int, size: int) -> None:
        pass


def devices_and_tools() -> dict[str, Any]:
    allocator = allotment.Allocator(FileDevice())
    simulated = allotment.SimulatedDevice(1 << 30)
    assert_type(simulated.used, int)
    other = allotment.Allocator(simulated, settings=allotment.Settings(expandable_segments=True))
    host: devices.Device = devices.HostDevice()
    with open("snapshot.pickle", "wb") as file:
        pickle.dump(other.snapshot(), file)
    assert_type(entry.entry_points_address(allocator), int)
    metadata.set_user_metadata("step 3")
    cache = cpu.CachingAllocator()
    with cpu.caching(cache):
        assert_type(cpu.allocate(1024), int)
        numbers: NDArray[np.uint8] = np.frombuffer(cpu.empty("1MiB"), np.uint8)
    assert_type(allotment.Buffer(cache, 4096, 64).size, int)
    numbers[:] = cache.array(1 << 20, "uint8")
    return {host.name: allocator.tenants()}
