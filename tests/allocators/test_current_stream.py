"""A request that names no stream is for the calling thread's current stream, also inside a graph capture."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import allotment

SIZE = 3 << 20


@pytest.fixture(params=["torch", "dense"])
def alloc(request):
    with allotment.Allocator("host", settings=f"placement:{request.param}") as made:
        yield made
        made.inspection.check_invariants()


def block_of(alloc, address):
    """Return (pool, stream) of a live block."""
    for segment in alloc.history.segments():
        for block in segment["blocks"]:
            if block["address"] == address and block["state"] == "active_allocated":
                return tuple(segment["segment_pool_id"]), block.get("stream", segment["stream"])
    raise AssertionError(f"{address:#x} is not in use")


REQUESTS = {
    "malloc": lambda alloc: (alloc.malloc(SIZE), None),
    "malloc of a tenant": lambda alloc: (alloc.tenant("t").malloc(SIZE), None),
    "empty": lambda alloc: kept(alloc.empty(SIZE)),
    "empty of a tenant": lambda alloc: kept(alloc.tenant("t").empty(SIZE)),
    "array": lambda alloc: kept(alloc.array(SIZE, "uint8")),
    "zeros": lambda alloc: kept(alloc.zeros(SIZE, "uint8")),
    "full": lambda alloc: kept(alloc.full(SIZE, 7, "uint8")),
    "like": lambda alloc: kept(alloc.like(np.empty(SIZE, "uint8"))),
}


def kept(thing):
    return (thing.ctypes.data if isinstance(thing, np.ndarray) else thing.address), thing


def free_unless_owned(alloc, address, thing):
    if thing is None:
        alloc.free(address)


@pytest.mark.parametrize("how", REQUESTS)
def test_a_request_without_a_stream_is_for_the_current_one(alloc, how):
    stream = allotment.Stream(alloc)
    with stream:
        address, thing = REQUESTS[how](alloc)
    assert block_of(alloc, address) == ((0, 0), stream.handle)
    free_unless_owned(alloc, address, thing)
    del thing
    address, thing = REQUESTS[how](alloc)
    assert block_of(alloc, address) == ((0, 0), 0)
    free_unless_owned(alloc, address, thing)


def test_the_stream_entered_last_counts_and_a_named_one_wins(alloc):
    outer, inner = allotment.Stream(alloc), allotment.Stream(alloc)
    with outer:
        with inner:
            assert alloc.empty(SIZE).stream == inner.handle
            assert alloc.empty(SIZE, outer).stream is outer
            assert alloc.empty(SIZE, 0).stream == 0
            given = alloc.malloc(SIZE, stream=0)
            assert block_of(alloc, given) == ((0, 0), 0)
            alloc.free(given)
        assert alloc.empty(SIZE).stream == outer.handle
    assert alloc.empty(SIZE).stream == 0


def test_a_current_stream_is_of_one_thread_and_of_one_device(alloc):
    found = []
    with allotment.Stream(alloc), allotment.Allocator("host") as elsewhere:
        assert elsewhere.device is not alloc.device
        found.append(elsewhere.empty(SIZE).stream)
        thread = threading.Thread(target=lambda: found.append(alloc.empty(SIZE).stream))
        thread.start()
        thread.join()
    assert found == [0, 0]


def test_plans_are_made_for_the_current_stream():
    alloc = allotment.Allocator("sim:1GiB", settings="expandable_segments:False")
    stream = allotment.Stream(alloc)
    alloc.free(alloc.malloc(40 << 20, stream))
    assert alloc.plan([40 << 20]).new_reserved_bytes != 0
    with stream:
        assert alloc.plan([40 << 20]).new_reserved_bytes == 0
        assert alloc.plan([(40 << 20, 0)]).new_reserved_bytes != 0


def test_memory_is_put_at_an_address_for_the_current_stream():
    alloc = allotment.Allocator("host")
    stream = allotment.Stream(alloc)
    with stream:
        there = alloc.malloc(SIZE)
        alloc.free(there)
        assert alloc.pools.malloc_at(SIZE, there) == there
    assert block_of(alloc, there) == ((0, 0), stream.handle)
    alloc.free(there)


def test_the_driver_s_pool_is_asked_on_the_current_stream():
    alloc = allotment.AsyncAllocator("sim:1GiB")
    stream = allotment.Stream(alloc)
    with stream:
        buffer = alloc.empty(SIZE)
        assert buffer.stream == stream.handle
        with pytest.warns(UserWarning, match="unnecessary"):
            buffer.record_stream(stream)
    assert alloc.empty(SIZE).stream == 0


def test_user_functions_get_the_current_stream():
    reported = []
    alloc = allotment.PluggableAllocator(
        lambda size, device, stream: reported.append(stream) or 4096 * len(reported), lambda *_: None, device="sim:1GiB"
    )
    stream = allotment.Stream(alloc)
    with stream:
        alloc.malloc(SIZE)
        assert alloc.empty(SIZE).stream == stream.handle
        alloc.malloc(SIZE, 0)
    alloc.malloc(SIZE)
    assert reported == [stream.handle, stream.handle, 0, 0]


# --- captures ---


@pytest.mark.parametrize("how", REQUESTS)
def test_a_request_without_a_stream_inside_a_capture_is_served_from_its_pool(alloc, how):
    stream, pool = allotment.Stream(alloc), alloc.pool()
    with allotment.capture(stream, pool=pool) as graph:
        address, thing = REQUESTS[how](alloc)
        assert block_of(alloc, address) == (pool.id, stream.handle)
        elsewhere = alloc.malloc(SIZE, 0)
        assert block_of(alloc, elsewhere) == ((0, 0), 0)
    free_unless_owned(alloc, address, thing)
    del thing
    alloc.free(elsewhere)
    graph.reset()


def test_a_replay_does_not_touch_memory_that_others_got_after_the_capture(alloc):
    stream = allotment.Stream(alloc)
    with allotment.capture(stream) as graph:
        scratch = alloc.empty(SIZE)
        stream.submit(ctypes.memset, scratch.address, 0xAB, SIZE)
        del scratch
    with stream:
        mine = [alloc.zeros(SIZE, "uint8") for _ in range(4)]
    graph.replay()
    stream.synchronize()
    assert not any(array.any() for array in mine)


def test_a_copy_without_a_stream_inside_a_capture_is_captured(alloc):
    stream = allotment.Stream(alloc)
    source, target = alloc.full(SIZE, 7, "uint8"), alloc.zeros(SIZE, "uint8")
    with allotment.capture(stream) as graph:
        alloc.copy(target, source, SIZE)
    allotment.Stream.default(alloc).synchronize()
    assert not target.any()
    graph.replay()
    stream.synchronize()
    assert (target == 7).all()


def test_each_allocator_on_a_device_serves_a_capture_from_a_pool_with_its_id(alloc):
    other = allotment.Allocator(alloc.device)
    idle = allotment.Allocator(alloc.device)
    stream = allotment.Stream(alloc)
    with allotment.capture(stream) as graph:
        late = allotment.Allocator(alloc.device)
        blocks = [(each, each.malloc(SIZE)) for each in (alloc, other, late)]
        for each, address in blocks:
            assert block_of(each, address) == (graph.pool, stream.handle)
            stream.submit(ctypes.memset, address, 0xAB, SIZE)
            each.free(address)
    mine = [each.zeros(SIZE, "uint8", stream=stream) for each in (alloc, other, late) for _ in range(3)]
    graph.replay()
    stream.synchronize()
    assert not any(array.any() for array in mine)
    assert [each.pools.use_count(graph.pool) for each in (alloc, other, late)] == [1, 1, 1]
    assert idle.stats()["reserved_bytes.all.current"] == 0
    graph.reset()
    for each in (alloc, other, late):
        assert all(tuple(segment["segment_pool_id"]) == (0, 0) for segment in each.history.segments())
        each.inspection.check_invariants()


def test_a_failed_capture_leaves_nothing_behind_in_any_allocator(alloc):
    other = allotment.Allocator(alloc.device)
    stream = allotment.Stream(alloc)
    with pytest.raises(ZeroDivisionError), allotment.capture(stream):
        for each in (alloc, other):
            each.free(each.malloc(SIZE))
        1 / 0  # noqa: B018
    for each in (alloc, other):
        assert each.stats()["reserved_bytes.all.current"] == 0
        assert each.empty(SIZE).stream == 0
    with allotment.capture(stream) as graph:
        pass
    graph.reset()


def test_an_allocator_closed_inside_a_capture_does_not_keep_it_from_ending(alloc):
    stream = allotment.Stream(alloc)
    with allotment.capture(stream) as graph, allotment.Allocator(alloc.device) as other:
        other.free(other.malloc(SIZE))
    graph.replay()
    graph.reset()


def test_a_refused_capture_does_not_disturb_the_one_in_progress(alloc):
    stream = allotment.Stream(alloc)
    with allotment.capture(stream) as graph:
        with pytest.raises(allotment.AllotmentError), allotment.capture(stream):
            pass
        inside = alloc.empty(SIZE)
        assert block_of(alloc, inside.address)[0] == graph.pool
    del inside
    graph.reset()


def test_the_pool_without_a_number_means_a_pool_of_its_own(alloc):
    stream = allotment.Stream(alloc)
    with allotment.capture(stream, pool=(0, 0)) as graph:
        address = alloc.malloc(SIZE)
        assert block_of(alloc, address)[0] == graph.pool != (0, 0)
        alloc.free(address)
    graph.replay()
    graph.reset()


def test_pool_handles_are_of_the_two_kinds_that_pytorch_has():
    user, graph = allotment.graph_pool_handle(), allotment.graph_pool_handle(False)
    assert user[0] == 0 < user[1] and graph[1] == 0 < graph[0]
    assert allotment.graph_pool_handle(is_user_created=False) > graph


def test_live_blocks_of_a_pool_may_be_named_by_buffers(alloc):
    pool = alloc.pool()
    with pool:
        buffer, address = alloc.empty(SIZE), alloc.malloc(SIZE)
    assert alloc.pools.check_live_allocations(pool.id, [buffer, address])
    assert alloc.pools.check_live_allocations(pool, {buffer, address})
    assert not alloc.pools.check_live_allocations(pool.id, [buffer])
    with pytest.raises(TypeError):
        alloc.pools.check_live_allocations(pool.id, ["x"])
    alloc.free(address)


def test_a_stream_that_was_never_left_is_current_on_no_later_device():
    def place(enter):
        made = allotment.Allocator("sim:1GiB")
        if enter:
            allotment.Stream(made).__enter__()
        return block_of(made, made.malloc(SIZE))[1], id(made.device)

    def after_many_devices():  # in a thread, because the entries stay with it
        left = {place(enter=True)[1] for _ in range(10)}
        later = [place(enter=False) for _ in range(10)]
        return [stream for stream, device in later if device in left]

    with ThreadPoolExecutor(1) as thread:
        streams = thread.submit(after_many_devices).result()
    assert streams  # of devices at the address of an earlier one
    assert set(streams) == {0}
