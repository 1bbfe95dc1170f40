"""The caching allocator for host memory with threads, forks and the end of the program."""

import ctypes
import os
import random
import subprocess
import sys
import textwrap
import threading
from queue import SimpleQueue

import pytest

from allotment._allocators.host_cache import cache as cpu
from helpers.child import PATIENCE
from helpers.cpu_entry_points import table_of

pytestmark = pytest.mark.threads


def run_python(program, **options):
    """Run a program in a new interpreter, for what happens to a process as a whole."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=PATIENCE, **options
    )


def stamp(address, size, mark):
    ctypes.memset(address, mark, size)


def is_stamped(address, size, mark):
    return ctypes.string_at(address, size) == bytes([mark]) * size


@pytest.mark.parametrize("checked", [False, True])
def test_threads_never_share_memory(checked):
    """The owner stamps each block; the owner or another thread reads it before the free."""
    shared = cpu.CachingAllocator(checked=checked)
    passed_on = SimpleQueue()
    troubles = []
    sizes = [64, 100, 100, 4096, 70_000]

    def work(number):
        chance = random.Random(number)
        own = cpu.CachingAllocator(checked=checked)
        live = []
        try:
            with cpu.caching(own):
                for _ in range(1500):
                    allocate, free = chance.choice(
                        [(shared.allocate, shared.free), (own.allocate, own.free), (cpu.allocate, cpu.free)]
                    )
                    if len(live) < 8 and chance.random() < 0.6:
                        block = (allocate(size := chance.choice(sizes)), size, chance.randrange(256))
                        stamp(*block)
                        (live.append if chance.random() < 0.7 else passed_on.put)(block)
                    elif chance.random() < 0.5 and live:
                        block = live.pop(chance.randrange(len(live)))
                        assert is_stamped(*block)
                        free(block[0])
                    elif not passed_on.empty():
                        block = passed_on.get()
                        assert is_stamped(*block)
                        free(block[0])
                    if chance.random() < 0.01:
                        own.empty_cache()
                for block in live:
                    assert is_stamped(*block)
                    own.free(block[0])
            own.check_invariants()
        except BaseException as error:
            troubles.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert troubles == []
    shared.check_invariants()
    assert shared.stats()["hits"] > 0


def test_the_lock_is_waited_for_without_the_interpreter():
    """C callers and Python callers at once: each kind waits for the other's lock in its own way."""
    cache = cpu.CachingAllocator(checked=True)
    table = table_of(cache.entry_points())
    holding_the_interpreter = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
        ctypes.cast(table.allocate_, ctypes.c_void_p).value
    )
    finished = []

    def work(allocate, free):
        for _ in range(3000):
            assert free(allocate(256)) in (None, 1)
        finished.append(True)

    pairs = [
        (table.allocate, table.free),
        (lambda size: holding_the_interpreter(table.context, size), cache.free),
        (cache.allocate, cache.free),
        (cache.allocate, table.free),
    ]
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert finished == [True] * 4
    assert cache.stats()["hits"] + cache.stats()["misses"] == 12_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_finds_the_lock_free_and_the_cache_whole():
    done = run_python("""
        import ctypes, os, signal, threading
        from allotment._allocators.host_cache import cache as cpu
        cache = cpu.CachingAllocator()
        stop = threading.Event()

        def hammer():
            # Emptying a full cache is where the lock is held longest while the interpreter is free for a fork.
            own = cpu.CachingAllocator()
            while not stop.is_set():
                for address in [own.allocate(size) for size in range(1, 1000)]:
                    own.free(address)
                own.empty_cache()

        kept = cache.allocate(1000)
        ctypes.memset(kept, 7, 1000)
        threads = [threading.Thread(target=hammer) for _ in range(2)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(600)
                with cpu.caching(cache):
                    for size in (128, 1000, 5000):
                        address = cpu.allocate(size)
                        ctypes.memset(address, 9, size)
                        cpu.free(address)
                cache.check_invariants()
                cache.empty_cache()
                os._exit(0 if ctypes.string_at(kept, 1000) == bytes([7]) * 1000 else 1)
            codes.append(os.waitpid(child, 0)[1])
        stop.set()
        for thread in threads:
            thread.join()
        assert codes == [0] * 40, codes
        assert ctypes.string_at(kept, 1000) == bytes([7]) * 1000
    """)
    assert done.returncode == 0, done.stderr


def test_a_program_may_end_with_everything_open():
    done = run_python("""
        import ctypes, threading
        from allotment._allocators.host_cache import cache as cpu

        class Memory:
            def allocate(self, size):
                with cpu.caching(None):
                    return cpu.allocate(size)
            def free(self, address):
                with cpu.caching(None):
                    cpu.free(address)

        cache, checked = cpu.CachingAllocator(system=Memory()), cpu.CachingAllocator(checked=True)
        for allocator in (cache, checked):
            in_use = allocator.allocate(100)
            allocator.free(allocator.allocate(200))
        guard = cpu.caching(checked)
        guard.__enter__()
        table = checked.entry_points()

        def forever():
            with cpu.caching(cache):
                while True:
                    cpu.free(cpu.allocate(64))
                    checked.free(checked.allocate(64))

        running = threading.Thread(target=forever, daemon=True)
        running.start()
        cycle = [cache, checked, guard]
        cycle.append(cycle)
        print("end")
    """)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert done.stderr == ""
