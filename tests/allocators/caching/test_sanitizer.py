"""The sanitizer finds planted races, each with the stacks of both places, and is silent about programs in order."""

import ctypes
import gc
import warnings

import numpy as np
import pytest

import allotment
from allotment._allocators.caching.sanitizer.reports import SanitizerWarning
from allotment.errors import AddressError
from helpers.engine import MIB

pytestmark = [pytest.mark.threads, pytest.mark.filterwarnings("ignore::ResourceWarning")]


class World:
    """A watched allocator with two streams, and what it found."""

    def __init__(self, device="host", settings=""):
        self.alloc = allotment.Allocator(device, settings=settings, sanitize=True)
        self.a, self.b = allotment.Stream(self.alloc), allotment.Stream(self.alloc)

    def touch(self, address, stream, *, write=True):
        self.alloc.touch(address, stream, write=write)

    def finish(self):
        self.a.synchronize()
        self.b.synchronize()


def found(world):
    """The kinds of findings; each names both places in this file."""
    world.finish()
    world.alloc.close()
    reports = world.alloc.races()
    for report in reports:
        for access in (report.first, report.second):
            assert any(name == __file__ for name, _, _ in access.stack), str(report)
    return [report.kind for report in reports]


def let_go(world):
    """Empty the quarantine, as a shortage of memory does."""
    world.alloc._empty_quarantine()


# --- planted ---------------------------------------------------------------------------------------------------------


def missing_record_stream(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.alloc.free(address)
    return ["not recorded"]


def missing_record_stream_of_a_reader(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b, write=False)
    world.alloc.free(address)
    return ["not recorded"]


def record_stream_of_another_block(world):
    address, other = world.alloc.malloc(1000, world.a), world.alloc.malloc(1000, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.alloc.record_stream(other, world.b)
    world.alloc.free(address)
    return ["not recorded"]


def record_stream_of_another_stream(world):
    third = allotment.Stream(world.alloc)
    address = world.alloc.malloc(1000, world.a)
    third.wait(world.a.record())
    world.touch(address, third)
    world.alloc.record_stream(address, world.b)
    world.alloc.free(address)
    return ["not recorded"]


def used_again_after_the_stream_was_waited_for(world):
    address = world.alloc.malloc(1000, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.a.wait(world.b.record())
    world.touch(address, world.b)
    world.alloc.free(address)
    return ["not recorded"]


def a_buffer_dropped_while_another_stream_uses_it(world):
    buffer = world.alloc.empty(1000, world.a)
    world.b.wait(world.a.record())
    world.touch(buffer.address, world.b)
    buffer.close()
    return ["not recorded"]


def written_by_two_streams(world):
    address = world.alloc.malloc(1000, world.a)
    world.alloc.record_stream(address, world.b)
    world.touch(address, world.a)
    world.touch(address, world.b)
    world.alloc.free(address)
    return ["race"]


def read_before_it_is_written(world):
    address = world.alloc.malloc(1000, world.a)
    world.alloc.record_stream(address, world.b)
    world.touch(address, world.a)
    world.touch(address, world.b, write=False)
    world.alloc.free(address)
    return ["race"]


def overwritten_while_it_is_read(world):
    address = world.alloc.malloc(1000, world.a)
    world.alloc.record_stream(address, world.b)
    world.touch(address, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b, write=False)
    world.touch(address, world.a)
    world.alloc.free(address)
    return ["race"]


def event_recorded_too_early(world):
    address = world.alloc.malloc(1000, world.a)
    world.alloc.record_stream(address, world.b)
    event = world.a.record()
    world.touch(address, world.a)
    world.b.wait(event)
    world.touch(address, world.b, write=False)
    world.alloc.free(address)
    return ["race"]


def waited_on_the_wrong_stream(world):
    third = allotment.Stream(world.alloc)
    address = world.alloc.malloc(1000, world.a)
    world.alloc.record_stream(address, world.b)
    world.touch(address, world.a)
    third.wait(world.a.record())
    world.touch(address, world.b, write=False)
    world.alloc.free(address)
    return ["race"]


def the_host_reads_without_waiting(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.touch(address, None, write=False)
    world.alloc.free(address)
    return ["race"]


def the_host_waits_for_the_other_stream(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.b.synchronize()
    world.touch(address, None)
    world.alloc.free(address)
    return ["race"]


def used_after_free_on_its_own_stream(world):
    address = world.alloc.malloc(1000, world.a)
    world.alloc.free(address)
    world.touch(address, world.a)
    return ["use after free"]


def used_after_free_across_streams(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    event = world.a.record()
    world.alloc.free(address)
    world.b.wait(event)
    world.touch(address + 500, world.b, write=False)
    return ["use after free"]


def used_after_free_by_a_function_on_a_stream(world):
    address = world.alloc.malloc(1000, world.a)
    world.b.wait(world.a.record())
    world.alloc.free(address)
    world.b.submit(world.alloc.touch, address)
    return ["use after free"]


def written_after_free(world):
    address = world.alloc.malloc(1000, world.a)
    world.alloc.free(address)
    world.a.submit(ctypes.memset, address + 999, 0, 1)
    return ["written after free"]


def written_behind_the_end(world):
    address = world.alloc.malloc(1000, world.a)
    world.a.submit(ctypes.memset, address, 0, 1001)
    world.alloc.free(address)
    return ["overrun"]


def arrays_on_two_streams(world):
    source, target = world.alloc.full(1000, 1.0, stream=world.a), world.alloc.zeros(1000, stream=world.a)
    world.a.submit(np.multiply, source, 2, target)
    world.b.submit(np.add, target, 1, target)
    world.finish()
    del source, target
    return ["race"]


def reused_before_the_work_of_the_last_user(world):
    first = world.alloc.malloc(MIB, world.a)
    world.touch(first, world.a)
    world.alloc.free(first)
    let_go(world)
    second = world.alloc.malloc(MIB, world.a)
    assert second == first
    world.alloc.record_stream(second, world.b)
    world.touch(second, world.b)
    world.alloc.free(second)
    return ["reused too early"]


PLANTED = [
    missing_record_stream,
    missing_record_stream_of_a_reader,
    record_stream_of_another_block,
    record_stream_of_another_stream,
    used_again_after_the_stream_was_waited_for,
    a_buffer_dropped_while_another_stream_uses_it,
    written_by_two_streams,
    read_before_it_is_written,
    overwritten_while_it_is_read,
    event_recorded_too_early,
    waited_on_the_wrong_stream,
    the_host_reads_without_waiting,
    the_host_waits_for_the_other_stream,
    used_after_free_on_its_own_stream,
    used_after_free_across_streams,
    used_after_free_by_a_function_on_a_stream,
    written_after_free,
    written_behind_the_end,
    arrays_on_two_streams,
    reused_before_the_work_of_the_last_user,
]
"""Those of pools that are lent are with the tests of lending."""


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_race_is_found_with_both_places(plant):
    world = World()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SanitizerWarning)
        expected = plant(world)
        assert found(world) == expected


@pytest.mark.parametrize("plant", PLANTED[:15], ids=lambda plant: plant.__name__)
def test_races_are_found_without_memory_too(plant):
    world = World("sim:1GiB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SanitizerWarning)
        expected = plant(world)
        assert found(world) == expected


def test_a_finding_is_a_warning_that_says_what_and_where():
    world = World()
    with pytest.warns(
        SanitizerWarning, match=r"(?s)not recorded: .* first: write by stream .*test_sanitizer.*then: free"
    ):
        missing_record_stream(world)
    world.alloc.close()


# --- in order --------------------------------------------------------------------------------------------------------


def recorded(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.alloc.record_stream(address, world.b)
    world.alloc.free(address)


def waited_back(world):
    address = world.alloc.malloc(1000, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.a.wait(world.b.record())
    world.touch(address, world.a)
    world.alloc.free(address)


def host_waits(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.b.synchronize()
    world.touch(address, None)
    world.alloc.free(address)


def two_readers(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    event = world.a.record()
    world.b.wait(event)
    world.touch(address, world.b, write=False)
    world.touch(address, world.a, write=False)
    world.alloc.record_stream(address, world.b)
    world.alloc.free(address)


def arrays_in_order(world):
    source, target = world.alloc.full(1000, 1.0, stream=world.a), world.alloc.zeros(1000, stream=world.a)
    world.a.submit(np.multiply, source, 2, target)
    world.b.wait(world.a.record())
    world.b.submit(np.add, target, 1, target)
    world.b.synchronize()
    assert (target == 3).all()
    assert target[7] == 3
    target[7] = 4
    world.finish()
    del source, target


def reuse_on_one_stream(world):
    for _ in range(600):
        address = world.alloc.malloc(100_000, world.a)
        world.a.submit(ctypes.memset, address, 7, 100_000)
        world.touch(address, world.a)
        world.alloc.free(address)


def freed_by_a_function_on_the_stream(world):
    address = world.alloc.malloc(1000, world.a)
    world.touch(address, world.a)
    world.b.wait(world.a.record())
    world.touch(address, world.b)
    world.b.submit(world.alloc.free, address)


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


IN_ORDER = [
    recorded, waited_back, host_waits, two_readers, arrays_in_order, reuse_on_one_stream,
    freed_by_a_function_on_the_stream, captured,
]  # fmt: skip


@pytest.mark.parametrize("program", IN_ORDER, ids=lambda program: program.__name__)
@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_a_program_in_order_is_not_reported(program, settings):
    world = World(settings=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SanitizerWarning)
        program(world)
        gc.collect()
        assert found(world) == []
        world.alloc.check_invariants()


def test_a_second_free_is_an_error_while_the_block_is_in_quarantine():
    world = World()
    address = world.alloc.malloc(1000)
    world.alloc.free(address)
    with pytest.raises(AddressError):
        world.alloc.free(address)
    with pytest.raises(AddressError):
        world.alloc.free(12345)
    world.alloc.check_invariants()
    world.alloc.close()


def test_freed_memory_is_not_handed_out_at_once_and_is_when_memory_is_short():
    world = World("sim:60MiB")
    first = world.alloc.malloc(20 * MIB)
    world.alloc.free(first)
    second = world.alloc.malloc(20 * MIB)
    assert second != first
    world.alloc.free(second)
    assert world.alloc.malloc(50 * MIB)
    world.alloc.check_invariants()


def test_without_sanitizing_nothing_is_looked_at():
    alloc = allotment.Allocator("host")
    address = alloc.malloc(1000)
    alloc.touch(address)
    alloc.free(address)
    alloc.touch(address)
    assert alloc.races() == []
    assert type(alloc.zeros(10)) is np.ndarray
    alloc.close()
