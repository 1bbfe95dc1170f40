"""Memory of graph captures sleeps with the tag in which the capture began."""

import numpy as np
import pytest

import allotment
from allotment.errors import PausedError
from helpers.engine import GIB, MIB, on_device, reserved

SETTINGS = pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])


@SETTINGS
@pytest.mark.threads
def test_a_graph_whose_memory_slept_with_its_tag_gives_the_same_result(settings):
    with allotment.Allocator("host", settings=settings) as alloc:
        stream = allotment.Stream(alloc)
        with allotment.tag("model"):
            weights, result = alloc.full(1000, 3, "int64"), alloc.zeros(1000, "int64")
            with allotment.capture(stream, allocator=alloc) as graph:
                between = alloc.array(1000, "int64", stream=stream)
                static = alloc.array(1000, "int64", stream=stream)
                stream.submit(np.multiply, weights, 2, between)
                stream.submit(np.add, between, static, result)
                del between
        static[:] = 11
        for options in ({}, {"keep_host": True}, {"keep": "file"}):
            assert alloc.pause("model", **options) > 0
            assert reserved(alloc) == 0, "of the capture too"
            assert alloc.paused() == {"model"}
            alloc.inspection.check_invariants()
            alloc.resume("model")
            result[:] = 0
            graph.replay()
            stream.synchronize()
            assert (result == 17).all()
            assert (static == 11).all()
        alloc.inspection.check_invariants()
        graph.reset()
        del weights, result, static


@pytest.mark.threads
def test_a_capture_into_a_pool_that_sleeps_costs_none_of_its_contents():
    with allotment.Allocator("host", settings="expandable_segments:True") as alloc:
        stream = allotment.Stream(alloc)
        with allotment.tag("t"):
            pool = alloc.pool()
        with pool:
            arrays = [alloc.full(700_000, number, "int32") for number in range(4)]
        arrays[0] = arrays[2] = None  # free memory, whose contents are not saved
        alloc.pause("t")
        with allotment.capture(stream, allocator=alloc, pool=pool) as graph:
            pass
        alloc.resume("t")
        assert (arrays[1] == 1).all()
        assert (arrays[3] == 3).all()
        graph.reset()
        arrays.clear()


def test_a_pool_made_inside_a_tag_is_paused_with_it_and_one_made_outside_is_not():
    alloc = on_device(GIB)
    outside = alloc.pool()
    with allotment.tag("t"):
        inside = alloc.pool()
        for pool in (inside, outside):
            with pool:
                alloc.malloc(30 * MIB)
    assert alloc.sleep.tags() == {"t": {"reserved_bytes": 40 * MIB, "paused": 0}}
    assert alloc.pause("t", keep="nothing") == 40 * MIB
    assert (inside.reserved_bytes, outside.reserved_bytes) == (0, 30 * MIB)
    with inside, pytest.raises(PausedError, match="tag 't'") as caught:
        alloc.malloc(512)
    assert caught.value.tag == "t"
    alloc.inspection.check_invariants()
    alloc.resume("t")
    assert inside.reserved_bytes == 40 * MIB
    alloc.inspection.check_invariants()


def test_a_tag_with_a_pool_that_cannot_be_brought_back_sleeps_on_whole():
    alloc = on_device(100 * MIB)
    with allotment.tag("t"):
        alloc.malloc(30 * MIB)
        inside = alloc.pool()
        with inside:
            alloc.malloc(30 * MIB)
    alloc.pause("t", keep="nothing")
    taken = alloc.malloc(50 * MIB)
    with pytest.raises(allotment.OutOfMemoryError):
        alloc.resume("t")
    assert alloc.paused() == {"t"}
    assert alloc.device.used == 50 * MIB
    alloc.inspection.check_invariants()
    alloc.free(taken)
    alloc.resume("t")
    assert alloc.paused() == set()
    alloc.inspection.check_invariants()


def test_nothing_is_paused_or_resumed_while_a_graph_is_captured():
    with allotment.Allocator("host") as alloc:
        stream = allotment.Stream(alloc)
        with allotment.tag("t"):
            array = alloc.full(1000, 5, "int32")
        with allotment.capture(stream, allocator=alloc) as graph:
            with pytest.raises(PausedError, match="being captured"):
                alloc.pause("t")
            assert alloc.paused() == set()
        graph.reset()
        alloc.pause("t")
        with allotment.capture(stream, allocator=alloc) as graph, pytest.raises(PausedError, match="being captured"):
            alloc.resume("t")
        graph.reset()
        assert alloc.paused() == {"t"}
        alloc.resume("t")
        assert (array == 5).all()
        alloc.inspection.check_invariants()
        del array


def test_a_graph_that_is_reset_while_its_tag_sleeps_leaves_nothing_behind():
    with allotment.Allocator("host") as alloc:
        stream = allotment.Stream(alloc)
        with allotment.tag("t"):
            array = alloc.full(1000, 5, "int32")
            with allotment.capture(stream, allocator=alloc) as graph:
                inside = alloc.empty(1000, stream=stream)
        alloc.pause("t")
        inside.close()
        graph.reset()
        alloc.empty_cache()
        alloc.inspection.check_invariants()
        alloc.resume("t")
        assert alloc.paused() == set()
        assert (array == 5).all()
        alloc.inspection.check_invariants()
        del array


def test_a_tag_keeps_its_name_as_long_as_a_pool_sleeps_with_it():
    alloc = on_device(GIB)
    with allotment.tag("named"):
        pool = alloc.pool()
    with pool:
        address = alloc.malloc(MIB)
    alloc.sleep._forget_idle_tags()
    assert alloc.pause("named", keep="nothing") > 0
    alloc.free(address)
    alloc.resume("named")
    pool.close()
    alloc.inspection.check_invariants()
