"""The arrangement of a private pool, saved and restored."""

from dataclasses import replace

import pytest

from allotment.errors import CheckpointError, DeviceError, PoolError
from helpers.engine import BUFFER, MIB, SEGMENT, check, empties, on_device, reserved, unchanged

SETTINGS = ["", "expandable_segments:True"]


def arrangement(pool):
    """A pool's blocks, by segment; without requested sizes, which a state does not store."""
    return {
        segment["address"]: [(block["address"], block["size"], block["state"]) for block in segment["blocks"]]
        for segment in pool.segments()
    }


def served(alloc, pool, *sizes):
    with pool:
        return [alloc.malloc(size) for size in sizes]


@pytest.fixture(params=SETTINGS)
def alloc(request):
    return on_device(settings=request.param)


@pytest.fixture
def pool(alloc):
    return alloc.pool()


def gone(alloc, pool, blocks):
    """When its blocks are freed and the pool is closed, nothing of it is left."""
    for address in blocks:
        alloc.free(address)
    pool.close()
    empties(alloc)


# --- restored at once ---


@pytest.mark.parametrize(
    ("sizes", "freed"),
    [
        ([MIB], []),
        ([MIB, 512, 512], [1]),
        ([3 * MIB, 3 * MIB, 3 * MIB], [0, 2]),
        ([3 * MIB] * 6, [1, 2, 4]),
        ([3 * MIB] * 6, [1, 2, 3]),
        ([512, MIB, 3 * MIB, 11 * MIB, 24 * MIB, 100, 2 * MIB], [1, 3]),
        ([], []),
        ([MIB, 3 * MIB], [0, 1]),
    ],
)
def test_a_state_brought_back_at_once_changes_no_block(alloc, pool, sizes, freed):
    blocks = served(alloc, pool, *sizes)
    for place in freed:
        alloc.free(blocks[place])
    live = {address for place, address in enumerate(blocks) if place not in freed}
    before, held = arrangement(pool), reserved(alloc)
    state = pool.checkpoint()
    assert state.in_use == live
    freed_by_it, created = pool.restore(state)
    assert set(freed_by_it) == set(created) == live
    assert (arrangement(pool), reserved(alloc)) == (before, held)
    assert alloc.pools.check_live_allocations(pool.id, live)
    check(alloc)
    gone(alloc, pool, live)


def test_a_state_can_be_brought_back_again_and_again(alloc, pool):
    blocks = served(alloc, pool, MIB, MIB, 3 * MIB)
    alloc.free(blocks[1])
    state, before = pool.checkpoint(), arrangement(pool)
    for _ in range(3):
        pool.restore(state)
        assert arrangement(pool) == before
        check(alloc)
    gone(alloc, pool, [blocks[0], blocks[2]])


# --- restored after other calls ---


def test_what_was_allocated_since_is_freed_and_new_segments_stay_free():
    alloc = on_device()
    pool = alloc.pool()
    blocks = served(alloc, pool, MIB)
    state, before = pool.checkpoint(), arrangement(pool)
    later = served(alloc, pool, 3 * MIB, 512)
    freed, created = pool.restore(state)
    assert set(freed) == {*blocks, *later}
    assert created == blocks
    now = arrangement(pool)
    assert {base: now[base] for base in before} == before
    assert [blocks for base, blocks in now.items() if base not in before] == [[(later[0], SEGMENT, "inactive")]]
    check(alloc)
    gone(alloc, pool, blocks)


def test_what_was_freed_since_is_in_use_again_and_can_be_freed(alloc, pool):
    blocks = served(alloc, pool, MIB, 512, 3 * MIB)
    state, before = pool.checkpoint(), arrangement(pool)
    for address in blocks:
        alloc.free(address)
    freed, created = pool.restore(state)
    assert (freed, set(created)) == ([], set(blocks))
    assert arrangement(pool) == before
    for left in (2, 1, 0):
        alloc.free(blocks[left])
        assert alloc.stats()["allocation.all.current"] == left
        check(alloc)
    gone(alloc, pool, [])


def test_blocks_cut_otherwise_since_are_cut_as_they_were(alloc, pool):
    blocks = served(alloc, pool, 512 * 1024, 512 * 1024)
    state, before = pool.checkpoint(), arrangement(pool)
    for address in blocks:
        alloc.free(address)
    served(alloc, pool, 4096, 700_000, 100_000)
    pool.restore(state)
    assert arrangement(pool) == before
    check(alloc)
    gone(alloc, pool, blocks)


def test_every_step_of_a_restore_is_counted():
    alloc = on_device()
    pool = alloc.pool()
    first, second, _third = served(alloc, pool, 1000, 1000, 1000)
    alloc.free(second)
    state = pool.checkpoint()  # in use, free, in use, free
    alloc.free(first)
    before = alloc.stats()
    pool.restore(state)
    moved = {key: value - before[key] for key, value in alloc.stats().items()}
    assert moved["allocation.all.allocated"] == 4
    assert moved["allocation.all.freed"] == 1 + 2
    assert moved["requested_bytes.all.allocated"] == BUFFER, "a revived block's request is its size"
    assert moved["segment.all.allocated"] == moved["num_device_alloc"] == 0
    assert alloc.stats()["requested_bytes.all.current"] == 2048
    check(alloc)


def test_other_pools_are_not_touched(alloc, pool):
    other = alloc.pool()
    outside, elsewhere = alloc.malloc(MIB), served(alloc, other, MIB)[0]
    blocks = served(alloc, pool, MIB)
    state, before = pool.checkpoint(), arrangement(other)
    alloc.free(blocks[0])
    pool.restore(state)
    assert arrangement(other) == before
    assert alloc.pools.check_live_allocations(other.id, [elsewhere])
    alloc.free(outside)
    check(alloc)


# --- refused ---


def test_a_pool_without_users_has_no_state():
    alloc = on_device()
    pool = alloc.pool()
    address = served(alloc, pool, MIB)[0]
    state = pool.checkpoint()
    pool.close()
    for call in (pool.checkpoint, lambda: pool.restore(state)):
        with unchanged(alloc), pytest.raises(PoolError, match="last user"):
            call()
    alloc.free(address)
    alloc.empty_cache()
    for call in (pool.checkpoint, lambda: pool.restore(state)):
        with unchanged(alloc), pytest.raises(PoolError, match="no pool"):
            call()


def test_the_default_pools_have_no_state():
    alloc = on_device()
    alloc.malloc(MIB)
    with unchanged(alloc), pytest.raises(PoolError):
        alloc.pools.checkpoint((0, 0))


@pytest.mark.parametrize("state", [None, 7, "state", ()])
def test_only_a_state_can_be_brought_back(state):
    alloc = on_device()
    pool = alloc.pool()
    with unchanged(alloc), pytest.raises(CheckpointError, match="PoolState"):
        pool.restore(state)


def test_a_state_of_another_allocator_is_refused():
    alloc, other = on_device(), on_device()
    state = other.pool().checkpoint()
    with unchanged(alloc), pytest.raises(CheckpointError, match="another allocator"):
        alloc.pools.restore(state)


def blocks_of(pool):
    return [(block["size"], block["state"]) for segment in pool.segments() for block in segment["blocks"]]


@pytest.mark.parametrize(
    ("recorded", "left"),
    [(3 * MIB, [(3 * MIB, "active_allocated"), (37 * MIB, "inactive")]),
     (20 * MIB, [(20 * MIB, "active_allocated"), (40 * MIB, "inactive")])],
)  # fmt: skip
def test_what_an_expandable_pool_has_grown_by_at_its_end_is_free_after_a_restore(recorded, left):
    alloc = on_device(settings="expandable_segments:True")
    pool = alloc.pool()
    blocks = served(alloc, pool, recorded)
    state = pool.checkpoint()
    grown = served(alloc, pool, 30 * MIB)
    assert pool.restore(state) == (blocks + grown, blocks)
    check(alloc)
    assert blocks_of(pool) == left
    assert pool.restore(state) == (blocks, blocks)
    check(alloc)
    assert blocks_of(pool) == left
    gone(alloc, pool, blocks)


def test_an_expandable_pool_that_has_grown_elsewhere_is_refused_without_a_change():
    alloc = on_device(settings="expandable_segments:True")
    pool = alloc.pool()
    blocks = served(alloc, pool, *[20 * MIB] * 3)
    alloc.free(blocks.pop(1))
    state = pool.checkpoint()
    (segment,) = state.segments
    with_hole = [replace(block, mapped=block.in_use) for block in segment.blocks]
    state = replace(state, segments=(replace(segment, blocks=tuple(with_hole)),))
    with unchanged(alloc), pytest.raises(CheckpointError, match="grown since"):
        pool.restore(state)
    gone(alloc, pool, blocks)


def test_a_pool_that_grew_and_shrank_back_is_as_it_was():
    alloc = on_device()
    pool = alloc.pool()
    blocks = served(alloc, pool, 3 * MIB)
    state = pool.checkpoint()
    alloc.free(served(alloc, pool, 30 * MIB)[0])
    pool.restore(state)
    check(alloc)
    gone(alloc, pool, blocks)


def test_a_pool_of_the_same_id_that_lost_its_segments_is_refused():
    alloc = on_device()
    pool = (0, 10**6)
    alloc.pools.create_or_incref(pool)
    alloc.pools.begin_allocate_to_pool(pool)
    address = alloc.malloc(MIB)
    alloc.pools.end_allocate_to_pool(pool)
    state = alloc.pools.checkpoint(pool)
    alloc.free(address)
    for _ in range(2):
        alloc.pools.release(pool)
    alloc.empty_cache()
    alloc.pools.create_or_incref(pool)
    with unchanged(alloc), pytest.raises(CheckpointError, match="released"):
        alloc.pools.restore(state)


def waiting_block(alloc, pool):
    """A block that a busy stream reads."""
    address = served(alloc, pool, MIB)[0]
    alloc.device.launch(7)
    alloc.record_stream(address, 7)
    return address


def test_while_a_block_waits_for_a_stream_there_is_no_state(alloc, pool):
    state = pool.checkpoint()
    alloc.free(waiting_block(alloc, pool))
    with unchanged(alloc), pytest.raises(CheckpointError, match="waits"):
        pool.checkpoint()
    alloc.device.finish()
    alloc.malloc(512)
    pool.checkpoint()
    assert state.segments == ()


def test_streams_that_use_live_blocks_are_waited_for(alloc, pool):
    kept = served(alloc, pool, 512)
    state, before = pool.checkpoint(), arrangement(pool)
    address = waiting_block(alloc, pool)
    alloc.record_stream(kept[0], 7)
    freed, created = pool.restore(state)
    assert (set(freed), created) == ({address, *kept}, kept)
    assert arrangement(pool) == before
    assert alloc.inspection.pending_events() == []
    assert alloc.device.calls["stream_synchronize"] == 1
    check(alloc)
    gone(alloc, pool, kept)


def test_frees_that_wait_are_waited_for(alloc, pool):
    kept = served(alloc, pool, 512)
    state, before = pool.checkpoint(), arrangement(pool)
    alloc.free(waiting_block(alloc, pool))
    assert pool.restore(state) == (kept, kept)
    assert arrangement(pool) == before
    check(alloc)
    gone(alloc, pool, kept)


@pytest.mark.parametrize("failing", ["stream_synchronize", "event_synchronize"])
def test_a_wait_that_fails_changes_nothing(alloc, pool, failing):
    served(alloc, pool, 512)
    state = pool.checkpoint()
    address = waiting_block(alloc, pool)
    if failing == "event_synchronize":
        alloc.free(address)
    alloc.device.refuse(failing, out_of_memory=False)
    live = {block["address"] for s in pool.segments() for block in s["blocks"] if block["state"] == "active_allocated"}
    with pytest.raises(DeviceError, match=failing):
        pool.restore(state)
    check(alloc)
    assert alloc.pools.check_live_allocations(pool.id, live)
    if failing == "stream_synchronize":
        alloc.free(address)
        assert [block for _, _, block in alloc.inspection.pending_events()] == [address], (
            "the stream is still one of its users"
        )
    pool.restore(state)
    check(alloc)


def test_a_block_that_a_capture_uses_is_not_restored_over(alloc, pool):
    device = alloc.device
    kept = served(alloc, pool, 512)
    state = pool.checkpoint()
    stream = device.create_stream()
    alloc.record_stream(kept[0], stream)
    device.begin_capture(stream)
    before = arrangement(pool), alloc.stats()
    with pytest.raises(CheckpointError, match="being captured"):
        pool.restore(state)
    assert (arrangement(pool), alloc.stats()) == before
    device.end_capture(stream)  # the capture is still valid
    assert pool.restore(state) == (kept, kept)
    check(alloc)


def test_blocks_of_later_segments_may_wait():
    alloc = on_device()
    pool = alloc.pool()
    served(alloc, pool, 3 * MIB)
    state = pool.checkpoint()
    address = waiting_block(alloc, pool)
    freed, _ = pool.restore(state)
    assert address in freed
    assert [block for _, _, block in alloc.inspection.pending_events()] == [address]
    check(alloc)


def test_taking_a_state_flushes_what_routing_put_off():
    alloc = on_device(settings="compat:2.11")
    pool = alloc.pool()
    with pool:
        address = alloc.malloc(MIB)
        alloc.record_stream(address, 7)
        alloc.free(address)
        state = pool.checkpoint()
    assert state.in_use == frozenset()
    check(alloc)


@pytest.mark.parametrize("failing", ["event_create", "event_record"])
def test_a_device_without_an_event_to_give_does_not_stop_a_restore(failing):
    alloc = on_device()
    pool = alloc.pool()
    first = served(alloc, pool, 3 * MIB)[0]
    state = pool.checkpoint()
    alloc.free(first)
    with pool:
        later = [alloc.malloc(MIB), alloc.malloc(MIB)]
        alloc.device.launch(7)
        for address in later:
            alloc.record_stream(address, 7)
    alloc.device.refuse(failing, after=1, out_of_memory=False)
    freed, created = pool.restore(state)
    assert (set(freed), created) == (set(later), [first])
    check(alloc)
    alloc.malloc(512)  # processes the second event
    assert sorted(block for _, _, block in alloc.inspection.pending_events()) == later
    check(alloc)
    alloc.free(first)
    alloc.device.finish()
    pool.close()


# --- states that no pool ever had ---


def tampered(state, change):
    segment = state.segments[0]
    return replace(state, segments=(replace(segment, blocks=change(segment.blocks)),))


@pytest.mark.parametrize(
    "change",
    [
        lambda blocks: (),
        lambda blocks: blocks[:1],
        lambda blocks: blocks[1:],
        lambda blocks: blocks + blocks[-1:],
        lambda blocks: tuple(reversed(blocks)),
        lambda blocks: (replace(blocks[0], size=blocks[0].size + 1), *blocks[1:]),
        lambda blocks: (replace(blocks[0], size=0), *blocks[1:]),
        lambda blocks: (  # the same total size, but not in steps of 512
            replace(blocks[0], size=blocks[0].size - 256),
            replace(blocks[1], address=blocks[1].address - 256, size=blocks[1].size + 256),
            *blocks[2:],
        ),
        lambda blocks: (replace(blocks[0], size=blocks[0].size + 512), *blocks[1:]),
        lambda blocks: (replace(blocks[0], address=blocks[0].address + 512), *blocks[1:]),
        lambda blocks: tuple(replace(block, in_use=False) for block in blocks),
        lambda blocks: tuple(replace(block, mapped=False) for block in blocks),
        lambda blocks: (replace(blocks[0], size=1 << 62), *blocks[1:]),
        lambda blocks: (replace(blocks[0], size=1 << 70), *blocks[1:]),
        lambda blocks: (replace(blocks[0], size=-512), *blocks[1:]),
        lambda blocks: (replace(blocks[0], address="0x0"), *blocks[1:]),
        lambda blocks: (None, *blocks[1:]),
        lambda blocks: None,
    ],
)
def test_a_state_that_does_not_fit_its_pool_is_refused_without_a_change(change):
    alloc = on_device()
    pool = alloc.pool()
    served(alloc, pool, 512 * 1024, 512 * 1024)
    state = pool.checkpoint()
    with unchanged(alloc), pytest.raises(CheckpointError):
        pool.restore(tampered(state, change))
    pool.restore(state)
    check(alloc)


def test_a_segment_named_twice_is_refused():
    alloc = on_device()
    pool = alloc.pool()
    served(alloc, pool, MIB)
    state = pool.checkpoint()
    with unchanged(alloc), pytest.raises(CheckpointError):
        pool.restore(replace(state, segments=state.segments * 2))
