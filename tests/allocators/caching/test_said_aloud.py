"""Meaningless arguments raise an error or a warning."""

import warnings

import pytest

import allotment
from allotment.errors import PoolError, RequestError
from helpers.warned import only_warning


class Plain(allotment.Backend):
    """A device without virtual memory."""

    def allocate(self, size: int, stream: int) -> int:
        return 1 << 30

    def free(self, address: int, size: int) -> None:
        pass


@pytest.fixture
def allocator():
    return allotment.Allocator("sim:1GiB")


@pytest.mark.parametrize("count", [-1, -(1 << 70), 1 << 70])
def test_a_history_cannot_have_less_than_no_entries(allocator, count):
    with pytest.raises(RequestError, match="max_entries must be 0 or more, or None for no end"):
        allocator.record_history(max_entries=count)
    assert not allocator.history.is_enabled()


@pytest.mark.parametrize("pool", [(9, 9), (0, 12345), (12345, 0)])
@pytest.mark.parametrize(
    "operation",
    [
        allotment.Allocator.snapshot,
        allotment.Allocator.empty_cache,
        lambda allocator, pool: allocator.history.segments(pool),
    ],
)
def test_a_pool_that_never_was_is_refused(allocator, operation, pool):
    with pytest.raises(PoolError, match=rf"there is no pool \({pool[0]}, {pool[1]}\) on sim:1GiB"):
        operation(allocator, pool)
    allocator.inspection.check_invariants()


def test_a_pool_that_was_has_nothing_left(allocator):
    pool = allocator.pool()
    with pool:
        allocator.free(allocator.malloc(512))
    assert len(allocator.history.segments(pool.id)) == 1
    pool.close()
    assert allocator.history.segments(pool.id) == allocator.snapshot(pool.id)["segments"] == []
    allocator.empty_cache(pool.id)


def test_expandable_segments_warn_on_a_device_without_them():
    with pytest.warns(UserWarning, match="expandable_segments:True has no effect on Plain") as reported:
        allocator = allotment.Allocator(Plain(), settings="expandable_segments:True")
    assert only_warning(reported).filename == __file__
    assert not allocator.history.segments()
    allocator.malloc(512)
    assert not allocator.history.segments()[0]["is_expandable"]


def test_expandable_segments_are_warned_of_when_they_are_switched_on():
    allocator = allotment.Allocator(Plain())
    with pytest.warns(UserWarning, match="no effect on Plain"):
        allocator.settings = "expandable_segments:True"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allocator.settings = "expandable_segments:True"
        allotment.Allocator("sim:1GiB", settings="expandable_segments:True")
