"""The whole allocator on devices written in Python: with real memory, with streams, and with methods that raise."""

import contextlib
import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from allotment import Allocator, DeviceError, OutOfMemoryError
from helpers.examples import load_example
from helpers.faulty import faulty, no_faults
from helpers.queue_device import QueueDevice
from helpers.workload import Workload

MIB = 1 << 20
# In a file on a disk, the first touch of a page takes a millisecond.
DIRECTORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
SETTINGS = {"plain": "", "expandable": "expandable_segments:True"}

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="the file device maps memory as POSIX systems do")


@pytest.fixture
def file_device():
    device = load_example("file_device").FileDevice(96 * MIB, DIRECTORY)
    yield device
    device.close()


def used(device):
    free, total = device.memory_info()
    return total - free


# Real memory.


@needs_posix
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_what_is_written_is_there_while_others_come_and_go(file_device, settings):
    allocator = Allocator(file_device, settings=settings)
    kept = [allocator.empty(3 * MIB) for _ in range(4)]
    for number, buffer in enumerate(kept):
        memoryview(buffer)[:] = bytes([number]) * len(buffer)
    for _ in range(10):
        memoryview(allocator.empty(5 * MIB))[:] = b"\xff" * (5 * MIB)
    for number, buffer in enumerate(kept):
        assert bytes(buffer) == bytes([number]) * len(buffer)
    allocator.inspection.check_invariants()


@needs_posix
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_freed_memory_is_cached_and_returns_when_asked(file_device, settings):
    allocator = Allocator(file_device, settings=settings)
    address = allocator.malloc(30 * MIB)
    allocator.free(address)
    assert used(file_device) >= 30 * MIB
    assert allocator.malloc(30 * MIB) == address
    allocator.free(address)
    allocator.empty_cache()
    assert used(file_device) == 0


@needs_posix
def test_an_expandable_segment_grows_where_it_is(file_device):
    allocator = Allocator(file_device, settings="expandable_segments:True")
    first = allocator.empty(20 * MIB)
    memoryview(first)[:5] = b"first"
    second = allocator.empty(20 * MIB)
    assert second.address == first.address + 20 * MIB
    assert bytes(memoryview(first)[:5]) == b"first"


@needs_posix
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_deleted_allocator_releases_everything(file_device, settings):
    allocator = Allocator(file_device, settings=settings)
    allocator.free(allocator.malloc(30 * MIB))
    del allocator
    assert used(file_device) == 0


def test_a_device_with_allocate_and_free_is_enough():
    program = """
        import allotment

        class Minimal(allotment.Backend):
            def allocate(self, size, stream):
                return 1 << 30

            def free(self, address, size):
                pass

        allocator = allotment.Allocator(Minimal())
        address = allocator.malloc(1000)
        assert address == 1 << 30
        allocator.free(address)
        allocator.empty_cache()
    """
    # In a separate process: an operation that is missing from a contract table ends the process.
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


# Refusals.


@needs_posix
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_out_of_memory_is_chained_to_the_devices_own_words(file_device, settings):
    allocator = Allocator(file_device, settings=settings)
    kept = allocator.empty(50 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(60 * MIB)
    assert type(caught.value.__cause__) is MemoryError
    assert "left in the file" in str(caught.value.__cause__)
    assert caught.value.facts.device == "file"
    assert caught.value.facts.device_total == 96 * MIB
    allocator.inspection.check_invariants()
    del kept
    allocator.free(allocator.malloc(60 * MIB))


@needs_posix
def test_the_cache_is_released_before_a_request_fails(file_device):
    allocator = Allocator(file_device)
    allocator.free(allocator.malloc(50 * MIB))
    assert allocator.malloc(60 * MIB) != 0


@pytest.mark.parametrize(
    "error", [OSError("cable pulled"), KeyboardInterrupt(), StopIteration(), SystemExit(1)], ids=repr
)
def test_a_device_failure_is_reported_with_its_reason_and_the_device_works_on(error):
    device = faulty(QueueDevice)()
    allocator = Allocator(device)
    device.faults = lambda number, method: error if method == "allocate" else None
    with pytest.raises(DeviceError, match="queue: allocate failed") as caught:
        allocator.malloc(1000)
    assert caught.value.__cause__ is error
    allocator.inspection.check_invariants()
    device.faults = no_faults
    allocator.free(allocator.malloc(1000))


def test_a_device_that_fails_at_once_makes_no_allocator():
    device = faulty(QueueDevice)()
    device.faults = lambda number, method: OSError("not plugged in")
    with pytest.raises(DeviceError, match="memory_info failed: OSError: not plugged in"):
        Allocator(device)


# Streams.


def test_a_block_that_another_stream_uses_is_not_reused_before_that_is_done():
    device = QueueDevice()
    allocator = Allocator(device)
    stream = device.stream_create()
    address = allocator.malloc(1000)
    work = device.hold(stream)
    allocator.record_stream(address, stream)
    allocator.free(address)
    other = allocator.malloc(1000)
    assert other != address
    work.release()
    assert allocator.malloc(1000) == address


def test_without_events_every_stream_counts_as_finished():
    nothing = dict.fromkeys(
        ["event_create", "event_destroy", "event_record", "event_query", "event_synchronize", "stream_query",
         "stream_synchronize", "stream_wait", "device_synchronize"]
    )  # fmt: skip
    device = type("Eventless", (QueueDevice,), nothing)()
    allocator = Allocator(device)
    address = allocator.malloc(1000)
    allocator.record_stream(address, 7)
    allocator.free(address)
    assert allocator.malloc(1000) == address


# Locks.


@pytest.mark.threads
@needs_posix
def test_threads_that_miss_the_cache_do_not_lock_each_other_out(file_device):
    allocator = Allocator(file_device)
    failures = []

    def work(seed):
        choose = random.Random(seed)
        try:
            for _ in range(100):
                buffer = allocator.empty(choose.randrange(1, 4 * MIB))
                memoryview(buffer)[:1] = bytes([seed])
                if choose.random() < 0.3:
                    allocator.empty_cache()
                assert memoryview(buffer)[0] == seed
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "locked out"
    assert failures == []
    allocator.inspection.check_invariants()


def test_a_buffer_that_dies_inside_a_method_is_freed_afterwards():
    class Collecting(QueueDevice):
        def allocate(self, size, stream):
            dying.clear()
            return super().allocate(size, stream)

    dying = []
    allocator = Allocator(Collecting())
    dying.append(allocator.empty(1000))
    address = dying[0].address
    allocator.malloc(50 * MIB)
    assert dying == []
    assert allocator.malloc(1000) == address
    allocator.inspection.check_invariants()


def test_a_method_that_requests_memory_from_its_own_allocator_gets_an_error():
    class Greedy(QueueDevice):
        def allocate(self, size, stream):
            return allocator.malloc(size)

    allocator = Allocator(Greedy())
    with pytest.raises(DeviceError, match="called from inside itself"):
        allocator.malloc(1000)
    allocator.inspection.check_invariants()


def test_a_device_collected_together_with_its_allocator_gets_its_memory_back():
    called = []

    class Local(QueueDevice):
        def free(self, address, size):
            called.append(address)
            super().free(address, size)

    device = Local()
    device.allocator = Allocator(device)
    address = device.allocator.malloc(1000)
    device.allocator.free(address)
    alive = weakref.ref(device)
    del device, Local
    gc.collect()
    assert alive() is None
    assert called == [address]


# Any method may raise at any time.


FAULTS = [KeyError, MemoryError, KeyboardInterrupt]
WORLDS = [
    pytest.param("file", "", marks=needs_posix, id="file-plain"),
    pytest.param("file", "expandable_segments:True", marks=needs_posix, id="file-expandable"),
    pytest.param("queue", "", id="queue-plain"),
]


def faulty_device(kind):
    if kind == "queue":
        return faulty(QueueDevice)(96 * MIB)
    return faulty(load_example("file_device").FileDevice)(96 * MIB, DIRECTORY)


def assert_survives(workload, faults, steps):
    """Run a workload with faults and then without; every error names its fault, and no memory is lost."""
    device, planted = workload.device, []

    def plant(number, method):
        fault = faults(number, method)
        if fault is not None:
            planted.append(fault)
        return fault

    device.faults = plant
    workload.run(steps)
    device.faults = no_faults
    for error in workload.errors:
        if isinstance(error, DeviceError):
            assert error.__cause__ in planted
    workload.wind_up()
    assert used(device) == 0
    if hasattr(device, "close"):
        device.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("kind", "settings"), WORLDS)
def test_any_one_call_may_raise(kind, settings, fault):
    undisturbed = Workload(faulty_device(kind), settings, seed=1)
    first = undisturbed.device.calls + 1
    assert_survives(undisturbed, no_faults, steps=100)
    assert undisturbed.device.calls > first + 20
    for failing in range(first, undisturbed.device.calls + 1):
        workload = Workload(faulty_device(kind), settings, seed=1)
        assert_survives(workload, one_fault(failing, fault), steps=100)


def one_fault(at, kind):
    return lambda number, method: kind("planted") if number == at else None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kind", "settings"), WORLDS)
def test_many_calls_may_raise(kind, settings, seed):
    choose = random.Random(seed)

    def sometimes(number, method):
        if method == "chunk_release":  # see test_a_chunk_that_could_not_be_released_is_released_later
            return None
        return choose.choice(FAULTS)("planted") if choose.random() < 0.25 else None

    assert_survives(Workload(faulty_device(kind), settings, seed), sometimes, steps=150)


@needs_posix
def test_a_chunk_that_could_not_be_released_is_released_later():
    device = faulty_device("file")
    allocator = Allocator(device, settings="expandable_segments:True")
    allocator.free(allocator.malloc(1000))
    device.faults = lambda number, method: OSError("planted") if method == "chunk_release" else None
    with contextlib.suppress(DeviceError):
        allocator.empty_cache()
    device.faults = no_faults
    allocator.empty_cache()
    assert used(device) == 0


def test_a_free_put_off_and_then_refused_is_done_with_the_next_call():
    class Dropping(QueueDevice):
        refusals = 0

        def allocate(self, size, stream):
            dying.clear()  # a free from inside the engine, deferred until the engine is left
            return super().allocate(size, stream)

        def event_record(self, event, stream):
            if self.refusals:
                self.refusals -= 1
                raise OSError("not now")
            super().event_record(event, stream)

    dying = []
    device = Dropping()
    allocator = Allocator(device)
    stream = device.stream_create()
    for _ in range(3):
        dying.append(allocator.empty(1000))
        allocator.record_stream(dying[-1], stream)
    device.refusals = 2
    allocator.malloc(30 << 20)
    allocator.inspection.check_invariants()
    assert allocator.stats()["allocation.all.current"] == 1
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    assert len(allocator.inspection.pending_events()) == 0
