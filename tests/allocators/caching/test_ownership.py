"""The owner of a block after a restore of its pool: no buffer frees a block that it does not own."""

import gc
import threading
from types import SimpleNamespace

import pytest

import allotment
from allotment import AddressError, Buffer, RequestError
from helpers.child import output_of
from helpers.engine import MIB, check, on_device

SETTINGS = ["", "expandable_segments:True"]


@pytest.fixture(params=SETTINGS)
def alloc(request):
    return on_device(settings=request.param)


def live(alloc):
    return alloc.stats()["allocation.all.current"]


def buffers(alloc, pool, *sizes):
    with pool:
        return [alloc.empty(size) for size in sizes]


def test_a_buffer_whose_block_ended_frees_nothing(alloc):
    pool = alloc.pool()
    state_before = buffers(alloc, pool, MIB)
    state = pool.checkpoint()
    stale = buffers(alloc, pool, 512)[0]
    address = stale.address
    pool.restore(state)
    new = buffers(alloc, pool, 512)[0]
    assert new.address == address
    del stale
    gc.collect()
    assert live(alloc) == 2, "the block at that address is another's now"
    check(alloc)
    del new, state_before
    assert live(alloc) == 0
    check(alloc)


def test_a_buffer_whose_block_ended_says_so(alloc):
    pool = alloc.pool()
    kept = buffers(alloc, pool, MIB)
    state = pool.checkpoint()
    stale = buffers(alloc, pool, 512)[0]
    pool.restore(state)
    for use in (
        lambda: stale.address,
        lambda: stale.record_stream(3),
        lambda: alloc.record_stream(stale, 3),
        lambda: alloc.copy(stale, kept[0], 1),
    ):
        with pytest.raises(RequestError, match="restored"):
            use()
    assert "Buffer of 512 bytes" in repr(stale)
    assert len(stale) == 512


def test_a_buffer_that_was_there_all_the_time_goes_on_owning_its_block(alloc):
    pool = alloc.pool()
    first, second = buffers(alloc, pool, MIB, 512)
    state = pool.checkpoint()
    freed, created = pool.restore(state)
    assert set(freed) == set(created) == {first.address, second.address}
    del first
    assert live(alloc) == 1
    del second
    assert live(alloc) == 0
    check(alloc)


def test_a_block_that_came_back_without_its_buffer_is_the_callers(alloc):
    pool = alloc.pool()
    first, second = buffers(alloc, pool, MIB, 512)
    state = pool.checkpoint()
    addresses = {first.address, second.address}
    del first, second
    freed, created = pool.restore(state)
    assert (freed, set(created)) == ([], addresses)
    assert live(alloc) == 2
    alloc.free(created[0])
    owner = Buffer(alloc, created[1], 512)
    assert live(alloc) == 1
    del owner
    assert live(alloc) == 0
    check(alloc)


def test_a_buffer_gets_its_block_back_with_the_state_that_had_it(alloc):
    pool = alloc.pool()
    base = buffers(alloc, pool, MIB)
    without = pool.checkpoint()
    buffer = buffers(alloc, pool, 512)[0]
    address = buffer.address
    including = pool.checkpoint()
    pool.restore(without)
    other = buffers(alloc, pool, 512)[0]
    assert other.address == address
    pool.restore(including)
    assert buffer.address == address
    with pytest.raises(RequestError):
        _ = other.address
    del other
    assert live(alloc) == 2
    del buffer, base
    assert live(alloc) == 0
    check(alloc)


def test_a_state_keeps_no_buffer_alive(alloc):
    pool = alloc.pool()
    buffer = buffers(alloc, pool, MIB)[0]
    state = pool.checkpoint()
    assert list(state.owners) == [buffer.address]
    del buffer
    assert live(alloc) == 0
    assert [reference() for reference in state.owners.values()] == [None]


def test_buffers_of_other_pools_keep_theirs(alloc):
    pool, other = alloc.pool(), alloc.pool()
    inside = buffers(alloc, pool, MIB)[0]
    elsewhere, outside = buffers(alloc, other, MIB)[0], alloc.empty(MIB)
    state = pool.checkpoint()
    pool.restore(state)
    for buffer in (inside, elsewhere, outside):
        assert buffer.address
    del inside, elsewhere, outside, buffer
    assert live(alloc) == 0
    check(alloc)


def test_a_buffer_dropped_by_a_tracker_in_the_middle_of_a_restore_frees_nothing_else(alloc):
    pool = alloc.pool()
    held = buffers(alloc, pool, MIB)
    state = pool.checkpoint()
    actions = []

    def tracker(action, *entry):
        actions.append(action)
        held.clear()

    alloc.history.attach_trace_tracker(tracker)
    pool.restore(state)
    assert "alloc" in actions and held == []
    assert live(alloc) == 0, "what came back was the buffer's again, and went with it"
    check(alloc)


def test_what_a_tracker_frees_in_the_middle_of_a_restore_is_not_what_came_back(alloc):
    pool = alloc.pool()
    with pool:
        addresses = [alloc.malloc(MIB) for _ in range(2)]
    state = pool.checkpoint()
    asked = []

    def tracker(action, where, *entry):
        if action == "free_requested" and not asked:
            asked.append(where)
            with pytest.raises(AddressError):
                alloc.free(where)  # the restore is freeing it
            (other,) = set(addresses) - {where}
            alloc.free(other)  # late, and the restore has freed it by then

    alloc.history.attach_trace_tracker(tracker)
    freed, created = pool.restore(state)
    assert sorted(freed) == sorted(created) == addresses
    assert len(asked) == 1 and live(alloc) == 2
    check(alloc)


def test_the_last_buffer_made_of_a_block_owns_it():
    alloc = on_device()
    first = alloc.empty(100)
    second = Buffer(alloc, first.address, 100)
    with pytest.raises(RequestError):
        _ = first.address
    del first
    assert live(alloc) == 1
    del second
    assert live(alloc) == 0
    check(alloc)


@pytest.mark.parametrize("size", [0, 1, 512])
def test_a_buffer_is_made_only_of_a_live_block(size):
    alloc = on_device()
    address = alloc.malloc(512)
    alloc.free(address)
    with pytest.raises(RequestError, match="not in a live block"):
        Buffer(alloc, address, size)
    address = alloc.malloc(512)
    with pytest.raises(RequestError, match="exceed its block"):
        Buffer(alloc, address, 513)
    alloc.free(address)
    check(alloc)


@pytest.mark.parametrize("kind", ["ours", "foreign"])
def test_a_buffer_of_bytes_needs_an_address(kind):
    allocator = allotment.Allocator("host") if kind == "ours" else SimpleNamespace(free=lambda address: None)
    with pytest.raises(AddressError, match="needs the address of a block"):
        Buffer(allocator, 0, 1)
    assert Buffer(allocator, 0, 0).size == 0


@pytest.mark.threads
def test_buffers_dropped_by_threads_while_a_pool_is_restored_free_nothing_else():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        kept = [alloc.malloc(512) for _ in range(4)]
    state = pool.checkpoint()
    done = threading.Event()
    waiting: list[Buffer] = []

    def drop():
        while not done.is_set() or waiting:
            if waiting:
                waiting.pop()

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        waiting.extend(buffers(alloc, pool, *[512] * 8))
        pool.restore(state)
        check(alloc)
    done.set()
    for thread in threads:
        thread.join()
    assert alloc.pools.check_live_allocations(pool.id, kept)
    check(alloc)


def test_memory_of_a_buffer_that_was_freed_by_its_address_cannot_be_looked_at():
    printed = output_of("""
        import os, sys
        import allotment

        allocator = allotment.Allocator("host")
        buffer = allocator.empty(1 << 22)
        allocator.free(buffer.address)
        allocator.empty_cache()
        for look in (memoryview, bytes, lambda buffer: buffer.__dlpack__()):
            try:
                look(buffer)
            except allotment.AddressError:
                print("refused")
        try:
            allotment.Buffer(allocator, 12345, 1 << 20)
        except allotment.AddressError:
            print("refused")
        sys.stdout.flush()
        os._exit(0)         # before the buffer goes, and frees a second time
    """)
    assert printed.split() == ["refused"] * 4


@pytest.mark.threads
def test_a_weak_reference_gives_no_allocator_that_is_being_taken_apart():
    program = """
    import threading, weakref
    import allotment

    latest, made, done = [lambda: None], 4000, threading.Event()

    def look():
        while not done.is_set():
            allocator = latest[0]()
            if allocator is not None:
                allocator.stats()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(made):
        allocator = allotment.Allocator("sim:1GiB")
        latest[0] = weakref.ref(allocator)
        allocator.free(allocator.malloc(1000))
        del allocator
    done.set()
    for thread in threads:
        thread.join()
    print("whole")
    """
    assert output_of(program).splitlines() == ["whole"]
