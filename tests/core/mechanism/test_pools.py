"""Private pools: whose requests they serve, whose memory they hold, and when it is released."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from allotment._allocators.caching.pool import next_user_pool_id
from allotment.errors import OutOfMemoryError, PoolError, RequestError
from helpers.engine import BUFFER, MIB, check, empties, on_device, reserved, segment_of, states, unchanged
from helpers.unraisable import reported

DEFAULT = (0, 0)


def pool_of(alloc, address):
    return segment_of(alloc, address)["segment_pool_id"]


class Ledger:
    """An allocator for a pool's segments that records every call."""

    def __init__(self):
        self.calls = []
        self.refuses = False

    def allocate(self, size, stream):
        if self.refuses:
            return None
        address = (1 << 45) + len(self.calls) * (1 << 30)
        self.calls.append(("allocate", address, size, stream))
        return address

    def free(self, address, size, stream):
        self.calls.append(("free", address, size, stream))


def in_thread(function):
    """Call the function in another thread; its result, or its error."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


# --- lifetime of a pool ---


def test_ids_are_given_in_order_and_never_twice():
    alloc = on_device()
    ids = [alloc.pool().id, next_user_pool_id(), alloc.pool().id]
    assert all(first == 0 for first, _ in ids)
    assert ids == sorted(ids)
    assert len(set(ids)) == 3


@pytest.mark.threads
def test_threads_that_make_pools_get_different_ids():
    alloc = on_device()
    made = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda own=own: own.extend(alloc.pool() for _ in range(50))) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pool.id for own in made for pool in own}) == 200
    check(alloc)


def test_a_pool_counts_its_users():
    alloc = on_device()
    pool = alloc.pool()
    assert pool.use_count == 1
    with pool:
        assert pool.use_count == 2
    assert pool.use_count == 1
    pool.close()
    with pytest.raises(PoolError):
        _ = pool.use_count


def test_a_closed_pool_releases_its_own_cached_memory_and_no_other():
    alloc = on_device()
    pool, other = alloc.pool(), alloc.pool()
    for each in (pool, other):
        with each:
            alloc.free(alloc.malloc(MIB))
    alloc.free(alloc.malloc(MIB))
    pool.close()
    assert sorted(s["segment_pool_id"] for s in alloc.history.segments()) == [DEFAULT, other.id]
    pool.close()
    check(alloc)


def test_a_pool_that_is_forgotten_is_closed():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        alloc.free(alloc.malloc(MIB))
    del pool
    gc.collect()
    assert alloc.device.used == 0
    check(alloc)


def test_blocks_outlive_their_pool():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        address = alloc.malloc(MIB)
    pool.close()
    assert pool_of(alloc, address) == pool.id
    alloc.free(address)
    assert reserved(alloc) == BUFFER, "freed, but cached until somebody asks for it back"
    empties(alloc)


def test_a_pool_that_grew_once_and_shrinks_in_two_places_outlives_the_block_between():
    alloc = on_device(settings="expandable_segments:True")
    pool = alloc.pool()
    with pool:
        alloc.free(alloc.malloc(100 * MIB))  # grows once
        left, between, right = (alloc.malloc(size * MIB) for size in (40, 20, 40))
    alloc.free(left)
    alloc.free(right)
    pool.close()
    assert states(alloc) == [[(20 * MIB, "active_allocated")]]
    check(alloc)
    alloc.free(between)
    alloc.empty_cache()
    assert alloc.history.segments() == []
    assert alloc.device.used == 0
    check(alloc)


def test_a_pool_without_users_cannot_be_used_again_until_its_memory_is_gone():
    alloc = on_device()
    pool = next_user_pool_id()
    alloc.pools.create_or_incref(pool)
    alloc.pools.begin_allocate_to_pool(pool)
    address = alloc.malloc(MIB)
    alloc.pools.end_allocate_to_pool(pool)
    for _ in range(2):
        alloc.pools.release(pool)
    with unchanged(alloc), pytest.raises(PoolError, match="last user"):
        alloc.pools.create_or_incref(pool)
    with unchanged(alloc), pytest.raises(PoolError, match="last user"):
        alloc.pools.begin_allocate_to_pool(pool)
    alloc.free(address)
    alloc.empty_cache()
    alloc.pools.begin_allocate_to_pool(pool)
    assert alloc.pools.use_count(pool) == 1
    check(alloc)


def test_emptying_one_pool_does_nothing_while_it_is_used():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        alloc.free(alloc.malloc(MIB))
    with unchanged(alloc):
        alloc.empty_cache(pool.id)
        with pytest.raises(PoolError, match="there is no pool"):
            alloc.empty_cache((0, 10**9))
    assert alloc.empty_cache() is None
    assert pool.reserved_bytes == BUFFER, "emptying everything leaves it too"


def test_emptying_the_cache_inside_a_pool_does_not_change_the_pool():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        address = alloc.malloc(MIB)
        alloc.free(address)
        alloc.empty_cache()
        assert alloc.malloc(MIB) == address
    check(alloc)


def test_a_pool_can_be_closed_while_requests_are_routed_to_another():
    alloc = on_device(settings="compat:2.11")
    gone, here = alloc.pool(), alloc.pool()
    with gone:
        read, idle = alloc.malloc(MIB), alloc.malloc(MIB)
    alloc.device.launch(7)
    alloc.record_stream(read, 7)
    alloc.free(read)
    alloc.free(idle)
    with here:
        gone.close()
        check(alloc)
        assert pool_of(alloc, read) == gone.id, "a block that a stream reads cannot be waited for now"
    empties(alloc)


def test_a_pool_can_be_closed_inside_itself():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        address = alloc.malloc(MIB)
        pool.close()
        assert pool_of(alloc, alloc.malloc(MIB)) == pool.id
    alloc.free(address)
    alloc.free(address + MIB)
    empties(alloc)


# --- which requests a pool serves ---


def test_a_pool_serves_the_thread_that_entered_it_on_every_stream_and_no_other_thread():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        assert pool_of(alloc, alloc.malloc(MIB, stream=1)) == pool.id
        assert pool_of(alloc, alloc.malloc(MIB, stream=2)) == pool.id
        assert pool_of(alloc, in_thread(lambda: alloc.malloc(MIB, stream=1))) == DEFAULT
    assert pool_of(alloc, alloc.malloc(MIB, stream=1)) == DEFAULT
    check(alloc)


@pytest.mark.threads
def test_threads_in_pools_of_their_own_do_not_disturb_each_other():
    """Also when they leave in the order in which they entered."""
    alloc = on_device()
    turn = {name: threading.Event() for name in ("first is in", "second is in", "first is out", "second is out")}
    served = {}

    def first():
        pool = alloc.pool()
        with pool:
            turn["first is in"].set()
            turn["second is in"].wait()
            served["first"] = (pool.id, pool_of(alloc, alloc.malloc(MIB)))
        turn["first is out"].set()

    def second():
        pool = alloc.pool()
        turn["first is in"].wait()
        with pool:
            turn["second is in"].set()
            turn["first is out"].wait()
            served["second"] = (pool.id, pool_of(alloc, alloc.malloc(MIB)))
        turn["second is out"].set()

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    turn["second is in"].wait()
    assert pool_of(alloc, alloc.malloc(MIB)) == DEFAULT
    for thread in threads:
        thread.join()
    assert all(own == pool for own, pool in served.values())
    assert served["first"][0] != served["second"][0]
    check(alloc)


@pytest.mark.threads
def test_many_threads_each_in_its_own_pool_get_only_their_own_memory():
    alloc = on_device()
    start = threading.Barrier(4)
    wrong = []

    def work():
        pool = alloc.pool()
        start.wait()
        for turn in range(40):
            with pool:
                address = alloc.malloc(512 + turn * 4096)
            if not alloc.pools.check_live_allocations(pool.id, [address]):
                wrong.append(turn)
            alloc.free(address)
        pool.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    empties(alloc)


def test_the_innermost_pool_serves_and_leaving_restores_the_outer_one():
    alloc = on_device()
    outer, inner = alloc.pool(), alloc.pool()
    with outer:
        assert pool_of(alloc, alloc.malloc(MIB)) == outer.id
        with inner:
            assert pool_of(alloc, alloc.malloc(MIB)) == inner.id
        assert pool_of(alloc, alloc.malloc(MIB)) == outer.id
    assert pool_of(alloc, alloc.malloc(MIB)) == DEFAULT
    check(alloc)


def leave_by_exception(alloc, inner):
    with pytest.raises(ZeroDivisionError), inner:
        alloc.malloc(1 // 0)


def leave_out_of_memory(alloc, inner):
    with pytest.raises(OutOfMemoryError), inner:
        alloc.malloc(1 << 50)


def leave_by_return(alloc, inner):
    def enter_and_return():
        with inner:
            return alloc.malloc(MIB)

    enter_and_return()


def leave_by_break(alloc, inner):
    for _ in range(3):
        with inner:
            break


def leave_a_generator(alloc, inner):
    def serve():
        with inner:
            yield alloc.malloc(MIB)

    steps = serve()
    next(steps)
    steps.close()


def leave_closed(alloc, inner):
    with inner:
        inner.close()


def leave_after_failing_to_enter_twice(alloc, inner):
    with inner, pytest.raises(PoolError), inner:
        raise AssertionError("a pool cannot be entered twice")


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_exception,
        leave_out_of_memory,
        leave_by_return,
        leave_by_break,
        leave_a_generator,
        leave_closed,
        leave_after_failing_to_enter_twice,
    ],
)
def test_leaving_a_pool_restores_the_outer_one_whichever_way(leave):
    alloc = on_device()
    outer, inner = alloc.pool(), alloc.pool()
    with outer:
        leave(alloc, inner)
        address = alloc.malloc(MIB, stream=4)
        assert pool_of(alloc, address) == outer.id
    assert outer.use_count == 1
    for segment in alloc.history.segments():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                alloc.free(block["address"])
    for pool in (outer, inner):
        pool.close()
    empties(alloc)


def test_temporary_pools_can_be_nested():
    alloc = on_device()
    with alloc.pool() as outer:
        with alloc.pool() as inner:
            address = alloc.malloc(MIB)
            assert pool_of(alloc, address) == inner.id
        assert pool_of(alloc, alloc.malloc(MIB)) == outer.id
    check(alloc)


def test_the_newest_route_that_fits_wins():
    alloc = on_device()
    by_stream, everything, elsewhere = alloc.pool(), alloc.pool(), alloc.pool()
    alloc.pools.begin_allocate_to_pool(everything.id)
    alloc.pools.begin_allocate_to_pool(by_stream.id, stream=5)
    alloc.pools.begin_allocate_to_pool(elsewhere.id, thread=threading.get_ident() + 1)
    assert pool_of(alloc, alloc.malloc(MIB, stream=5)) == by_stream.id
    assert pool_of(alloc, alloc.malloc(MIB, stream=6)) == everything.id
    alloc.pools.end_allocate_to_pool(by_stream.id)  # not the newest route
    assert pool_of(alloc, alloc.malloc(MIB, stream=5)) == everything.id
    check(alloc)


def test_a_function_can_say_which_streams_are_served():
    alloc = on_device()
    even, broken = alloc.pool(), alloc.pool()
    alloc.pools.begin_allocate_to_pool(even.id, accepts=lambda stream: stream % 2 == 0)
    assert pool_of(alloc, alloc.malloc(MIB, stream=2)) == even.id
    assert pool_of(alloc, alloc.malloc(MIB, stream=3)) == DEFAULT
    alloc.pools.begin_allocate_to_pool(broken.id, accepts=lambda stream: 1 // 0)
    with reported() as seen:
        assert pool_of(alloc, alloc.malloc(MIB, stream=2)) == even.id, "a filter that fails accepts nothing"
    assert [error.partition(":")[0] for _, error in seen] == ["ZeroDivisionError"]
    check(alloc)


def test_a_stream_whose_capture_is_unknown_gets_no_memory_of_the_wrong_pool():
    alloc = on_device()
    stream = alloc.device.create_stream()
    pool = alloc.pool()
    alloc.pools.begin_allocate_to_pool(pool.id, capture=alloc.device.begin_capture(stream))
    alloc.device.refuse("capture_status", out_of_memory=False)
    with pytest.raises(Exception, match="capture_status"):
        alloc.malloc(MIB, stream)
    assert alloc.history.segments() == []
    assert pool_of(alloc, alloc.malloc(MIB, stream)) == pool.id
    check(alloc)


def test_a_route_has_one_condition():
    alloc = on_device()
    pool = alloc.pool()
    with unchanged(alloc), pytest.raises(RequestError, match="one condition"):
        alloc.pools.begin_allocate_to_pool(pool.id, stream=1, thread=2)


def test_a_pool_is_routed_to_once_and_a_refusal_leaves_its_count():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        with unchanged(alloc), pytest.raises(PoolError, match="already recording"):
            alloc.pools.begin_allocate_to_pool(pool.id, stream=3)
        assert pool.use_count == 2
    with unchanged(alloc), pytest.raises(PoolError, match="not currently recording"):
        alloc.pools.end_allocate_to_pool(pool.id)
    assert pool.use_count == 1
    pool.close()
    empties(alloc)


# --- what a snapshot shows ---


def test_a_pools_snapshot_is_its_part_of_the_whole():
    alloc = on_device()
    pool = alloc.pool()
    alloc.malloc(MIB)
    with pool:
        alloc.malloc(MIB)
        alloc.malloc(30 * MIB)
    assert pool.segments() == [s for s in alloc.history.segments() if s["segment_pool_id"] == pool.id]
    assert len(pool.segments()) == 2
    assert pool.reserved_bytes == BUFFER + 30 * MIB
    with pytest.raises(PoolError, match="there is no pool"):
        alloc.history.segments((0, 10**9))
    check(alloc)


def test_exactly_the_blocks_in_use_are_live():
    alloc = on_device()
    pool = alloc.pool()
    with pool:
        blocks = [alloc.malloc(MIB) for _ in range(3)]
    alloc.malloc(MIB)
    assert alloc.pools.check_live_allocations(pool.id, blocks)
    assert not alloc.pools.check_live_allocations(pool.id, blocks[:2])
    assert not alloc.pools.check_live_allocations(pool.id, [*blocks, 4096])
    alloc.free(blocks[0])
    assert not alloc.pools.check_live_allocations(pool.id, blocks)
    assert alloc.pools.check_live_allocations(pool.id, blocks[1:])
    with pytest.raises(PoolError):
        alloc.pools.check_live_allocations((0, 10**9), [])


# --- pools with their own allocator ---


def test_a_pool_can_get_its_segments_from_an_allocator_of_its_own():
    alloc = on_device()
    ledger = Ledger()
    pool = alloc.pool(allocator=ledger)
    assert ledger.calls == []
    with pool:
        first, second, third = (alloc.malloc(MIB, stream=6) for _ in range(3))
    assert second == first + MIB
    assert ledger.calls == [("allocate", first, BUFFER, 6), ("allocate", third, BUFFER, 6)]
    assert alloc.device.used == 0
    check(alloc)
    for address in (first, second, third):
        alloc.free(address)
    pool.close()
    assert [call[0] for call in ledger.calls[2:]] == ["free", "free"]
    assert {call[1:] for call in ledger.calls[2:]} == {(first, BUFFER, 6), (third, BUFFER, 6)}


def test_the_allocator_of_a_pool_lives_as_long_as_the_memory_it_gave():
    alloc = on_device()
    ledger = Ledger()
    calls = ledger.calls
    pool = alloc.pool(allocator=ledger)
    with pool:
        address = alloc.malloc(MIB)
    del ledger
    pool.close()
    gc.collect()
    alloc.free(address)
    alloc.empty_cache()
    assert calls[-1] == ("free", address, BUFFER, 0)
    check(alloc)


@pytest.mark.parametrize("refusal", ["none", "memory error", "another error"])
def test_an_allocator_that_has_nothing_means_out_of_memory(refusal):
    alloc = on_device()
    ledger = Ledger()
    pool = alloc.pool(allocator=ledger)
    if refusal == "none":
        ledger.refuses = True
    else:

        def fail(size, stream):
            raise MemoryError if refusal == "memory error" else KeyError("oops")

        ledger.allocate = fail
    with reported() as seen, pool, pytest.raises(OutOfMemoryError):
        alloc.malloc(MIB)
    assert {error for _, error in seen} == ({"KeyError: 'oops'"} if refusal == "another error" else set())
    check(alloc)


def test_a_pool_with_its_own_allocator_is_never_expandable():
    alloc = on_device(settings="expandable_segments:True")
    pool = alloc.pool(allocator=Ledger())
    with pool:
        inside = alloc.malloc(MIB)
    outside = alloc.malloc(MIB)
    assert not segment_of(alloc, inside)["is_expandable"]
    assert segment_of(alloc, outside)["is_expandable"]
    check(alloc)


def test_a_pool_that_exists_cannot_be_given_an_allocator():
    alloc = on_device()
    pool = alloc.pool()
    with unchanged(alloc), pytest.raises(PoolError, match="exists already"):
        alloc.pools.create_or_incref(pool.id, Ledger())
    assert pool.use_count == 1


# --- pools that do not split ---


def test_a_pool_that_does_not_split_hands_out_whole_segments():
    alloc = on_device()
    whole, cut = alloc.pool(no_split=True), alloc.pool()
    for pool in (whole, cut):
        with pool:
            alloc.malloc(4 * MIB)
            alloc.malloc(4 * MIB)
    assert [len(blocks) for blocks in states(alloc, whole.id)] == [1, 1]
    assert [len(blocks) for blocks in states(alloc, cut.id)] == [3]
    assert alloc.stats()["requested_bytes.all.current"] == 16 * MIB
    check(alloc)


# --- lending ---


def test_a_pool_that_lends_serves_when_memory_is_out_and_only_with_what_it_has():
    alloc = on_device(limit=80 * MIB)
    lender, miser = alloc.pool(use_on_oom=True), alloc.pool()
    blocks = []
    for pool in (lender, miser):
        with pool:
            blocks.append(alloc.malloc(40 * MIB))
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(40 * MIB)
    for address in blocks:
        alloc.free(address)
    borrowed = alloc.malloc(30 * MIB)
    assert borrowed == blocks[0]
    assert pool_of(alloc, borrowed) == lender.id
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    alloc.free(borrowed)
    with lender:
        assert alloc.malloc(40 * MIB) == blocks[0]
    assert lender.use_count == 1
    check(alloc)


def test_of_several_lenders_the_oldest_that_can_serve_does():
    alloc = on_device(limit=100 * MIB)
    lenders = [alloc.pool(use_on_oom=True) for _ in range(3)]
    sizes = (12 * MIB, 44 * MIB, 44 * MIB)
    for lender, size in zip(lenders, sizes, strict=True):
        with lender:
            alloc.free(alloc.malloc(size))
    served = [pool_of(alloc, alloc.malloc(30 * MIB)) for _ in range(2)]
    assert served == [lenders[1].id, lenders[2].id]
    assert pool_of(alloc, alloc.malloc(12 * MIB)) == lenders[0].id
    assert [lender.use_count for lender in lenders] == [1, 1, 1]
    check(alloc)


def test_a_lender_honours_its_own_wish_not_to_be_split():
    alloc = on_device(limit=40 * MIB)
    lender = alloc.pool(use_on_oom=True, no_split=True)
    with lender:
        alloc.free(alloc.malloc(40 * MIB))
    alloc.malloc(12 * MIB)
    assert states(alloc, lender.id) == [[(40 * MIB, "active_allocated")]]
    check(alloc)


def test_expandable_memory_is_not_lent():
    alloc = on_device(settings="expandable_segments:True", limit=40 * MIB)
    lender = alloc.pool(use_on_oom=True)
    with lender:
        alloc.free(alloc.malloc(40 * MIB))
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    check(alloc)


def test_requests_of_private_pools_borrow_nothing():
    alloc = on_device(limit=40 * MIB)
    lender, other = alloc.pool(use_on_oom=True), alloc.pool()
    with lender:
        alloc.free(alloc.malloc(40 * MIB))
    with other, pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    check(alloc)


def test_a_closed_pool_lends_no_more():
    alloc = on_device(limit=80 * MIB)
    gone, here = alloc.pool(use_on_oom=True), alloc.pool(use_on_oom=True)
    with gone:
        kept = alloc.malloc(2 * MIB)
        alloc.free(alloc.malloc(18 * MIB))
    with here:
        alloc.free(alloc.malloc(40 * MIB))
    gone.close()
    served = [alloc.malloc(18 * MIB) for _ in range(2)]
    assert [pool_of(alloc, address) for address in served] == [DEFAULT, here.id]
    alloc.free(kept)
    check(alloc)


def test_a_lender_in_use_refuses_and_is_unchanged():
    alloc = on_device(limit=40 * MIB)
    lender = alloc.pool(use_on_oom=True)
    with lender:
        alloc.free(alloc.malloc(40 * MIB))
        with unchanged(alloc), pytest.raises(PoolError, match="already recording"):
            in_thread(lambda: alloc.malloc(30 * MIB))
        assert lender.use_count == 2
    assert pool_of(alloc, alloc.malloc(30 * MIB)) == lender.id


def test_a_loan_does_not_disturb_deferred_frees():
    alloc = on_device(limit=40 * MIB)
    lender = alloc.pool(use_on_oom=True)
    with lender:
        address = alloc.malloc(40 * MIB)
    alloc.device.launch(7)
    alloc.record_stream(address, 7)
    alloc.free(address)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    check(alloc)
    alloc.device.finish()
    assert alloc.malloc(30 * MIB) == address


def test_a_lender_that_is_closed_lends_no_more():
    alloc = on_device(60 * MIB)
    alloc.pools.create_or_incref((7, 0))
    alloc.pools.set_use_on_oom((7, 0), True)
    alloc.pools.begin_allocate_to_pool((7, 0))
    alloc.free(alloc.malloc(30 * MIB))
    alloc.pools.end_allocate_to_pool((7, 0))
    alloc.pools.release((7, 0))
    alloc.pools.release((7, 0))
    alloc.empty_cache((7, 0))
    check(alloc)
    with pytest.raises(PoolError):
        alloc.pools.use_count((7, 0))
    assert alloc.malloc(50 * MIB)
    check(alloc)
