"""A placement written for the tests (tests/extensions/first_fit.pyx), under the same tests as PyTorch's."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from allotment import Allocator, PoolError, SettingsError, UnsupportedError
from helpers.allocator_machine import SETTINGS, AllocatorMachine
from helpers.effort import sample, some
from helpers.engine import MIB, SEGMENT, check, empties, on_device, reserved, segment_of, states
from helpers.lives import LIVES, Life, lived_twice, undisturbed

FIRST_FIT = "placement:first_fit"
FOREVER = 1 << 62


@pytest.fixture(scope="session", autouse=True)
def first_fit(extension):
    """Importing the extension registers the placement."""
    return extension("first_fit")


@pytest.fixture
def alloc() -> Allocator:
    return on_device(settings=FIRST_FIT)


def test_the_lowest_place_that_is_large_enough_serves_and_not_the_best(alloc):
    first, _, second, _ = (alloc.malloc(size) for size in (4 * MIB, 512, 2 * MIB, 512))
    alloc.free(first)
    alloc.free(second)
    assert alloc.malloc(2 * MIB) == first
    assert alloc.malloc(2 * MIB) == first + 2 * MIB
    assert alloc.malloc(2 * MIB) == second
    check(alloc)


def test_small_and_large_requests_share_segments(alloc):
    small, large = alloc.malloc(512), alloc.malloc(5 * MIB)
    assert large == small + 512
    assert states(alloc) == [
        [(512, "active_allocated"), (5 * MIB, "active_allocated"), (SEGMENT - 5 * MIB - 512, "inactive")]
    ]
    check(alloc)


def test_free_neighbours_are_joined_and_everything_returns(alloc):
    blocks = [alloc.malloc(MIB) for _ in range(5)]
    for address in (blocks[1], blocks[3], blocks[2], blocks[0], blocks[4]):
        alloc.free(address)
        check(alloc)
    assert states(alloc) == [[(SEGMENT, "inactive")]]
    empties(alloc)


def test_a_refusal_to_pause_names_the_placement_that_refuses(alloc):
    pool = alloc.pool()
    with pool:
        block = alloc.malloc(MIB)
    with pytest.raises(UnsupportedError, match="uses placement:first_fit"):
        alloc.pause(pool, keep="nothing")
    alloc.free(block)
    check(alloc)


def test_memory_of_one_stream_does_not_serve_another(alloc):
    address = alloc.malloc(MIB)
    alloc.free(address)
    elsewhere = alloc.malloc(MIB, stream=7)
    assert elsewhere != address
    assert segment_of(alloc, elsewhere)["stream"] == 7
    check(alloc)


def test_a_block_that_another_stream_reads_is_not_used_again_before_that_is_done(alloc):
    alloc.device.launch(7)
    address = alloc.malloc(MIB)
    alloc.record_stream(address, 7)
    alloc.free(address)
    check(alloc)
    assert alloc.malloc(MIB) != address
    alloc.device.finish(7)
    assert alloc.malloc(MIB) == address
    check(alloc)


def test_one_pool_can_have_it_while_the_others_are_pytorchs():
    alloc = on_device()
    with alloc.pool(placement="first_fit"):
        first, second = alloc.malloc(512), alloc.malloc(5 * MIB)
    assert second == first + 512
    assert segment_of(alloc, first)["segment_type"] == "large"
    assert segment_of(alloc, alloc.malloc(512))["segment_type"] == "small"
    check(alloc)


def test_one_pool_can_be_pytorchs_while_the_others_have_it(alloc):
    with alloc.pool(placement="torch"):
        assert segment_of(alloc, alloc.malloc(512))["segment_type"] == "small"
    with alloc.pool():
        assert segment_of(alloc, alloc.malloc(512))["segment_type"] == "large"
    check(alloc)


def test_a_pool_that_hands_out_whole_segments_is_pytorchs(alloc):
    with alloc.pool(no_split=True):
        address = alloc.malloc(5 * MIB)
    assert [block["size"] for block in segment_of(alloc, address)["blocks"]] == [SEGMENT]
    with pytest.raises(PoolError, match="does not support whole segments"):
        alloc.pool(no_split=True, placement="first_fit")
    check(alloc)


def test_a_pause_that_is_refused_names_this_placement(alloc):
    with alloc.pool() as pool:
        alloc.malloc(MIB)
    with pytest.raises(UnsupportedError, match="placement:first_fit") as refused:
        alloc.pause(pool)
    assert "dense" not in str(refused.value)


def test_a_pool_lends_to_a_pool_of_another_placement():
    for default, lender in (("torch", "first_fit"), ("first_fit", "torch")):
        alloc = on_device(60 * MIB, f"placement:{default}")
        pool = alloc.pool(use_on_oom=True, placement=lender)
        with pool:
            alloc.free(alloc.malloc(40 * MIB))
        borrowed = alloc.malloc(30 * MIB)
        assert segment_of(alloc, borrowed)["segment_pool_id"] == pool.id
        check(alloc)


def test_a_pool_is_restored_to_its_checkpoint(alloc):
    pool = alloc.pool()
    with pool:
        kept, freed = alloc.malloc(MIB), alloc.malloc(2 * MIB)
        alloc.free(freed)
        state = pool.checkpoint()
        alloc.free(kept)
        other = alloc.malloc(3 * MIB)
    assert pool.restore(state) == ([other], [kept])
    assert states(alloc, pool.id) == [[(MIB, "active_allocated"), (SEGMENT - MIB, "inactive")]]
    check(alloc)


def test_a_limit_holds(alloc):
    alloc.limit = 30 * MIB
    alloc.malloc(MIB)
    with pytest.raises(MemoryError):
        alloc.malloc(25 * MIB)
    assert reserved(alloc) == SEGMENT
    check(alloc)


def test_an_unknown_placement_is_refused_with_the_names_of_all():
    with pytest.raises(SettingsError, match="unknown placement 'best'; known: dense, first_fit, torch"):
        on_device(settings="placement:best")
    alloc = on_device()
    with pytest.raises(SettingsError, match="unknown placement 'best'"):
        alloc.pool(placement="best")


def test_the_placement_cannot_change_later(alloc):
    with pytest.raises(SettingsError, match="the same as at the start"):
        alloc.settings = "placement:torch"
    alloc.settings = FIRST_FIT
    assert alloc.settings.placement == "first_fit"


# --- as in tests/core -----------------------------------------------------------------------------------------


class FirstFitMachine(AllocatorMachine):
    @initialize(text=st.just(FIRST_FIT))
    def begin(self, text: str) -> None:
        super().begin(text)

    @rule(text=st.sampled_from([text for text in SETTINGS if "max_split" not in text and "expandable" not in text]))
    def configure(self, text: str) -> None:
        super().configure(text)


FirstFitMachine.TestCase.settings = settings(
    max_examples=some(50),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_any_sequence_of_calls = FirstFitMachine.TestCase


@pytest.mark.parametrize("out_of_memory", [True, False], ids=["out of memory", "device error"])
@pytest.mark.parametrize("times", [1, FOREVER], ids=["once", "from then on"])
@pytest.mark.parametrize("name", LIVES)
def test_whichever_call_to_the_device_fails_nothing_is_lost(name, times, out_of_memory):
    expected, calls = undisturbed(name, "first_fit")
    for after in sample(range(sum(calls.values()))):
        life = Life("first_fit")
        life.device.refuse_calls(times, after, out_of_memory=out_of_memory)
        assert lived_twice(name, life) == expected, f"after {after} calls"
