"""Eight threads on one pluggable allocator: every pointer is freed once, with the arguments of its request."""

import random
import threading

import pytest

from allotment import Allocator, PluggableAllocator
from helpers import plugged_memory
from helpers.plugged_memory import Memory

pytestmark = pytest.mark.threads
THREADS = 8


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return plugged_memory.build(tmp_path_factory.mktemp("plug"))


def run_in_threads(function):
    errors = []
    barrier = threading.Barrier(THREADS)

    def run(number):
        try:
            barrier.wait()
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def exchange(plug, rounds):
    """Each thread allocates, frees its own blocks and those of others, and reads the records."""
    shared, lock = [], threading.Lock()

    def work(number):
        chance = random.Random(number)
        for step in range(rounds):
            address = plug.malloc(chance.randrange(1, 5000), number, device=number % 3)
            with lock:
                shared.append(address)
                mine = shared.pop(chance.randrange(len(shared))) if chance.random() < 0.9 else None
            if mine is not None:
                plug.free(mine)
            if step % 100 == 0:
                assert plug.stats(number % 3)["allocated_bytes.all.current"] >= 0
                assert len(plug.snapshot()["segments"]) <= rounds * THREADS

    run_in_threads(work)
    for address in shared:
        plug.free(address)
    for device in range(3):
        stats = plug.stats(device)
        assert stats["allocated_bytes.all.current"] == stats["allocation.all.current"] == 0
    return sum(plug.stats(device)["num_device_alloc"] for device in range(3))


def test_c_functions_on_threads(library):
    plug = PluggableAllocator.from_library(library.path, "counted_alloc", "counted_free")
    before = library.count("allocs"), library.count("frees"), library.count("bytes_out")
    assert exchange(plug, rounds=1500) == THREADS * 1500
    assert library.count("allocs") - before[0] == library.count("frees") - before[1] == THREADS * 1500
    assert library.count("bytes_out") == before[2]
    assert library.count("wrong_frees") == 0


def test_python_functions_on_threads():
    memory = Memory()
    lock = threading.Lock()

    def alloc(*asked):
        with lock:
            return memory.alloc(*asked)

    def free(*reported):
        with lock:
            memory.free(*reported)

    plug = PluggableAllocator(alloc, free)
    assert exchange(plug, rounds=200) == THREADS * 200
    asked = sorted(call[1:] for call in memory.calls if call[0] == "alloc")
    assert asked == sorted(call[2:] for call in memory.calls if call[0] == "free")


@pytest.mark.parametrize("kind", ["c", "python"])
def test_pools_on_threads_lend_from_one_plug(library, kind):
    if kind == "c":
        plug = PluggableAllocator(library["counted_alloc"], library["counted_free"])
    else:
        memory = Memory()
        plug = PluggableAllocator(memory.alloc, memory.free)
    allocators = [Allocator("sim:1GiB", settings="") for _ in range(2)]

    def work(number):
        alloc = allocators[number % 2]
        for _ in range(40):
            pool = alloc.pool(allocator=plug)
            with pool:
                addresses = [alloc.malloc(size, number) for size in (1, 3 << 20, 700)]
            for address in addresses:
                alloc.free(address)
            pool.close()

    run_in_threads(work)
    for alloc in allocators:
        alloc.inspection.check_invariants()
    assert plug.stats()["segment.all.current"] == 0
    assert plug.stats()["num_device_alloc"] == THREADS * 40 * 2
    assert library.count("wrong_frees") == 0
