"""Limits of pools, tags and tenants: refused requests, the named limit, and the memory that is released instead."""

import random

import pytest

import allotment
from allotment.errors import OutOfMemoryError, PoolError, RequestError
from helpers.engine import GIB, MIB, on_device, reserved


def refused(allocate, size, *arguments):
    with pytest.raises(OutOfMemoryError) as caught:
        allocate(size, *arguments)
    return caught.value


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_two_tenants_and_a_pool_at_their_limits_each_get_their_own_error(settings):
    alloc = on_device(GIB, settings)
    pool = alloc.pool()
    pool.limit = "60MiB"
    a, b = alloc.tenant("a"), alloc.tenant("b")
    a.limit, b.limit = 10 * MIB, "20MiB"
    of_a, of_b = a.malloc(8 * MIB), b.malloc(18 * MIB)
    with pool:
        of_pool = alloc.malloc(50 * MIB)
        by_pool = refused(alloc.malloc, 15 * MIB).facts
    by_a, by_b = refused(a.malloc, 4 * MIB).facts, refused(b.malloc, 4 * MIB).facts
    assert (by_a.limited_by, by_a.limit, by_a.tenant) == ("tenant 'a'", 10 * MIB, "a")
    assert (by_b.limited_by, by_b.limit, by_b.tenant) == ("tenant 'b'", 20 * MIB, "b")
    assert (by_pool.limited_by, by_pool.limit, by_pool.pool) == (f"pool {pool.id}", 60 * MIB, pool.id)
    alloc.inspection.check_invariants()
    a.free(of_a)
    assert a.malloc(10 * MIB)
    assert alloc.malloc(300 * MIB), "who has no limit is not refused"
    alloc.free(of_b)
    alloc.free(of_pool)
    alloc.inspection.check_invariants()


def test_the_message_names_whose_limit_it_was():
    alloc = on_device()
    tenant = alloc.tenant("cupy")
    tenant.limit = MIB
    assert "limit of tenant 'cupy'" in str(refused(tenant.malloc, 2 * MIB))
    alloc.set_limit("weights", hard=2 * MIB)
    with allotment.tag("weights"):
        assert "limit of tag 'weights'" in str(refused(alloc.malloc, 30 * MIB))


def test_what_a_tenant_holds_is_counted_from_before_its_limit_was_set():
    alloc = on_device()
    tenant = alloc.tenant("early")
    address = tenant.malloc(MIB)
    tenant.limit = MIB + 512
    refused(tenant.malloc, MIB)
    tenant.free(address)
    assert tenant.malloc(MIB)
    tenant.limit = None
    assert tenant.limit is None
    assert tenant.malloc(10 * MIB)
    alloc.inspection.check_invariants()


def test_a_tenants_block_that_waits_for_another_stream_is_not_its_any_more():
    alloc = on_device()
    tenant = alloc.tenant("t")
    tenant.limit = MIB
    address = tenant.malloc(MIB)
    alloc.device.launch(7)
    tenant.record_stream(address, 7)
    tenant.free(address)
    alloc.inspection.check_invariants()
    assert tenant.malloc(MIB) != address


def test_a_limit_can_be_read_and_taken_away():
    alloc = on_device()
    pool = alloc.pool()
    assert pool.limit is None
    pool.limit = "2MiB"
    assert pool.limit == 2 * MIB
    with pool:
        refused(alloc.malloc, 3 * MIB)
        pool.limit = None
        assert alloc.malloc(3 * MIB)
    alloc.inspection.check_invariants()


def test_a_closed_pool_has_no_limit():
    alloc = on_device()
    pool = alloc.pool()
    pool.limit = MIB
    pool.close()
    with pytest.raises(PoolError):
        pool.limit = 2 * MIB
    alloc.inspection.check_invariants()


def test_a_tenant_has_neither_a_soft_limit_nor_memory_reserved():
    alloc = on_device()
    with pytest.raises(RequestError, match="shares its cache"):
        alloc.set_limit(alloc.tenant("t"), soft=MIB)
    with pytest.raises(RequestError, match="for a whole allocator"):
        alloc.set_limit(None, reserved=MIB)
    with pytest.raises(TypeError):
        alloc.set_limit(3, hard=MIB)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_what_is_reserved_for_a_tag_is_left_to_it_by_others(settings):
    alloc = on_device(200 * MIB, settings)
    alloc.set_limit("kv", reserved=100 * MIB)
    facts = refused(alloc.malloc, 120 * MIB).facts
    assert facts.limited_by == "reserved for tag 'kv'"
    other = alloc.malloc(80 * MIB)
    with allotment.tag("kv"):
        first = alloc.malloc(60 * MIB)
    refused(alloc.malloc, 60 * MIB)
    with allotment.tag("kv"):
        second = alloc.malloc(38 * MIB)
    alloc.inspection.check_invariants()
    for address in (other, first, second):
        alloc.free(address)
    alloc.set_limit("kv", hard=None)
    assert alloc.malloc(150 * MIB)


def test_a_pool_trims_itself_before_it_passes_its_soft_limit_and_is_never_refused():
    alloc = on_device(GIB, "expandable_segments:True")
    alloc.set_limit("cache", soft=100 * MIB)
    with allotment.tag("cache"):
        blocks = [alloc.malloc(20 * MIB, stream) for stream in range(5)]
        for block in blocks:
            alloc.free(block)
        assert alloc.sleep.tags()["cache"]["reserved_bytes"] == 100 * MIB
        another = alloc.malloc(60 * MIB, 9)
        assert alloc.sleep.tags()["cache"]["reserved_bytes"] <= 100 * MIB
        beyond = alloc.malloc(120 * MIB, 9)
        assert alloc.sleep.tags()["cache"]["reserved_bytes"] >= 180 * MIB, "soft: it is served"
    alloc.inspection.check_invariants()
    alloc.free(another)
    alloc.free(beyond)


def test_what_becomes_free_while_a_soft_limit_is_kept_serves_the_request():
    alloc = on_device(GIB)
    alloc.set_limit(None, soft=40 * MIB)
    address = alloc.malloc(40 * MIB)
    alloc.device.launch(7)
    alloc.record_stream(address, 7)
    alloc.free(address)
    assert alloc.malloc(40 * MIB) == address, "the other stream was waited for, and nothing was obtained"
    alloc.inspection.check_invariants()


def test_growth_around_pages_is_recomputed_after_their_release():
    alloc = on_device(GIB, "expandable_segments:True")
    alloc.set_limit(None, soft=80 * MIB)
    kept, beside, elsewhere = alloc.malloc(20 * MIB, 0), alloc.malloc(20 * MIB, 0), alloc.malloc(20 * MIB, 7)
    alloc.free(beside)
    alloc.free(elsewhere)
    assert reserved(alloc) == 60 * MIB
    grown = alloc.malloc(60 * MIB, 0)
    assert reserved(alloc) == 80 * MIB, "40 MiB next to what was free, and 60 without it: all that is cached has to go"
    alloc.inspection.check_invariants()
    for address in (kept, grown):
        alloc.free(address)


def test_dense_placement_obtains_nothing_ahead_beyond_a_soft_limit():
    alloc = on_device(80 * GIB, "placement:dense")
    alloc.set_limit(None, soft=100 * MIB)
    blocks = [alloc.malloc(size * MIB) for size in (90, 4)]
    assert reserved(alloc) <= 100 * MIB
    alloc.inspection.check_invariants()
    for address in blocks:
        alloc.free(address)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_a_soft_limit_holds_over_a_churn_of_sizes_and_streams(settings):
    """Up to half of the memory is in use all the time."""
    alloc = on_device(4 * GIB, settings)
    soft = GIB
    alloc.set_limit(None, soft=soft)
    draw = random.Random(5)
    live, most, over = {}, 0, 0
    for _ in range(2000):
        while live and (sum(live.values()) > 0.5 * soft or draw.random() < 0.45):
            address = draw.choice(list(live))
            alloc.free(address)
            del live[address]
        size = int(MIB * 2 ** draw.uniform(-6, 6))
        live[alloc.malloc(size, draw.choice((0, 7)))] = size
        over = max(over, reserved(alloc))
        most = max(most, sum(live.values()))
    alloc.inspection.check_invariants()
    assert most > 0.5 * soft
    assert over <= soft


def test_a_plan_knows_limits():
    alloc = on_device(GIB)
    pool = alloc.pool()
    pool.limit = 30 * MIB
    with pool:
        assert alloc.would_fit([25 * MIB])
        assert not alloc.would_fit([25 * MIB, 25 * MIB])
    with allotment.tag("planned"):
        alloc.set_limit("planned", hard=20 * MIB)
        assert not alloc.would_fit([30 * MIB])
    alloc.inspection.check_invariants()


def test_what_is_neither_tag_nor_pool_nor_tenant_is_refused_by_its_type():
    with allotment.Allocator("host") as alloc:
        buffer = alloc.empty(100)
        for call in (
            lambda: alloc.set_limit(buffer),
            lambda: alloc.set_limit(buffer, hard=1),
            lambda: alloc.pause(buffer),
            lambda: alloc.resume(buffer),
            lambda: alloc.sleep.resume_in_background(buffer),
        ):
            with pytest.raises(TypeError, match=r"a tag's name, a Pool or a Tenant .* is needed, not Buffer"):
                call()
        buffer.close()


def test_a_missing_limit_is_an_error_and_creates_no_tag():
    alloc = on_device(GIB)
    with pytest.raises(RequestError, match="give hard=, soft= or reserved="):
        alloc.set_limit("32MiB")
    assert alloc.sleep.tags() == {}
