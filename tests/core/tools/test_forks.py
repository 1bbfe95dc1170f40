"""A fork while other threads are inside: the child has none of these threads, and no lock is held in it."""

import os
import signal
import threading

import pytest

from allotment import Allocator, Backend
from helpers.child import PATIENCE, output_of
from helpers.forked import fork_past_python, goes_well_in_child

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
MIB = 1 << 20


class SlowDevice(Backend):
    """Serves a request when the test says so. A thread that waits for this is inside the allocator."""

    def __init__(self):
        super().__init__(name="slow")
        self.asked, self.served = threading.Event(), threading.Event()
        self.next = 1 << 32

    def allocate(self, size, stream):
        self.asked.set()
        assert self.served.wait(60)
        self.next += size
        return self.next - size

    def free(self, address, size):
        pass


@pytest.fixture
def alarm():
    """Fork. A child that hangs is killed, which fails the test."""
    return lambda: signal.alarm(PATIENCE)


def test_a_fork_waits_for_a_thread_inside(alarm):
    device = SlowDevice()
    allocator = Allocator(device)
    inside = threading.Thread(target=allocator.malloc, args=(MIB,))
    inside.start()
    assert device.asked.wait(60)
    later = threading.Timer(0.2, device.served.set)
    later.start()

    def use():
        alarm()
        allocator.free(allocator.malloc(3 * MIB))
        allocator.inspection.check_invariants()

    assert goes_well_in_child(use)
    inside.join()
    later.join()
    use_here = allocator.malloc(MIB)
    allocator.free(use_here)
    allocator.inspection.check_invariants()


def test_a_callback_may_fork(alarm):
    allocator = Allocator("sim:1GiB")
    outcomes = []

    def fork():
        outcomes.append(goes_well_in_child(alarm))
        return False

    allocator.limits.add_free_memory_callback(fork)
    allocator.malloc(MIB)
    assert outcomes == [True]
    allocator.limits.remove_free_memory_callback(fork)
    allocator.malloc(30 * MIB)
    allocator.inspection.check_invariants()


def test_threads_that_allocate_and_fork_leave_every_child_whole(alarm):
    allocators = [Allocator("sim:1GiB", settings="release_lock_on_cudamalloc:True") for _ in range(3)]
    stop = threading.Event()

    def work(allocator):
        while not stop.is_set():
            for size in (512, 3 * MIB, 30 * MIB):
                allocator.free(allocator.malloc(size))
            allocator.empty_cache()

    threads = [threading.Thread(target=work, args=(allocator,)) for allocator in allocators for _ in range(2)]
    for thread in threads:
        thread.start()

    def use():
        alarm()
        for allocator in allocators:
            allocator.free(allocator.malloc(5 * MIB))
            allocator.inspection.check_invariants()

    try:
        assert all(goes_well_in_child(use) for _ in range(20))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class LingeringDevice(Backend):
    """Frees a segment and allocates at its address again, but does not return from `free` until the test says so."""

    def __init__(self):
        super().__init__(name="lingering")
        self.taken_back, self.returns = threading.Event(), threading.Event()

    def allocate(self, size, stream):
        return 1 << 32

    def free(self, address, size):
        self.taken_back.set()
        assert self.returns.wait(60)


def test_a_child_gets_an_address_again_that_another_thread_of_the_parent_was_giving_back(alarm):
    device = LingeringDevice()
    allocator = Allocator(device)
    allocator.free(allocator.malloc(30 * MIB))
    gives_back = threading.Thread(target=allocator.empty_cache)
    gives_back.start()
    assert device.taken_back.wait(60)

    def use():
        alarm()
        assert allocator.stats()["reserved_bytes.all.current"] == 0
        address = allocator.malloc(30 * MIB)
        allocator.inspection.check_invariants()
        assert (address, allocator.stats()["reserved_bytes.all.current"]) == (1 << 32, 30 * MIB)

    assert goes_well_in_child(use)
    device.returns.set()
    gives_back.join()
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    allocator.inspection.check_invariants()


def test_allocators_come_and_go_between_forks():
    for _ in range(5):
        allocators = [Allocator("sim:1GiB") for _ in range(3)]
        del allocators[1]
        assert goes_well_in_child(lambda: allocators[0].malloc(MIB))  # noqa: B023 - done before the next round


def test_a_fork_past_python_waits_for_no_thread_inside_and_leaves_all_others_free(alarm):
    device = SlowDevice()
    busy, others = Allocator(device), [Allocator("sim:1GiB"), Allocator("host")]
    inside = threading.Thread(target=busy.malloc, args=(MIB,))
    inside.start()
    assert device.asked.wait(60)

    def use():
        alarm()
        for allocator in others:
            allocator.free(allocator.malloc(3 * MIB))
            allocator.inspection.check_invariants()

    assert goes_well_in_child(use, fork_past_python)
    use()
    signal.alarm(0)
    device.served.set()
    inside.join()
    busy.inspection.check_invariants()


def test_hooks_of_others_may_use_memory():
    script = f"""
import gc, os, signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
os.register_at_fork(before=lambda: use())  # first registered: called last, next to the fork
from allotment._allocators.host_cache import cache as cpu
from allotment import Allocator
from allotment._devices.host.device import HostDevice
from allotment._devices.streams import Stream

def use():
    calls.append(1)
    gc.collect()
    for spec in ("host", "sim:1GiB"):
        allocator = Allocator(spec)
        allocator.free(allocator.malloc(1000))
    cache.free(cache.allocate(1000))
    Stream(device).submit(int)
    Stream(device).synchronize()

signal.alarm({PATIENCE})
calls, cache, device, own = [], cpu.CachingAllocator(), HostDevice(), Allocator("host")
garbage = [own.empty(1000)]
garbage.append(garbage)
del garbage
child = os.fork()
if child == 0:
    signal.alarm({PATIENCE})
    use()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert calls == [1]
own.empty_cache()
assert own.stats()["active.all.current"] == 0
"""
    assert output_of(script) == ""


@pytest.mark.threads
def test_a_finalizer_in_the_middle_of_a_fork_is_refused_by_a_simulated_device_and_does_not_wait():
    assert (
        output_of("""
        import os

        # Hooks that are registered before ours run while a fork has the locks, as destructors may.
        os.register_at_fork(after_in_parent=lambda: use(), after_in_child=lambda: use())
        import allotment

        device = allotment.SimulatedDevice(1 << 30)
        stream = allotment.Stream(device)

        def use():
            for call in (stream.query, lambda: device.launch(stream.handle)):
                try:
                    call()
                except allotment.DeviceError:
                    pass

        child = os.fork()
        if child == 0:
            os._exit(0)
        print(os.waitpid(child, 0)[1], stream.query())
    """)
        == "0 True\n"
    )


@pytest.mark.threads
@pytest.mark.parametrize("use", ["stream.query()", "allocator.close()", "allocator.stats()", "device.create_stream()"])
def test_a_thread_that_waits_for_a_lock_that_a_fork_has_releases_the_interpreter(use):
    assert (
        output_of(f"""
        import os, threading, time

        # Registered before ours: called while the fork has all locks, and lets others have the interpreter.
        ahead, waiting = threading.Event(), threading.Event()
        os.register_at_fork(before=lambda: (ahead.set(), waiting.wait(), time.sleep(0.02)))
        import allotment

        device = allotment.SimulatedDevice(1 << 30)
        allocator, stream = allotment.Allocator(device), allotment.Stream(device)

        def wait():
            ahead.wait()
            waiting.set()
            {use}

        waiter = threading.Thread(target=wait)
        waiter.start()
        child = os.fork()
        if child == 0:
            os._exit(0)
        waiter.join()
        print(os.waitpid(child, 0)[1])
    """)
        == "0\n"
    )


@pytest.mark.threads
def test_a_device_that_another_thread_makes_in_the_middle_of_a_fork_is_there_after_it():
    """Otherwise the fork would miss its lock, and could happen while the lock is held."""
    assert (
        output_of("""
        import os, threading, time

        # Registered before ours: called while the fork has all locks there were, and lets others have the interpreter.
        ahead = threading.Event()
        os.register_at_fork(before=lambda: (ahead.set(), time.sleep(0.05)))
        import allotment

        made = []

        def make():
            ahead.wait()
            made.append(allotment.SimulatedDevice(1 << 30))

        maker = threading.Thread(target=make)
        maker.start()
        child = os.fork()
        if child == 0:
            os._exit(len(made))
        maker.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(made))
    """)
        == "0 1\n"
    )


@pytest.mark.threads
def test_a_fork_waits_for_a_thread_that_loads_a_module_of_the_package():
    script = f"""
    import logging  # has hooks around a fork: their first half would be missed if they came in the middle of one
    import os, signal, sys, threading, warnings
    import allotment

    warnings.simplefilter("ignore", DeprecationWarning)
    inside, forking = threading.Event(), threading.Event()

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == "allotment.relief" and not inside.is_set():
                inside.set()
                forking.wait()

    sys.meta_path.insert(0, Slow())
    os.register_at_fork(before=forking.set)  # registered last, so called first
    signal.alarm({PATIENCE})
    thread = threading.Thread(target=lambda: __import__("allotment.relief"))
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm({PATIENCE})
        from allotment import relief
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    """
    assert output_of(script) == ""
