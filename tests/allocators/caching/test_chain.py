"""Out-of-memory handlers: they are called in order, with the facts, and the request is retried."""

import threading

import pytest

import allotment
from allotment import relief
from allotment.errors import OutOfMemoryError, RequestError
from helpers.engine import MIB, on_device
from helpers.entry_points import Step, table_of
from helpers.unraisable import reported


def full(settings=""):
    alloc = on_device(100 * MIB, settings)
    return alloc, [alloc.malloc(20 * MIB) for _ in range(5)]


def test_a_cache_that_gives_way_lets_the_program_finish():
    alloc, cached = full("expandable_segments:True")
    received = []

    def give_way(facts):
        received.append(facts)
        alloc.free(cached.pop())
        return True

    alloc.on_out_of_memory(give_way, tries=5)
    with allotment.tag("request"):
        address = alloc.malloc(35 * MIB)
    assert address
    assert len(cached) == 3
    assert {(facts.requested, facts.tag, facts.stream) for facts in received} == {(35 * MIB, "request", 0)}
    alloc.inspection.check_invariants()


def test_the_request_looks_in_the_cache_again():
    """The segment that a handler frees may be too small to be allocated again, but the search finds it in the cache."""
    alloc, cached = full()
    alloc.on_out_of_memory(lambda facts: alloc.free(cached[2]) or True)
    assert alloc.malloc(20 * MIB) == cached[2]


def part_of_a_segment_waits_for_another_stream():
    """The rest of its segment is in use, so no release can return it."""
    alloc = on_device(60 * MIB)
    alloc.free(alloc.malloc(40 * MIB))
    alloc.malloc(15 * MIB)
    waiting = alloc.malloc(25 * MIB)
    alloc.device.launch(9)
    alloc.record_stream(waiting, 9)
    alloc.free(waiting)
    return alloc, waiting


def test_what_the_release_has_waited_for_is_found_before_the_handlers():
    """PyTorch only asks the device after a release, and fails although a block fits (pytorch#189504)."""
    alloc, _ = part_of_a_segment_waits_for_another_stream()
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(22 * MIB)
    alloc, waiting = part_of_a_segment_waits_for_another_stream()
    alloc.on_out_of_memory(lambda facts: False)
    assert alloc.malloc(22 * MIB) == waiting
    alloc.inspection.check_invariants()


def test_a_chain_that_frees_nothing_ends():
    alloc, _ = full()
    asked = []
    alloc.on_out_of_memory(lambda facts: asked.append("first") or True, tries=3)
    alloc.on_out_of_memory(lambda facts: asked.append("second") or False, tries=3)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    assert asked == ["first"] * 3 + ["second"]


def test_a_handler_that_raises_is_reported_and_the_next_is_called():
    alloc, cached = full()

    def broken(facts):
        raise KeyError("no such cache")

    alloc.on_out_of_memory(broken, tries=9)
    alloc.on_out_of_memory(lambda facts: alloc.free(cached.pop()) or True)
    with reported() as received:
        assert alloc.malloc(20 * MIB)
    assert received == [(broken, "KeyError: 'no such cache'")]


def test_requests_of_a_handler_do_not_invoke_handlers():
    alloc, cached = full()
    inner = []

    def greedy(facts):
        try:
            alloc.malloc(30 * MIB)
        except OutOfMemoryError as error:
            inner.append(error.facts.requested)
        alloc.free(cached.pop())
        return True

    alloc.on_out_of_memory(greedy)
    assert alloc.malloc(20 * MIB)
    assert inner == [30 * MIB]


def test_a_step_can_be_removed_also_by_itself():
    alloc, cached = full()
    asked = []

    def once(facts):
        asked.append(facts)
        remove()
        alloc.free(cached.pop())
        return True

    remove = alloc.on_out_of_memory(once)
    assert alloc.malloc(20 * MIB)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    assert len(asked) == 1
    remove()


def test_a_step_is_something_to_call_with_a_try_or_more():
    alloc, _ = full()
    with pytest.raises(TypeError):
        alloc.on_out_of_memory(3)
    with pytest.raises(RequestError, match="tries must be 1 or more, not 0"):
        alloc.on_out_of_memory(len, tries=0)


def test_observers_hear_of_what_no_step_could_help():
    alloc, _ = full()
    heard = []
    alloc.limits.attach_out_of_memory_observer(heard.append)
    alloc.on_out_of_memory(lambda facts: False)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    assert len(heard) == 1


def test_the_tag_that_was_used_longest_ago_is_spilled():
    alloc = on_device(100 * MIB)
    for name in ("old", "young"):
        with allotment.tag(name):
            alloc.malloc(40 * MIB)
    alloc.on_out_of_memory(relief.spill(alloc, keep="nothing"), tries=3)
    with allotment.tag("young"):
        assert alloc.malloc(30 * MIB)
    assert alloc.paused() == {"old"}
    with allotment.tag("young"), pytest.raises(OutOfMemoryError):
        alloc.malloc(70 * MIB)
    assert alloc.paused() == {"old"}, "not the one that asks"
    alloc.inspection.check_invariants()


def test_other_allocators_on_the_device_are_trimmed():
    device = allotment.SimulatedDevice(100 * MIB)
    one, other = allotment.Allocator(device), allotment.Allocator(device)
    other.free(other.malloc(60 * MIB))
    with pytest.raises(OutOfMemoryError):
        one.malloc(60 * MIB)
    one.on_out_of_memory(relief.trim_others(one))
    assert one.malloc(60 * MIB)


@pytest.mark.threads
def test_a_request_waits_for_the_free_of_another_thread():
    alloc, cached = full()
    asked = threading.Event()
    freed = []

    def free_one():
        asked.wait()
        freed.append(cached.pop())
        alloc.free(freed[0])

    alloc.on_out_of_memory(lambda facts: asked.set() or False)
    alloc.on_out_of_memory(relief.wait(alloc, seconds=60))
    helper = threading.Thread(target=free_one)
    helper.start()
    assert alloc.malloc(20 * MIB) in freed
    helper.join()


def test_a_wait_ends_when_its_time_is_over():
    alloc, _ = full()
    alloc.on_out_of_memory(relief.wait(alloc, seconds=0), tries=5)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)


@pytest.mark.threads
@pytest.mark.parametrize("seconds", [-1, float("nan"), "1"])
def test_what_is_not_a_time_is_refused_before_memory_runs_out(seconds):
    with pytest.raises(RequestError, match="seconds must be a number from 0 on"):
        relief.wait(allotment.Allocator("sim:1GiB"), seconds=seconds)


def test_threads_on_a_full_device_all_get_their_memory():
    alloc = on_device(60 * MIB)
    alloc.on_out_of_memory(relief.wait(alloc, seconds=60), tries=100_000)
    served = []

    def work():
        for _ in range(40):
            address = alloc.malloc(20 * MIB)
            served.append(address)
            alloc.free(address)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) == 8 * 40
    alloc.inspection.check_invariants()


def test_c_code_adds_handlers_too_and_its_requests_are_retried():
    alloc, cached = full()
    table = table_of(alloc)
    received = []

    @Step
    def give_way(_, facts):
        received.append((facts.contents.requested, facts.contents.stream, facts.contents.allocated))
        return table.free(cached.pop())

    number = table.on_out_of_memory(give_way, 2)
    assert number > 0
    assert table.allocate(20 * MIB, 7)
    assert received == [(20 * MIB, 7, 100 * MIB)]
    assert table.remove_step(number) == 1
    assert table.remove_step(number) == 0
    assert table.allocate(20 * MIB) is None
    alloc.inspection.check_invariants()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_step_ends_the_request_and_the_steps_are_asked_the_next_time(kind):
    alloc, _ = full()
    asked = []

    def interrupted(facts):
        asked.append("first")
        if len(asked) == 1:
            raise kind
        return False

    alloc.on_out_of_memory(interrupted)
    alloc.on_out_of_memory(lambda facts: asked.append("second") or False)
    with pytest.raises(kind):
        alloc.malloc(20 * MIB)
    assert asked == ["first"]
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    assert asked == ["first", "first", "second"]
    alloc.inspection.check_invariants()
