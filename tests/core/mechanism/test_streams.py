"""When a free completes: other streams, their events, and frees deferred while requests are routed."""

import pytest

from allotment import Allocator
from allotment.errors import DeviceError
from helpers.engine import BUFFER, MIB, actions, check, empties, on_device, states
from helpers.queue_device import QueueDevice

MAIN, SIDE, THIRD = 0, 7, 9
ROUTING_DEFERS = "compat:2.11"


def pending(alloc):
    return [s["state"] for segment in alloc.history.segments() for s in segment["blocks"]].count("active_pending_free")


def read_while_busy(alloc, address, *streams):
    for stream in streams:
        alloc.device.launch(stream)
        alloc.record_stream(address, stream)


# --- the worked sequences ---


def test_a_block_that_a_busy_stream_reads_is_not_reused():
    alloc = on_device()
    first = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, first, SIDE)
    alloc.free(first)
    second = alloc.malloc(MIB, MAIN)
    assert second != first
    assert states(alloc) == [[(MIB, "active_pending_free"), (MIB, "active_allocated")]]
    stats = alloc.stats()
    assert (stats["allocation.all.current"], stats["active.all.current"]) == (1, 2)
    check(alloc)


def test_a_block_is_reused_when_the_other_stream_is_done():
    alloc = on_device()
    alloc.record_history()
    first = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, first, SIDE)
    alloc.free(first)
    assert actions(alloc)[-1] == "free_requested"
    alloc.device.finish(SIDE)
    assert alloc.malloc(MIB, MAIN) == first
    assert actions(alloc)[-3:] == ["snapshot", "free_completed", "alloc"]
    check(alloc)


def test_a_block_of_its_own_stream_is_free_at_once():
    alloc = on_device()
    address = alloc.malloc(MIB, SIDE)
    alloc.device.launch(SIDE)
    alloc.record_stream(address, SIDE)
    alloc.free(address)
    assert alloc.device.calls["event_record"] == 0
    assert alloc.malloc(MIB, SIDE) == address
    check(alloc)


def test_an_idle_block_stays_with_its_stream():
    alloc = on_device()
    address = alloc.malloc(MIB, MAIN)
    alloc.free(address)
    assert alloc.malloc(MIB, SIDE) != address
    assert alloc.malloc(MIB, MAIN) == address
    check(alloc)


# --- events ---


def test_an_event_that_is_not_ready_holds_back_those_behind_it_on_its_stream_and_no_other():
    alloc = on_device()
    blocks = [alloc.malloc(MIB, MAIN) for _ in range(4)]
    read_while_busy(alloc, blocks[0], SIDE)
    alloc.free(blocks[0])  # first in SIDE's queue
    read_while_busy(alloc, blocks[1], SIDE)
    alloc.free(blocks[1])  # after it
    read_while_busy(alloc, blocks[2], THIRD)
    alloc.free(blocks[2])
    queries = alloc.device.calls["event_query"]
    assert [stream for stream, _, _ in alloc.inspection.pending_events()] == [SIDE, SIDE, THIRD]
    alloc.malloc(512, SIDE)
    assert alloc.device.calls["event_query"] == queries + 2, "only the oldest event of each stream is asked for"
    alloc.device.finish(THIRD)
    alloc.malloc(512, SIDE)
    assert [address for _, _, address in alloc.inspection.pending_events()] == blocks[:2]
    check(alloc)


class Unhurried:
    """A device whose events finish when the test says so, in any order."""

    def __init__(self):
        self.finished = set()

    def event_finished(self, event):
        return event in self.finished


def test_a_finished_event_waits_for_the_one_before_it():
    alloc = on_device()
    script = alloc.device.script = Unhurried()
    first, second = alloc.malloc(MIB, MAIN), alloc.malloc(MIB, MAIN)
    for address in (first, second):
        alloc.record_stream(address, SIDE)
        alloc.free(address)
    (_, first_event, _), (_, second_event, _) = alloc.inspection.pending_events()
    script.finished = {second_event}
    alloc.malloc(512, MAIN)
    assert [address for _, _, address in alloc.inspection.pending_events()] == [first, second]
    check(alloc)
    script.finished = {first_event, second_event}
    alloc.malloc(512, MAIN)
    assert alloc.inspection.pending_events() == []
    check(alloc)


def test_a_block_that_several_streams_read_waits_for_the_last_of_them():
    alloc = on_device()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, SIDE, THIRD)
    alloc.free(address)
    for stream in (THIRD, SIDE):
        assert alloc.malloc(MIB, MAIN) != address
        check(alloc)
        alloc.device.finish(stream)
    assert alloc.malloc(MIB, MAIN) == address


def test_declaring_a_stream_twice_makes_one_event():
    alloc = on_device()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, SIDE, SIDE)
    alloc.free(address)
    assert len(alloc.inspection.pending_events()) == 1


def test_declaring_a_stream_moves_no_counter_and_leaves_no_entry():
    alloc = on_device()
    alloc.record_history()
    address = alloc.malloc(MIB, MAIN)
    stats, entries = alloc.stats(), len(actions(alloc))
    alloc.record_stream(address, SIDE)
    alloc.record_stream(0, SIDE)
    assert alloc.stats() == stats
    assert len(actions(alloc)) == entries + 1  # the snapshot taken two lines above


def test_frees_do_not_look_at_events():
    alloc = on_device()
    first, second = alloc.malloc(MIB, MAIN), alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, first, SIDE)
    alloc.free(first)
    alloc.device.finish(SIDE)
    alloc.free(second)
    assert alloc.device.calls["event_query"] == 0
    assert pending(alloc) == 1
    check(alloc)


def test_finished_events_are_used_again():
    alloc = on_device()
    for _ in range(5):
        address = alloc.malloc(MIB, MAIN)
        read_while_busy(alloc, address, SIDE)
        alloc.free(address)
        alloc.device.finish()
    assert alloc.device.calls["event_create"] == 1
    check(alloc)


def test_emptying_the_cache_waits_for_every_event():
    alloc = on_device()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, SIDE, THIRD)
    alloc.free(address)
    alloc.empty_cache()
    assert alloc.device.used == 0
    assert alloc.stats()["num_sync_all_streams"] == 1
    check(alloc)


def test_a_request_that_would_fail_waits_for_every_event_first():
    alloc = on_device(30 * MIB)
    address = alloc.malloc(20 * MIB, MAIN)
    read_while_busy(alloc, address, SIDE)
    alloc.free(address)
    alloc.malloc(20 * MIB, MAIN)
    check(alloc)


def test_a_query_that_fails_is_raised_and_can_be_repeated():
    alloc = on_device()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, SIDE)
    alloc.free(address)
    alloc.device.finish()
    alloc.device.refuse("event_query", out_of_memory=False)
    with pytest.raises(DeviceError, match="event_query"):
        alloc.malloc(MIB, MAIN)
    check(alloc)
    assert alloc.malloc(MIB, MAIN) == address


@pytest.mark.parametrize("operation", ["event_create", "event_record"])
def test_a_free_that_cannot_get_its_event_leaves_the_block_in_use(operation):
    alloc = on_device()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, SIDE, THIRD)
    alloc.device.refuse(operation, after=1, out_of_memory=False)
    with pytest.raises(DeviceError, match=operation):
        alloc.free(address)
    assert states(alloc) == [[(MIB, "active_allocated"), (MIB, "inactive")]]
    check(alloc)
    alloc.free(address)
    assert len(alloc.inspection.pending_events()) == 2
    alloc.device.finish()
    empties(alloc)


def test_a_block_whose_reader_is_destroyed_can_be_freed_and_comes_back():
    alloc = on_device()
    stream = alloc.device.create_stream()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, stream, SIDE)
    alloc.device.destroy_stream(stream)
    alloc.free(address)
    check(alloc)
    assert pending(alloc) == 1
    alloc.device.finish(SIDE)
    assert alloc.malloc(MIB, MAIN) == address
    assert alloc.device.calls["device_synchronize"] == 0
    check(alloc)


def test_a_block_whose_reader_is_destroyed_waits_for_a_device_that_has_no_event_for_it():
    device = QueueDevice()
    alloc = Allocator(device)
    stream = device.stream_create()
    address = alloc.malloc(MIB, MAIN)
    work = device.hold(stream)
    alloc.record_stream(address, stream)
    device.stream_destroy(stream)
    alloc.free(address)
    check(alloc)
    assert (pending(alloc), work.is_done) == (1, False)
    assert alloc.malloc(MIB, MAIN) == address
    assert work.is_done
    check(alloc)


@pytest.mark.parametrize("settings", ["", "graph_capture_record_stream_reuse:True"])
def test_a_block_of_a_private_pool_whose_reader_is_destroyed_can_be_freed(settings):
    alloc = on_device(settings=settings)
    stream, other = alloc.device.create_stream(), alloc.device.create_stream()
    pool = alloc.pool()
    with pool:
        inside, second = alloc.malloc(MIB, MAIN), alloc.malloc(MIB, MAIN)
        read_while_busy(alloc, inside, stream)
        read_while_busy(alloc, second, stream, other)
        alloc.device.destroy_stream(stream)
        alloc.free(inside)
        check(alloc)
    alloc.device.destroy_stream(other)
    alloc.free(second)
    check(alloc)
    pool.close()
    empties(alloc)


def test_expandable_memory_of_a_destroyed_stream_is_released_without_waiting_for_the_device():
    alloc = on_device(settings="expandable_segments:True")
    stream = alloc.device.create_stream()
    alloc.free(alloc.malloc(30 * MIB, stream))
    alloc.device.destroy_stream(stream)
    alloc.empty_cache()
    check(alloc)
    assert alloc.stats()["reserved_bytes.all.current"] == 0
    assert alloc.device.calls["device_synchronize"] == 0


# --- while requests are routed, by the rules that treat routing as a capture ---


def test_while_requests_are_routed_no_event_is_touched():
    alloc = on_device(settings=ROUTING_DEFERS)
    before = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, before, SIDE)
    alloc.free(before)
    alloc.device.finish()
    pool, calls = alloc.pool(), alloc.device.calls
    with pool:
        during = alloc.malloc(MIB, MAIN)
        read_while_busy(alloc, during, SIDE)
        alloc.free(during)
        alloc.malloc(MIB, MAIN)
        alloc.empty_cache()
        check(alloc)
    assert all(number == calls[name] for name, number in alloc.device.calls.items() if "event" in name)
    assert pending(alloc) == 2
    assert alloc.malloc(MIB, MAIN) == before
    check(alloc)


def test_uses_declared_while_routed_need_no_event_after_it():
    alloc = on_device(settings=ROUTING_DEFERS)
    pool = alloc.pool()
    with pool:
        address = alloc.malloc(MIB, MAIN)
        read_while_busy(alloc, address, SIDE)
        alloc.free(address)
        assert alloc.malloc(MIB, MAIN) != address
    alloc.malloc(512, THIRD)
    assert pending(alloc) == 0, "the end of routing stands for the end of the uses that it saw"
    assert alloc.device.calls["event_record"] == 0
    check(alloc)


def test_uses_declared_before_routing_are_waited_for_after_it():
    alloc = on_device(settings=ROUTING_DEFERS)
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, SIDE)
    with alloc.pool():
        alloc.free(address)
    assert alloc.malloc(MIB, MAIN) != address
    assert [block for _, _, block in alloc.inspection.pending_events()] == [address]
    check(alloc)
    alloc.device.finish()
    assert alloc.malloc(MIB, MAIN) == address


def test_a_use_declared_while_routed_and_freed_after_it_is_waited_for():
    """The use ends with the block: a later block at the same address does not wait for it."""
    alloc = on_device(settings=ROUTING_DEFERS)
    with alloc.pool() as pool:
        address = alloc.malloc(MIB, MAIN)
        read_while_busy(alloc, address, SIDE)
    alloc.free(address)
    assert len(alloc.inspection.pending_events()) == 1
    alloc.device.finish()
    with pool:
        alloc.malloc(512, MAIN)
    alloc.malloc(512, MAIN)
    check(alloc)
    with pool:
        again = alloc.malloc(MIB, MAIN)
    assert again == address
    read_while_busy(alloc, again, SIDE)
    with pool:
        alloc.free(again)
    alloc.malloc(512, MAIN)
    assert [block for _, _, block in alloc.inspection.pending_events()] == [again]
    check(alloc)


def test_a_block_put_off_by_routing_is_free_once_the_device_is_idle_if_its_reader_is_destroyed():
    alloc = on_device(settings=ROUTING_DEFERS)
    pool, stream = alloc.pool(), alloc.device.create_stream()
    address = alloc.malloc(MIB, MAIN)
    read_while_busy(alloc, address, stream)
    with pool:
        alloc.free(address)
    alloc.device.destroy_stream(stream)
    assert alloc.malloc(MIB, MAIN) == address
    assert alloc.device.calls["device_synchronize"] == 0
    check(alloc)


def test_a_block_put_off_by_routing_waits_for_a_device_that_has_no_event_of_a_destroyed_stream():
    alloc = Allocator(QueueDevice(), settings=ROUTING_DEFERS)
    pool, stream = alloc.pool(), alloc.device.stream_create()
    address = alloc.malloc(MIB, MAIN)
    work = alloc.device.hold(stream)
    alloc.record_stream(address, stream)
    with pool:
        alloc.free(address)
    alloc.device.stream_destroy(stream)
    check(alloc)
    assert not work.is_done
    assert alloc.malloc(MIB, MAIN) == address
    assert work.is_done
    check(alloc)


def test_blocks_put_off_by_routing_come_before_those_with_events():
    alloc = on_device(settings=ROUTING_DEFERS)
    alloc.record_history()
    with alloc.pool() as pool:
        first, second = alloc.malloc(MIB, MAIN), alloc.malloc(BUFFER, MAIN)
    read_while_busy(alloc, first, SIDE)
    alloc.free(first)
    alloc.device.finish()
    with pool:
        alloc.record_stream(second, SIDE)
        alloc.free(second)
    alloc.malloc(512, MAIN)
    done = [e["addr"] for e in alloc.snapshot()["device_traces"][0] if e["action"] == "free_completed"]
    assert done == [second, first]
    check(alloc)


def test_a_private_pool_waits_only_for_its_own_events():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        inside = alloc.malloc(MIB, MAIN)
    outside = alloc.malloc(MIB, MAIN)
    for address in (inside, outside):
        read_while_busy(alloc, address, SIDE)
        alloc.free(address)
    pool.close()
    assert [block for _, _, block in alloc.inspection.pending_events()] == [outside]
    assert alloc.history.segments(pool.id) == []
    assert alloc.stats()["num_sync_all_streams"] == 1
    check(alloc)
