"""Idle memory of a private pool serves other requests while its owner promises not to use it."""

import ctypes
import warnings

import pytest

import allotment
from allotment.errors import PoolError, SanitizerWarning
from helpers.engine import GIB, MIB, on_device, reserved

pytestmark = pytest.mark.threads


def idle_pool(alloc, size=30 * MIB):
    pool = alloc.pool()
    with pool:
        alloc.free(alloc.malloc(size))
    return pool


@pytest.mark.parametrize("settings", ["", "placement:dense"])
def test_idle_bytes_serve_others_before_the_device_is_asked(settings):
    alloc = on_device(GIB, settings)
    pool = idle_pool(alloc)
    before = reserved(alloc)
    with pool.lent():
        borrowed = alloc.malloc(25 * MIB)
        assert reserved(alloc) == before
        alloc.inspection.check_invariants()
        alloc.free(borrowed)
    own = alloc.malloc(25 * MIB)
    assert reserved(alloc) > before, "not lent any more"
    alloc.free(own)
    alloc.inspection.check_invariants()


def test_a_block_that_is_kept_too_long_is_an_error():
    alloc = on_device()
    pool = idle_pool(alloc)
    with pytest.raises(PoolError, match="1 blocks"), pool.lent():
        kept = alloc.malloc(25 * MIB)
    alloc.free(kept)
    alloc.inspection.check_invariants()


def test_blocks_that_the_pool_had_before_are_its_own():
    alloc = on_device()
    pool = idle_pool(alloc)
    with pool:
        own = alloc.malloc(5 * MIB)
    with pool.lent():
        alloc.free(alloc.malloc(10 * MIB))
    alloc.free(own)
    alloc.inspection.check_invariants()


def test_a_pool_is_lent_once_at_a_time_and_not_when_closed():
    alloc = on_device()
    pool = idle_pool(alloc)
    with pool.lent(), pytest.raises(PoolError, match="already"), pool.lent():
        pass
    pool.close()
    with pytest.raises(PoolError):
        pool.lent()


def captured(alloc, stream):
    with allotment.capture(stream) as graph:
        scratch = alloc.malloc(25 * MIB, stream)
        stream.submit(ctypes.memset, scratch, 1, 4096)
        alloc.free(scratch)
    return graph


def test_a_graph_does_not_run_while_its_pool_is_lent_and_runs_after():
    with allotment.Allocator("host") as alloc:
        stream = allotment.Stream(alloc)
        graph = captured(alloc, stream)
        with graph.lent():
            before = reserved(alloc)
            borrowed = alloc.malloc(20 * MIB, stream)
            assert reserved(alloc) == before
            with pytest.raises(PoolError, match="lent"):
                graph.replay()
            alloc.free(borrowed)
        graph.replay()
        stream.synchronize()
        graph.reset()


def findings(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SanitizerWarning)
        alloc = allotment.Allocator("host", sanitize=True)
        stream = allotment.Stream(alloc)
        graph = captured(alloc, stream)
        program(alloc, graph, stream)
        stream.synchronize()
        graph.reset()
        alloc.close()
    reports = alloc.inspection.races()
    for report in reports:
        for access in (report.first, report.second):
            assert any(name == __file__ for name, _, _ in access.stack), str(report)
    return [report.kind for report in reports]


def test_the_sanitizer_finds_a_graph_that_runs_while_its_pool_is_lent():
    def lent_too_early(alloc, graph, stream):
        with graph.lent():
            graph.replay()

    assert findings(lent_too_early) == ["lent in use"]


def test_the_sanitizer_finds_a_block_that_is_kept_too_long():
    def kept_too_long(alloc, graph, stream):
        with graph.lent():
            kept = alloc.malloc(20 * MIB, stream)
        alloc.free(kept)

    assert findings(kept_too_long) == ["lent too long"]


def test_the_sanitizer_is_silent_about_lending_in_order():
    def in_order(alloc, graph, stream):
        graph.replay()
        with graph.lent():
            alloc.free(alloc.malloc(20 * MIB, stream))
        graph.replay()

    assert findings(in_order) == []
