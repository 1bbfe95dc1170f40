"""Functions of the user that the allocator calls: on a miss, before a request fails, and at every trace entry."""

import gc
import weakref

import pytest

from allotment.errors import OutOfMemoryError, RequestError
from helpers.engine import BUFFER, MIB, check, empties, on_device, reserved
from helpers.unraisable import reported


class Reserve:
    """Keeps blocks, and frees one at a time when memory is short."""

    def __init__(self, alloc, *sizes):
        self.alloc = alloc
        self.blocks = [alloc.malloc(size) for size in sizes]
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if not self.blocks:
            return False
        self.alloc.free(self.blocks.pop())
        return True


# --- free-memory callbacks ---


def test_a_callback_is_asked_on_every_miss_and_on_no_hit():
    alloc = on_device()
    calls = []
    alloc.limits.add_free_memory_callback(lambda: calls.append("asked"))
    address = alloc.malloc(MIB)
    assert calls == ["asked"]
    alloc.free(address)
    assert alloc.malloc(MIB) == address
    assert calls == ["asked"]
    alloc.malloc(30 * MIB)
    assert calls == ["asked"] * 2
    check(alloc)


def test_what_a_callback_frees_serves_the_request_before_the_device_is_asked():
    alloc = on_device()
    reserve = Reserve(alloc, 30 * MIB)
    held = reserve.blocks[0]
    alloc.limits.add_free_memory_callback(reserve)
    calls = alloc.device.calls["segment_allocate"]
    assert alloc.malloc(30 * MIB) == held
    assert alloc.device.calls["segment_allocate"] == calls
    check(alloc)


def test_every_callback_runs_in_order_even_if_an_earlier_one_freed_something():
    alloc = on_device()
    order = []
    alloc.limits.add_free_memory_callback(lambda: order.append("first") or True)
    alloc.limits.add_free_memory_callback(lambda: order.append("second") or False)
    alloc.malloc(MIB)
    assert order == ["first", "second"]


def test_a_callback_that_says_it_freed_nothing_is_believed():
    alloc = on_device()
    address = alloc.malloc(30 * MIB)

    def quietly():
        alloc.free(address)
        return False

    alloc.limits.add_free_memory_callback(quietly)
    assert alloc.malloc(30 * MIB) != address
    assert alloc.stats()["allocation.all.current"] == 1, "it is freed all the same, when the request is done"
    check(alloc)


def test_a_callback_is_asked_once_more_by_the_next_request_until_memory_is_out():
    alloc = on_device(60 * MIB)
    reserve = Reserve(alloc, 20 * MIB, 20 * MIB)
    alloc.limits.add_free_memory_callback(reserve)
    for _ in range(3):
        alloc.malloc(20 * MIB)
        check(alloc)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    assert reserve.calls == 4
    check(alloc)


def test_a_callback_frees_a_block_that_other_streams_read():
    alloc = on_device()
    address = alloc.malloc(30 * MIB)
    alloc.device.launch(5)
    alloc.record_stream(address, 5)
    alloc.limits.add_free_memory_callback(lambda: alloc.free(address) or True)
    assert alloc.malloc(30 * MIB) != address
    assert [block for _, _, block in alloc.inspection.pending_events()] == [address]
    check(alloc)


def test_a_callback_that_drops_a_buffer_frees_it():
    alloc = on_device()
    cache = [alloc.empty(30 * MIB)]
    held = cache[0].address
    alloc.limits.add_free_memory_callback(lambda: bool(cache.pop()) if cache else False)
    assert alloc.malloc(30 * MIB) == held
    check(alloc)


def test_a_collection_inside_a_callback_may_free_buffers():
    alloc = on_device()
    cycle = [alloc.empty(30 * MIB)]
    held = cycle[0].address
    cycle.append(cycle)
    del cycle
    alloc.limits.add_free_memory_callback(lambda: gc.collect() > 0)
    assert alloc.malloc(30 * MIB) == held
    check(alloc)


def test_a_collection_inside_a_callback_may_close_pools():
    alloc = on_device(32 * MIB)
    pool = alloc.pool()
    with pool:
        alloc.free(alloc.malloc(MIB))
    cycle = [pool]
    cycle.append(cycle)
    del pool, cycle
    alloc.limits.add_free_memory_callback(lambda: gc.collect() > 0)
    assert alloc.malloc(31 * MIB)
    check(alloc)


def test_a_pool_closed_inside_a_callback_is_gone_after_it():
    alloc = on_device()
    pool = alloc.pool(use_on_oom=True)
    with pool:
        alloc.free(alloc.malloc(MIB))
    alloc.limits.add_free_memory_callback(pool.close)
    alloc.malloc(30 * MIB)
    assert reserved(alloc) == 30 * MIB
    check(alloc)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_callback_that_raises_is_reported_and_frees_nothing(error):
    alloc = on_device()

    def broken():
        raise error("boom")

    reserve = Reserve(alloc, 30 * MIB)
    alloc.limits.add_free_memory_callback(broken)
    alloc.limits.add_free_memory_callback(reserve)
    with reported() as seen:
        alloc.malloc(30 * MIB)
    assert reserve.calls == 1
    assert seen == [(broken, f"{error.__name__}: boom")]
    check(alloc)


@pytest.mark.parametrize(
    "call",
    [
        lambda alloc: alloc.malloc(1),
        lambda alloc: alloc.empty_cache(),
        lambda alloc: alloc.stats(),
        lambda alloc: alloc.snapshot(),
        lambda alloc: alloc.pool(),
        lambda alloc: setattr(alloc, "settings", ""),
        lambda alloc: alloc.inspection.check_invariants(),
    ],
)
def test_a_callback_may_use_the_allocator_and_is_not_asked_again_for_that(call):
    alloc = on_device()
    runs = []

    def greedy():
        runs.append(1)
        call(alloc)

    alloc.limits.add_free_memory_callback(greedy)
    alloc.malloc(30 * MIB)
    assert runs == [1]
    check(alloc)


def test_callbacks_may_come_and_go_inside_one():
    alloc = on_device()
    asked = []

    def second():
        asked.append("second")

    def third():
        asked.append("third")

    def first():
        asked.append("first")
        alloc.limits.remove_free_memory_callback(first)
        alloc.limits.remove_free_memory_callback(second)
        alloc.limits.add_free_memory_callback(third)

    alloc.limits.add_free_memory_callback(first)
    alloc.limits.add_free_memory_callback(second)
    alloc.malloc(MIB)
    alloc.malloc(30 * MIB)
    assert asked == ["first", "third", "third"]
    check(alloc)


def test_a_removed_callback_is_not_asked():
    alloc = on_device()
    calls = []

    def callback():
        calls.append(1)

    alloc.limits.add_free_memory_callback(callback)
    alloc.limits.add_free_memory_callback(callback)
    alloc.limits.remove_free_memory_callback(callback)
    alloc.malloc(MIB)
    assert calls == [1]
    alloc.limits.remove_free_memory_callback(callback)
    with pytest.raises(RequestError, match="callback"):
        alloc.limits.remove_free_memory_callback(callback)
    alloc.malloc(30 * MIB)
    assert calls == [1]


def test_a_search_after_callbacks_ticks_the_clock_of_ages_too():
    alloc = on_device(settings="garbage_collection_threshold:0.1", limit=100 * MIB)
    alloc.limits.add_free_memory_callback(lambda: True)
    address = alloc.malloc(20 * MIB)
    alloc.free(address)
    other = alloc.malloc(24 * MIB)  # two ticks: the first block is now older than any of its time
    assert reserved(alloc) == 24 * MIB
    alloc.free(other)
    empties(alloc)


# --- out-of-memory observers ---


def test_observers_see_the_facts_in_order_before_the_error():
    alloc = on_device(10 * MIB)
    seen = []
    alloc.limits.attach_out_of_memory_observer(
        lambda facts: seen.append(("first", facts.segment_size, facts.device_free))
    )
    alloc.limits.attach_out_of_memory_observer(lambda facts: seen.append(("second", facts.limit, facts.device_total)))
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(19 * MIB)
    assert seen == [("first", 20 * MIB, 10 * MIB), ("second", None, 10 * MIB)]


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_an_observer_that_raises_is_reported_and_changes_nothing(error):
    alloc = on_device(10 * MIB)
    received = []

    def broken(facts):
        raise error("no matter")

    alloc.limits.attach_out_of_memory_observer(broken)
    alloc.limits.attach_out_of_memory_observer(received.append)
    with reported() as seen, pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    assert seen == [(broken, f"{error.__name__}: no matter")]
    assert [facts.requested for facts in received] == [20 * MIB]
    assert alloc.stats()["num_ooms"] == 1
    check(alloc)


def test_observers_can_be_detached_also_by_themselves():
    alloc = on_device(10 * MIB)
    received = []

    def once(facts):
        received.append("once")
        alloc.limits.detach_out_of_memory_observer(once)

    def always(facts):
        received.append("always")

    for observer in (once, always, always):
        alloc.limits.attach_out_of_memory_observer(observer)
    alloc.limits.detach_out_of_memory_observer(always)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(20 * MIB)
    assert received == ["once", "always", "always"]
    with pytest.raises(RequestError, match="not an observer"):
        alloc.limits.detach_out_of_memory_observer(once)


def test_an_observer_may_use_the_allocator():
    alloc = on_device(24 * MIB)
    held = [alloc.malloc(10 * MIB)]

    def make_room(facts):
        alloc.snapshot()
        alloc.free(held.pop())
        alloc.empty_cache()

    alloc.limits.attach_out_of_memory_observer(make_room)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(20 * MIB)
    alloc.malloc(20 * MIB)
    check(alloc)


def test_no_observer_is_called_for_an_absurd_size():
    alloc = on_device()
    seen = []
    alloc.limits.attach_out_of_memory_observer(seen.append)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(1 << 60)
    assert seen == []


# --- trackers ---


def test_trackers_see_every_entry_without_any_history():
    alloc = on_device(30 * MIB)
    pool = alloc.pool()
    seen, also = [], []
    alloc.history.attach_trace_tracker(lambda *entry: seen.append(entry))
    alloc.history.attach_trace_tracker(lambda *entry: also.append(entry))
    with pool:
        address = alloc.malloc(1000, stream=3)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(29 * MIB)
    alloc.free(address)
    pool.close()
    assert (
        seen
        == also
        == [
            ("segment_alloc", address, BUFFER, 3, pool.id),
            ("alloc", address, 1000, 3, pool.id),
            ("oom", 28 * MIB, 29 * MIB, 0, (0, 0)),
            ("free_requested", address, 1000, 3, pool.id),
            ("free_completed", address, 1000, 3, pool.id),
            ("segment_free", address, BUFFER, 3, pool.id),
        ]
    )
    assert alloc.snapshot()["device_traces"] == [[]]
    check(alloc)


def test_trackers_see_what_the_history_skips():
    alloc = on_device()
    seen = []
    alloc.history.attach_trace_tracker(lambda action, *_: seen.append(action))
    alloc.record_history(skip_actions=["alloc"])
    alloc.malloc(1)
    assert seen == ["segment_alloc", "alloc"]
    assert [entry["action"] for entry in alloc.snapshot()["device_traces"][0]] == ["segment_alloc"]


def test_a_tracker_that_raises_or_calls_back_is_reported_and_the_request_served():
    alloc = on_device()
    seen = []

    def intrusive(*entry):
        alloc.stats()

    alloc.history.attach_trace_tracker(intrusive)
    alloc.history.attach_trace_tracker(lambda *entry: seen.append(entry[0]))
    with reported() as errors:
        address = alloc.malloc(1)
    assert seen == ["segment_alloc", "alloc"]
    assert [(who, "called from inside itself" in error) for who, error in errors] == [(intrusive, True)] * 2
    with reported():
        alloc.free(address)
        empties(alloc)


@pytest.mark.parametrize("entries", [False, True])
def test_a_tracker_can_be_detached(entries):
    alloc = on_device()
    seen = []

    def tracker(*entry):
        seen.append(1)

    alloc.history.attach_trace_tracker(tracker, entries=entries)
    alloc.history.attach_trace_tracker(tracker, entries=entries)
    address = alloc.malloc(MIB)
    assert len(seen) == 2 * 2
    alloc.history.detach_trace_tracker(tracker)
    alloc.free(address)
    assert len(seen) == 2 * 2 + 2
    alloc.history.detach_trace_tracker(tracker)
    alloc.malloc(MIB)
    assert len(seen) == 2 * 2 + 2
    with pytest.raises(RequestError, match="not a tracker"):
        alloc.history.detach_trace_tracker(tracker)
    check(alloc)


def test_a_tracker_that_is_detached_is_released():
    alloc = on_device()
    tracker = Reserve(alloc)
    gone = weakref.ref(tracker)
    alloc.history.attach_trace_tracker(tracker)
    alloc.history.detach_trace_tracker(tracker)
    del tracker
    assert gone() is None
