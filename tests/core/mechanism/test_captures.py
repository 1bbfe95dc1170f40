"""Graph capture from the allocator's side: the begin and the end of a route, on a device that knows the captures."""

from dataclasses import dataclass

import pytest

from allotment import Stream
from allotment._allocators.caching.pool import next_graph_pool_id
from allotment.errors import CaptureError, DeviceError, OutOfMemoryError
from helpers.engine import BUFFER, MIB, SEGMENT, check, empties, on_device, reserved, segment_of

SIDE = 77
REUSE = "graph_capture_record_stream_reuse:True"


@dataclass
class Capture:
    """A graph capture in the steps a framework takes."""

    alloc: object
    stream: int
    pool: tuple[int, int]
    current: Stream | None = None
    """The stream of the capture while it is the caller's current one."""

    @classmethod
    def begin(cls, alloc, pool=None, stream=None):
        device = alloc.device
        stream = device.create_stream() if stream is None else stream
        pool = next_graph_pool_id() if pool is None else pool
        alloc.pools.begin_allocate_to_pool(pool, capture=device.begin_capture(stream))
        capture = cls(alloc, stream, pool, Stream.external(device, stream))
        capture.current.__enter__()
        return capture

    def end(self):
        """End the routing even if the capture fails."""
        try:
            self.alloc.device.end_capture(self.stream)
        finally:
            self.leave()
            self.alloc.pools.end_allocate_to_pool(self.pool)

    def leave(self):
        """Make another stream current."""
        if self.current is not None:
            self.current.__exit__(None, None, None)
            self.current = None

    def reset(self):
        self.alloc.pools.release(self.pool)


def pool_of(alloc, address):
    return segment_of(alloc, address)["segment_pool_id"]


# --- which pool serves ---


def test_a_capturing_stream_is_served_by_its_pool_and_all_others_by_the_default_one():
    alloc = on_device()
    capture = Capture.begin(alloc)
    assert pool_of(alloc, alloc.malloc(MIB, capture.stream)) == capture.pool
    assert pool_of(alloc, alloc.malloc(MIB, SIDE)) == (0, 0)
    capture.end()
    assert pool_of(alloc, alloc.malloc(MIB, capture.stream)) == (0, 0)
    check(alloc)


def test_a_stream_that_joins_is_served_by_the_pool_from_then_on():
    alloc = on_device()
    capture = Capture.begin(alloc)
    alloc.device.launch(capture.stream)
    alloc.device.wait(SIDE, on=capture.stream)
    assert pool_of(alloc, alloc.malloc(MIB, SIDE)) == capture.pool
    alloc.device.wait(capture.stream, on=SIDE)
    capture.end()
    assert pool_of(alloc, alloc.malloc(MIB, SIDE)) == (0, 0)
    check(alloc)


def test_two_captures_at_once_have_their_own_memory():
    alloc = on_device()
    first, second = Capture.begin(alloc), Capture.begin(alloc)
    blocks = [alloc.malloc(MIB, capture.stream) for capture in (first, second, first)]
    assert [pool_of(alloc, address) for address in blocks] == [first.pool, second.pool, first.pool]
    first.end()
    assert pool_of(alloc, alloc.malloc(MIB, second.stream)) == second.pool
    second.end()
    check(alloc)


def test_memory_freed_in_a_capture_is_used_again_in_it_and_by_the_next_with_its_pool():
    alloc = on_device()
    first = Capture.begin(alloc)
    address = alloc.malloc(MIB, first.stream)
    alloc.free(address)
    assert alloc.malloc(MIB, first.stream) == address
    alloc.free(address)
    first.end()
    second = Capture.begin(alloc, first.pool, first.stream)
    assert alloc.pools.use_count(first.pool) == 2
    assert alloc.malloc(MIB, second.stream) == address
    second.end()
    check(alloc)


@pytest.mark.parametrize("shared", [True, False])
def test_two_captures_that_share_a_pool_save_a_buffer(shared):
    alloc = on_device()
    first = Capture.begin(alloc)
    alloc.free(alloc.malloc(MIB, first.stream))
    first.end()
    second = Capture.begin(alloc, first.pool if shared else None, first.stream)
    alloc.free(alloc.malloc(MIB, second.stream))
    second.end()
    assert reserved(alloc) == (BUFFER if shared else 2 * BUFFER)
    for capture in (first, second):
        capture.reset()
    empties(alloc)


def test_a_pool_ends_after_the_last_graph_that_shares_it():
    alloc = on_device()
    first = Capture.begin(alloc)
    alloc.free(alloc.malloc(MIB, first.stream))
    first.end()
    second = Capture.begin(alloc, first.pool, first.stream)
    second.end()
    first.reset()
    alloc.empty_cache()
    assert reserved(alloc) == BUFFER
    second.reset()
    empties(alloc)


# --- results that outlive their graph ---


def five_steps(alloc, stream, size):
    """x = clone(x) + 1, five times: each step makes a copy and a sum, and only the sum stays."""
    x = alloc.malloc(size, stream)
    for _ in range(5):
        copy, total = alloc.malloc(size, stream), alloc.malloc(size, stream)
        alloc.free(copy)
        alloc.free(x)
        x = total
    return x


@pytest.mark.parametrize(
    ("settings", "size", "segments", "captured", "kept"),
    [
        ("", 512, 1, BUFFER, BUFFER),
        ("", MIB, 2, 2 * BUFFER, BUFFER),
        ("", MIB + 512, 1, SEGMENT, SEGMENT),
        ("", 10 * MIB - 512, 2, 2 * SEGMENT, SEGMENT),
        ("", 10 * MIB + 512, 3, 36 * MIB, 12 * MIB),
        ("expandable_segments:True", 10 * MIB - 512, 0, 40 * MIB, 40 * MIB),
        ("expandable_segments:True", 10 * MIB + 512, 0, 40 * MIB, 20 * MIB),
    ],
)
def test_a_result_that_outlives_its_graph_keeps_what_it_needs(settings, size, segments, captured, kept):
    alloc = on_device(settings=settings)
    graph = Capture.begin(alloc)
    result = five_steps(alloc, graph.stream, size)
    graph.end()
    stats = alloc.stats()
    assert (stats["segment.all.current"], stats["reserved_bytes.all.current"]) == (segments, captured)
    assert stats["active.all.current"] == 1
    alloc.empty_cache()
    assert reserved(alloc) == captured, "while the graph lives, its pool keeps everything"
    graph.reset()
    alloc.empty_cache()
    assert reserved(alloc) == kept
    check(alloc)
    alloc.free(result)
    empties(alloc)


# --- other streams ---


def test_a_free_that_waits_since_before_a_capture_is_not_asked_after_during_it():
    alloc = on_device()
    address = alloc.malloc(MIB, 0)
    alloc.device.launch(SIDE)
    alloc.record_stream(address, SIDE)
    alloc.free(address)
    alloc.device.finish()
    capture = Capture.begin(alloc)
    alloc.malloc(MIB, capture.stream)
    assert alloc.device.calls["event_query"] == 0
    capture.end()
    assert alloc.malloc(MIB, 0) == address
    check(alloc)


def test_a_block_read_and_freed_inside_a_capture_is_free_after_it():
    alloc = on_device()
    capture = Capture.begin(alloc)
    address = alloc.malloc(MIB, capture.stream)
    alloc.device.launch(capture.stream)
    alloc.device.wait(SIDE, on=capture.stream)
    alloc.record_stream(address, SIDE)
    alloc.free(address)
    alloc.device.wait(capture.stream, on=SIDE)
    assert alloc.malloc(MIB, capture.stream) != address
    capture.end()
    alloc.malloc(512, 0)
    states = {b["address"]: b["state"] for s in alloc.history.segments(capture.pool) for b in s["blocks"]}
    assert states[address] == "inactive"
    check(alloc)


class Fork:
    """A capture in which another stream reads a block."""

    def __init__(self, settings=REUSE, joined=True):
        self.alloc = on_device(settings=settings)
        self.device = self.alloc.device
        self.capture = Capture.begin(self.alloc)
        self.main = self.capture.stream
        self.block = self.alloc.malloc(MIB, self.main)
        self.device.launch(self.main)
        if joined:
            self.device.wait(SIDE, on=self.main)
        self.device.launch(SIDE)
        self.alloc.record_stream(self.block, SIDE)

    def join(self):
        self.device.wait(self.main, on=SIDE)
        self.device.launch(self.main)

    def request(self, stream=None):
        address = self.alloc.malloc(MIB, self.main if stream is None else stream)
        check(self.alloc)
        return address


def test_with_stream_reuse_a_block_serves_again_once_its_reader_is_joined():
    fork = Fork()
    fork.alloc.free(fork.block)
    assert fork.request() != fork.block
    fork.join()
    assert fork.request() == fork.block
    fork.capture.end()
    check(fork.alloc)


def test_with_stream_reuse_a_block_freed_after_the_join_serves_at_once():
    fork = Fork()
    fork.join()
    fork.alloc.free(fork.block)
    assert fork.request() == fork.block
    fork.capture.end()


def test_without_the_setting_no_join_helps():
    fork = Fork(settings="")
    fork.alloc.free(fork.block)
    fork.join()
    assert fork.request() != fork.block
    fork.capture.end()


def test_a_reader_outside_the_capture_puts_the_block_off_to_its_end():
    fork = Fork(joined=False)
    fork.alloc.free(fork.block)
    fork.device.launch(fork.main)
    assert fork.request() != fork.block
    fork.capture.end()
    fork.alloc.malloc(512, 0)
    assert fork.alloc.stats()["active.all.current"] == 2
    check(fork.alloc)


def test_with_stream_reuse_a_block_serves_only_its_own_stream():
    fork = Fork()
    fork.join()
    fork.device.wait(SIDE, on=fork.main)
    fork.alloc.free(fork.block)
    assert fork.request(SIDE) != fork.block
    fork.join()
    assert fork.request() == fork.block
    fork.capture.end()


def test_what_one_capture_proves_counts_for_no_other():
    fork = Fork(f"compat:2.11,{REUSE}")
    fork.alloc.free(fork.block)
    fork.join()
    fork.capture.end()
    second = Capture.begin(fork.alloc, fork.capture.pool, fork.main)
    for _ in range(4):
        fork.device.launch(fork.main)
    assert fork.request() != fork.block
    second.end()
    fork.alloc.malloc(512, 0)
    third = Capture.begin(fork.alloc, fork.capture.pool, fork.main)
    assert fork.request() == fork.block
    third.end()


def test_routing_cannot_end_while_a_stream_that_was_served_captures_on():
    fork = Fork()
    fork.alloc.free(fork.block)
    fork.request()
    with pytest.raises(CaptureError, match="still being captured"):
        fork.alloc.pools.end_allocate_to_pool(fork.capture.pool)
    fork.join()
    fork.capture.end()
    check(fork.alloc)


def test_a_pool_entered_inside_a_capture_can_be_left_inside_it():
    """The capture's memory stays in the capture's pool, whatever other pool serves its stream."""
    fork = Fork()
    fork.alloc.free(fork.block)
    pool = fork.alloc.pool()
    with pool:
        assert pool_of(fork.alloc, fork.request()) == pool.id
    fork.join()
    assert fork.request() == fork.block
    fork.capture.end()
    check(fork.alloc)


@pytest.mark.parametrize("operation", ["capture_status", "capture_terminals", "node_predecessors"])
def test_a_graph_that_cannot_be_read_fails_the_call_and_changes_nothing(operation):
    fork = Fork()
    if operation != "node_predecessors":
        fork.device.refuse(operation, out_of_memory=False)
        with pytest.raises(DeviceError, match=operation):
            fork.alloc.free(fork.block)
        check(fork.alloc)
    fork.alloc.free(fork.block)
    fork.join()
    fork.device.refuse(operation, out_of_memory=False)
    with pytest.raises(DeviceError, match=operation):
        fork.request()
    check(fork.alloc)
    assert fork.request() == fork.block
    fork.capture.end()


# --- captures that fail ---


def break_it(alloc, capture):
    alloc.device.break_capture(capture.stream)


def leave_a_fork(alloc, capture):
    alloc.device.launch(capture.stream)
    alloc.device.wait(SIDE, on=capture.stream)
    alloc.device.launch(SIDE)


def fail_a_request(alloc, capture):
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(1 << 40, capture.stream)
    alloc.device.break_capture(capture.stream)


@pytest.mark.parametrize("settings", ["", REUSE, "expandable_segments:True"])
@pytest.mark.parametrize("spoil", [break_it, leave_a_fork, fail_a_request])
def test_a_failed_capture_leaves_nothing_behind(spoil, settings):
    alloc = on_device(settings=settings)
    capture = Capture.begin(alloc)
    address = alloc.malloc(MIB, capture.stream)
    alloc.device.launch(capture.stream)
    alloc.record_stream(address, SIDE)
    spoil(alloc, capture)
    with pytest.raises(DeviceError):
        capture.end()
    capture.reset()
    check(alloc)
    alloc.free(address)
    # The failed capture does not affect later calls: events are processed, the cache is emptied.
    waits = alloc.malloc(MIB, 0)
    alloc.device.launch(SIDE)
    alloc.record_stream(waits, SIDE)
    alloc.free(waits)
    alloc.device.finish()
    assert alloc.malloc(MIB, 0) == waits
    alloc.free(waits)
    empties(alloc)


def test_an_abandoned_capture_need_not_be_ended():
    alloc = on_device()
    capture = Capture.begin(alloc)
    address = alloc.malloc(MIB, capture.stream)
    alloc.pools.end_allocate_to_pool(capture.pool)
    capture.reset()
    alloc.free(address)
    alloc.empty_cache()
    assert alloc.device.used == 0
    check(alloc)


def test_out_of_memory_inside_a_capture_releases_nothing_of_others():
    alloc = on_device(60 * MIB)
    alloc.free(alloc.malloc(40 * MIB))
    capture = Capture.begin(alloc)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB, capture.stream)
    assert reserved(alloc) == 40 * MIB
    capture.end()
    alloc.malloc(30 * MIB, capture.stream)
    check(alloc)


def test_a_stream_recorded_while_routing_is_forgotten_with_its_block():
    alloc = on_device()
    device = alloc.device
    pool = alloc.pool()

    def use(address):
        device.launch(SIDE)
        alloc.record_stream(address, SIDE)

    first = alloc.malloc(30 * MIB)
    with pool:
        use(first)
    alloc.free(first)
    device.finish()
    second = alloc.malloc(30 * MIB)
    assert second == first
    use(second)
    with pool:
        alloc.free(second)
    assert alloc.malloc(30 * MIB) != second  # its reader is not done
    device.finish()
    assert alloc.malloc(30 * MIB) == second
    check(alloc)


def test_a_capture_ends_though_a_stream_that_allocated_in_it_is_destroyed():
    fork = Fork()
    side = fork.device.create_stream()
    fork.device.wait(side, on=fork.main)
    fork.device.launch(side)
    fork.alloc.free(fork.block)
    fork.request(side)  # from now on the engine knows the predecessors of this stream in the capture
    fork.device.wait(fork.main, on=side)
    fork.device.destroy_stream(side)
    fork.join()
    fork.capture.end()
    check(fork.alloc)


def test_pages_of_a_stream_in_a_capture_stay_until_it_ends():
    alloc = on_device(settings="expandable_segments:True")
    stream = alloc.device.create_stream()
    alloc.free(alloc.malloc(SEGMENT, stream))
    held = reserved(alloc)
    capture = Capture.begin(alloc, stream=stream)
    capture.leave()
    alloc.empty_cache()
    assert reserved(alloc) == held
    check(alloc)
    capture.end()  # still valid
    capture.reset()
    alloc.empty_cache()
    assert reserved(alloc) == 0
