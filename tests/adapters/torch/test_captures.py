"""PyTorch's captures, on a stand-in that, like PyTorch 2.11, does not tell the allocator when a capture fails."""

import inspect

import pytest

from allotment import PoolError
from helpers.engine import MIB, reserved
from helpers.torch_stand_in import adapter_on_stand_in


@pytest.fixture
def stand(monkeypatch):
    stand = adapter_on_stand_in(monkeypatch)
    stand.captures.end_failed_captures()
    return stand


def capture(stand, pool=None):
    """Return a graph whose capture has begun, with a block that was freed in it."""
    graph = stand.torch.cuda.CUDAGraph()
    graph.capture_begin(pool)
    stand.allocators[0].free(stand.allocators[0].malloc(4 * MIB, 7))
    return graph


def is_released(stand, pool):
    stand.allocators[0].empty_cache()
    with pytest.raises(PoolError):
        stand.allocators[0].pools.use_count(pool)
    return reserved(stand.allocators[0]) == 0


def test_a_capture_that_ends_well_is_left_to_pytorch(stand):
    graph = capture(stand)
    graph.capture_end()
    assert stand.allocators[0].pools.use_count(graph.begun_with) == 1
    graph.reset()
    assert is_released(stand, graph.begun_with)


def test_a_capture_that_fails_leaves_nothing_behind(stand):
    graph = capture(stand)
    stand.world.spoilt = True
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graph.capture_end()
    assert is_released(stand, graph.begun_with)


def test_one_that_fails_in_a_shared_pool_leaves_it_to_the_other_graph(stand):
    first = capture(stand)
    first.capture_end()
    second = capture(stand, first.begun_with)
    stand.world.spoilt = True
    with pytest.raises(RuntimeError):
        second.capture_end()
    assert stand.allocators[0].pools.use_count(first.begun_with) == 1
    first.reset()
    assert is_released(stand, first.begun_with)


def test_an_end_that_was_tried_on_the_wrong_stream_can_be_tried_again(stand):
    graph = capture(stand)
    with stand.world.on_stream(8), pytest.raises(RuntimeError, match="same stream"):
        graph.capture_end()
    stand.world.stream = 7
    assert stand.allocators[0].pools.use_count(graph.begun_with) == 1
    graph.capture_end()
    graph.reset()
    assert is_released(stand, graph.begun_with)


def test_a_capture_that_the_device_refuses_to_begin_leaves_nothing_behind(stand):
    stand.world.refuses_captures = True
    graph = stand.torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.capture_begin()
    assert is_released(stand, graph.begun_with)


def test_a_capture_that_pytorch_refuses_to_begin_changes_nothing(stand):
    stand.world.stream = 0
    with pytest.raises(RuntimeError, match="non-default stream"):
        stand.torch.cuda.CUDAGraph().capture_begin()
    assert stand.allocators[0].malloc(MIB)


def test_a_second_capture_into_a_pool_that_is_captured_into_does_not_end_the_first(stand):
    graph = capture(stand)
    stand.world.stream = 8
    with pytest.raises(PoolError):
        stand.torch.cuda.CUDAGraph().capture_begin(graph.begun_with)
    stand.world.stream = 7
    inside = stand.allocators[0].malloc(MIB, 7)
    assert inside in [
        block["address"] for s in stand.allocators[0].history.segments(graph.begun_with) for block in s["blocks"]
    ]
    graph.capture_end()


def test_a_capture_takes_what_another_version_of_pytorch_takes(monkeypatch):
    stand = adapter_on_stand_in(monkeypatch)
    kind = stand.torch.cuda.CUDAGraph
    given = []

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        given.append((pool, capture_error_mode, check_input_liveness))

    monkeypatch.setattr(kind, "capture_begin", capture_begin, raising=False)
    stand.captures.end_failed_captures()
    kind().capture_begin((0, 5), "relaxed", check_input_liveness=True)
    kind().capture_begin(pool=(0, 6), capture_error_mode="thread_local")
    assert given == [((0, 5), "relaxed", True), ((0, 6), "thread_local", False)]
    assert list(inspect.signature(kind.capture_begin).parameters) == list(inspect.signature(capture_begin).parameters)


@pytest.fixture
def newer(monkeypatch):
    """PyTorch 2.14, whose graphs keep pools, which PyTorch refuses under a plug-in."""
    stand = adapter_on_stand_in(monkeypatch)
    kind = stand.torch.cuda.CUDAGraph

    def refused(self, pool):
        raise RuntimeError("pluggable does not yet support createOrIncrefPool.")

    monkeypatch.setattr(kind, "_retain_pool", refused, raising=False)
    monkeypatch.setattr(kind, "pools", lambda self: [self.begun_with], raising=False)
    monkeypatch.setattr(stand.torch.cuda, "_POOL_HANDLE", tuple, raising=False)
    stand.captures.end_failed_captures()
    stand.captures.keep_pools_of_captures()
    return stand


@pytest.mark.parametrize("end", ["reset", "dropped"])
def test_a_graph_keeps_the_pools_that_were_used_in_its_capture_until_it_ends(newer, end):
    allocator = newer.allocators[0]
    pool = newer.pool.MemPool()
    graph = capture(newer)
    for _ in range(2):
        graph._retain_pool(pool)
    graph.capture_end()
    assert allocator.pools.use_count(pool.id) == 2
    assert graph.pools() == [graph.begun_with, pool.id]
    if end == "reset":
        graph.reset()
        assert graph.pools() == [graph.begun_with]
    else:
        del graph
    assert allocator.pools.use_count(pool.id) == 1


def test_before_graphs_kept_pools_nothing_is_replaced(stand):
    stand.captures.keep_pools_of_captures()
    assert not hasattr(stand.torch.cuda.CUDAGraph, "_retain_pool")
