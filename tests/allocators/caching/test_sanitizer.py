"""The sanitizer finds planted races, each with the stacks of both places, and reports nothing in correct programs."""

import ctypes
import gc
import os
import sys
import threading
import warnings

import numpy as np
import pytest

import allotment
from allotment.errors import AddressError, SanitizerWarning
from allotment.lab.demo import train
from helpers.child import output_of
from helpers.engine import MIB
from helpers.watched import watching

pytestmark = [pytest.mark.threads, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SETTINGS = pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])


class World:
    """A watched allocator with three streams, a block of 1000 bytes for the first stream, and verbs for programs."""

    def __init__(self, device="host", settings=""):
        self.alloc = allotment.Allocator(device, settings=settings, sanitize=True)
        self.a, self.b, self.c = (allotment.Stream(self.alloc) for _ in range(3))
        self.block = self.alloc.malloc(1000, self.a)

    def writes(self, stream):
        self.alloc.inspection.touch(self.block, stream)

    def reads(self, stream):
        self.alloc.inspection.touch(self.block, stream, write=False)

    def record(self, stream):
        self.alloc.record_stream(self.block, stream)

    def free(self):
        self.alloc.free(self.block)

    def empty_quarantine(self):
        """Empty the quarantine, as a shortage of memory does."""
        self.alloc._empty_quarantine()

    def finish(self):
        for stream in (self.a, self.b, self.c):
            stream.synchronize()

    def found(self):
        """Return the kinds of findings; each finding names both places in this file."""
        self.finish()
        self.alloc.close()
        reports = self.alloc.inspection.races()
        for report in reports:
            for access in (report.first, report.second):
                assert any(name == __file__ for name, _, _ in access.stack), str(report)
        return [report.kind for report in reports]


def after(later, earlier):
    """Order the later work of `later` after the work submitted to `earlier` so far."""
    later.wait(earlier.record())


def hold(stream):
    """Keep the stream busy until the lock that this returns is released."""
    lock = threading.Lock()
    lock.acquire()
    stream.submit(lock.acquire)
    return lock


# --- planted ---------------------------------------------------------------------------------------------------------

PLANTED, PLANTED_IN_MEMORY = {}, {}
"""The expected findings, by program, and those of programs that need real memory.

Programs that lend pools have their own file.
"""


def planted(kind, programs=PLANTED):
    """Mark a program with one mistake."""

    def add(program):
        programs[program] = kind
        return program

    return add


@planted("not recorded")
def missing_record_stream(world):
    world.writes(world.a)
    after(world.b, world.a)
    world.writes(world.b)
    world.free()


@planted("not recorded")
def missing_record_stream_of_a_reader(world):
    world.writes(world.a)
    after(world.b, world.a)
    world.reads(world.b)
    world.free()


@planted("not recorded")
def record_stream_of_another_block(world):
    other = world.alloc.malloc(1000, world.a)
    after(world.b, world.a)
    world.writes(world.b)
    world.alloc.record_stream(other, world.b)
    world.free()


@planted("not recorded")
def record_stream_of_another_stream(world):
    after(world.c, world.a)
    world.writes(world.c)
    world.record(world.b)
    world.free()


@planted("not recorded")
def used_again_after_the_stream_was_waited_for(world):
    after(world.b, world.a)
    world.writes(world.b)
    after(world.a, world.b)
    world.writes(world.b)
    world.free()


@planted("not recorded")
def a_buffer_dropped_while_another_stream_uses_it(world):
    buffer = world.alloc.empty(1000, world.a)
    after(world.b, world.a)
    world.alloc.inspection.touch(buffer, world.b)
    buffer.close()


@planted("race")
def written_by_two_streams(world):
    world.record(world.b)
    world.writes(world.a)
    world.writes(world.b)
    world.free()


@planted("race")
def read_before_it_is_written(world):
    world.record(world.b)
    world.writes(world.a)
    world.reads(world.b)
    world.free()


@planted("race")
def overwritten_while_it_is_read(world):
    world.record(world.b)
    world.writes(world.a)
    after(world.b, world.a)
    world.reads(world.b)
    world.writes(world.a)
    world.free()


@planted("race")
def event_recorded_too_early(world):
    world.record(world.b)
    event = world.a.record()
    world.writes(world.a)
    world.b.wait(event)
    world.reads(world.b)
    world.free()


@planted("race")
def waited_on_the_wrong_stream(world):
    world.record(world.b)
    world.writes(world.a)
    after(world.c, world.a)
    world.reads(world.b)
    world.free()


@planted("race")
def the_host_reads_without_waiting(world):
    world.writes(world.a)
    world.reads(None)
    world.free()


@planted("race")
def the_host_waits_for_the_other_stream(world):
    world.writes(world.a)
    world.b.synchronize()
    world.writes(None)
    world.free()


@planted("use after free")
def used_after_free_on_its_own_stream(world):
    world.free()
    world.writes(world.a)


@planted("use after free")
def used_after_free_across_streams(world):
    world.writes(world.a)
    event = world.a.record()
    world.free()
    world.b.wait(event)
    world.alloc.inspection.touch(world.block + 500, world.b, write=False)


@planted("use after free", PLANTED_IN_MEMORY)
def used_after_free_by_a_function_on_a_stream(world):
    after(world.b, world.a)
    world.free()
    world.b.submit(world.alloc.inspection.touch, world.block)


@planted("not recorded", PLANTED_IN_MEMORY)
def freed_before_a_function_on_another_stream_has_come_to_use_it(world):
    held = hold(world.b)
    world.b.submit(world.alloc.inspection.touch, world.block)
    world.free()
    held.release()
    world.b.synchronize()


@planted("written after free", PLANTED_IN_MEMORY)
def written_after_free(world):
    world.free()
    world.a.submit(ctypes.memset, world.block + 999, 0, 1)


@planted("overrun", PLANTED_IN_MEMORY)
def written_behind_the_end(world):
    world.a.submit(ctypes.memset, world.block, 0, 1001)
    world.free()


@planted("race", PLANTED_IN_MEMORY)
def arrays_on_two_streams(world):
    source, target = world.alloc.full(1000, 1.0, stream=world.a), world.alloc.zeros(1000, stream=world.a)
    world.a.submit(np.multiply, source, 2, target)
    world.b.submit(np.add, target, 1, target)
    world.finish()
    del source, target


@planted("reused too early")
def reused_before_the_work_of_the_last_user(world):
    world.writes(world.a)
    world.free()
    world.empty_quarantine()
    assert world.alloc.malloc(1000, world.a) == world.block
    world.record(world.b)
    world.writes(world.b)
    world.free()


def is_found(program, kind, device):
    world = World(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SanitizerWarning)
        program(world)
        return world.found() == [kind]


@pytest.mark.parametrize("program", [*PLANTED, *PLANTED_IN_MEMORY], ids=lambda program: program.__name__)
def test_a_planted_race_is_found_with_both_places(program):
    assert is_found(program, {**PLANTED, **PLANTED_IN_MEMORY}[program], "host")


@pytest.mark.parametrize("program", PLANTED, ids=lambda program: program.__name__)
def test_races_are_found_without_memory_too(program):
    assert is_found(program, PLANTED[program], "sim:1GiB")


def test_a_finding_is_a_warning_that_says_what_and_where():
    world = World()
    with pytest.warns(
        SanitizerWarning, match=r"(?s)not recorded: .* first: write by stream .*test_sanitizer.*then: free"
    ):
        missing_record_stream(world)
    world.alloc.close()


# --- in order --------------------------------------------------------------------------------------------------------

IN_ORDER = []


def in_order(program):
    """Mark a program without a mistake."""
    IN_ORDER.append(program)
    return program


@in_order
def recorded(world):
    world.writes(world.a)
    after(world.b, world.a)
    world.writes(world.b)
    world.record(world.b)
    world.free()


@in_order
def waited_back(world):
    after(world.b, world.a)
    world.writes(world.b)
    after(world.a, world.b)
    world.writes(world.a)
    world.free()


@in_order
def host_waits(world):
    world.writes(world.a)
    after(world.b, world.a)
    world.writes(world.b)
    world.b.synchronize()
    world.writes(None)
    world.free()


@in_order
def two_readers(world):
    world.writes(world.a)
    after(world.b, world.a)
    world.reads(world.b)
    world.reads(world.a)
    world.record(world.b)
    world.free()


@in_order
def arrays_in_order(world):
    source, target = world.alloc.full(1000, 1.0, stream=world.a), world.alloc.zeros(1000, stream=world.a)
    world.a.submit(np.multiply, source, 2, target)
    after(world.b, world.a)
    world.b.submit(np.add, target, 1, target)
    world.b.synchronize()
    assert (target == 3).all()
    assert target[7] == 3
    target[7] = 4
    world.finish()
    del source, target


@in_order
def reuse_on_one_stream(world):
    for _ in range(600):
        address = world.alloc.malloc(100_000, world.a)
        world.a.submit(ctypes.memset, address, 7, 100_000)
        world.alloc.inspection.touch(address, world.a)
        world.alloc.free(address)


@in_order
def reuse_on_another_stream(world):
    """Only dense placement does this: it makes the other stream wait."""
    world.writes(world.a)
    world.free()
    world.empty_quarantine()
    address = world.alloc.malloc(1000, world.b)
    world.alloc.inspection.touch(address, world.b)
    after(world.c, world.b)
    world.alloc.inspection.touch(address, world.c)
    world.alloc.record_stream(address, world.c)
    world.alloc.free(address)


@in_order
def freed_by_a_function_on_the_stream(world):
    world.writes(world.a)
    after(world.b, world.a)
    world.writes(world.b)
    world.b.submit(world.alloc.free, world.block)


@in_order
def freed_before_a_function_on_its_stream_has_come_to_use_it(world):
    held = hold(world.a)
    world.a.submit(world.alloc.inspection.touch, world.block)
    world.free()
    held.release()


@in_order
def written_by_the_host_while_the_stream_has_not_come_to_the_poison(world):
    held = hold(world.a)
    world.alloc.free(world.alloc.malloc(40 * MIB, world.a))
    address = world.alloc.malloc(40 * MIB, world.a)
    ctypes.memset(address, 7, 40 * MIB)
    held.release()
    world.a.synchronize()
    assert ctypes.string_at(address, 40 * MIB) == bytes([7]) * (40 * MIB)
    world.alloc.free(address)


@in_order
def told_of_late(world):
    """A function that runs after later ones have reported what they do."""
    held = hold(world.a)
    world.a.submit(world.alloc.inspection.touch, world.block)
    after(world.b, world.a)
    world.writes(world.b)
    held.release()
    world.a.synchronize()
    world.record(world.b)
    world.free()


@in_order
def read_by_another_stream_after_it_was_freed(world):
    """The poison of the block's own stream must not come between."""
    held = hold(world.b)
    world.a.submit(ctypes.memset, world.block, 7, 1000)
    after(world.b, world.a)
    found = []
    world.b.submit(lambda: found.append(ctypes.string_at(world.block, 1000)))
    world.record(world.b)
    world.free()
    world.a.synchronize()
    held.release()
    world.b.synchronize()
    assert found == [bytes([7]) * 1000]


@in_order
def captured(world):
    array = world.alloc.zeros(100, stream=world.a)
    with allotment.capture(world.a) as graph:
        scratch = world.alloc.malloc(4096, world.a)
        world.a.submit(ctypes.memset, scratch, 1, 4096)
        world.alloc.free(scratch)
        world.a.submit(np.add, array, 1, array)
    for _ in range(3):
        graph.replay()
    world.a.synchronize()
    assert (array == 3).all()
    graph.reset()
    del array


@pytest.mark.parametrize("program", IN_ORDER, ids=lambda program: program.__name__)
@SETTINGS
def test_a_program_in_order_is_not_reported(program, settings):
    world = World(settings=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SanitizerWarning)
        program(world)
        gc.collect()
        assert world.found() == []
        world.alloc.inspection.check_invariants()


@pytest.mark.parametrize("keep", ["host", "nothing"])
def test_sleeping_memory_is_not_touched(keep):
    world = World()
    with allotment.tag("weights"):
        early, asleep, late, kept = (world.alloc.malloc(size, world.a) for size in (5 * MIB, 700, 3 * MIB, 40))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SanitizerWarning)
        for _ in range(2):
            world.alloc.free(early)
            world.alloc.pause("weights", keep=keep)
            world.alloc.free(asleep)
            world.empty_quarantine()
            world.finish()
            world.alloc.resume("weights")
            with allotment.tag("weights"):
                early, asleep = (world.alloc.malloc(size, world.a) for size in (5 * MIB, 700))
        for block in (early, asleep, late, kept):
            world.alloc.free(block)
        assert world.found() == []
        world.alloc.inspection.check_invariants()


def test_memory_freed_while_it_slept_is_watched_again():
    world = World()
    with allotment.tag("weights"):
        block = world.alloc.malloc(5 * MIB, world.a)
    world.alloc.pause("weights")
    world.alloc.free(block)
    world.empty_quarantine()
    world.alloc.empty_cache()
    world.alloc.resume("weights")
    assert not world.alloc._sanitizer._asleep
    world.alloc.close()


@pytest.mark.skipif(
    getattr(sys.flags, "context_aware_warnings", False),
    reason="a stream's thread warns, which pytest then does not see",
)
def test_an_overrun_is_found_after_a_sleep():
    world = World()
    with allotment.tag("weights"):
        block = world.alloc.malloc(700, world.a)
    world.alloc.pause("weights")
    world.alloc.resume("weights")
    ctypes.memset(block, 1, 701)
    with pytest.warns(SanitizerWarning, match="overrun"):
        world.alloc.free(block)
        world.finish()
    world.alloc.close()


@SETTINGS
def test_the_demo_is_in_order_and_learns_the_same(settings):
    """`tests/stress/sanitized.py` also watches the tests of streams and recorded histories."""
    with allotment.Allocator("host", settings=settings) as plain:
        expected = train(plain, 8).last_loss
    with watching() as seen, allotment.Allocator("host", settings=settings) as watched:
        assert train(watched, 8).last_loss == expected
    assert seen.accesses > 200
    assert seen.reports == []


def test_accesses_that_are_reported_without_the_programs_help_are_checked():
    with watching() as seen, allotment.Allocator("host") as alloc:
        a, b = allotment.Stream(alloc), allotment.Stream(alloc)
        address = alloc.malloc(1000, a)
        b.submit(ctypes.memset, address, 1, 1000)
        b.synchronize()
        alloc.free(address)
    assert [report.kind for _, report in seen.reports] == ["race"]


def test_a_second_free_is_an_error_while_the_block_is_in_quarantine():
    world = World()
    world.free()
    with pytest.raises(AddressError):
        world.free()
    with pytest.raises(AddressError):
        world.alloc.free(12345)
    world.alloc.inspection.check_invariants()
    world.alloc.close()


def test_freed_memory_is_not_reused_at_once_and_is_when_memory_is_short():
    world = World("sim:60MiB")
    first = world.alloc.malloc(20 * MIB)
    world.alloc.free(first)
    second = world.alloc.malloc(20 * MIB)
    assert second != first
    world.alloc.free(second)
    assert world.alloc.malloc(50 * MIB)
    world.alloc.inspection.check_invariants()


def test_without_sanitizing_nothing_is_looked_at():
    alloc = allotment.Allocator("host")
    address = alloc.malloc(1000)
    alloc.inspection.touch(address)
    alloc.free(address)
    alloc.inspection.touch(address)
    assert alloc.inspection.races() == []
    assert type(alloc.zeros(10)) is np.ndarray
    alloc.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_may_use_what_another_thread_was_telling_of():
    printed = output_of(
        """
    import os, signal, threading, warnings
    import allotment

    telling, go_on = threading.Event(), threading.Event()
    warnings.simplefilter("always")
    warnings.showwarning = lambda *said, **more: (telling.set(), go_on.wait())
    watched = allotment.Allocator("host", sanitize=True)
    one, other = allotment.Stream(watched), allotment.Stream(watched)
    block = watched.malloc(1000, one)

    def race():
        watched.inspection.touch(block, one)
        watched.inspection.touch(block, other)

    racing = threading.Thread(target=race)
    racing.start()
    telling.wait()
    threading.Timer(0.05, go_on.set).start()
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        watched.inspection.touch(block, one)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    racing.join()
    watched.free(block)
    """
    )
    assert printed == "0\n"
