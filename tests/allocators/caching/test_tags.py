"""Names of tags: any number over time, but not at once."""

import pytest

import allotment
from allotment._allocators.caching.tags import pool_of_tag_named
from allotment.errors import PoolError, RequestError
from helpers.child import output_of
from helpers.engine import GIB, MIB, on_device

MOST = 65_535


def test_a_program_can_use_more_names_than_there_are_numbers():
    alloc = on_device(GIB)
    with allotment.tag("kept in memory"):
        block = alloc.malloc(512)
    alloc.set_limit("kept by a limit", hard="1MiB")
    held = allotment.tag("kept by an object")
    with allotment.tag("kept by a thread inside") as inside:
        for number in range(MOST + 1000):
            allotment.tag(f"passing {number}")
        with allotment.tag("new"):
            other = alloc.malloc(512)
        assert inside.name == "kept by a thread inside"
        inner = alloc.malloc(512)
    assert held.name == "kept by an object"
    assert set(alloc.sleep.tags()) == {"kept in memory", "kept by a limit", "kept by a thread inside", "new"}
    assert alloc.pause("kept in memory", keep="nothing") > 0
    alloc.resume("kept in memory")
    alloc.inspection.check_invariants()
    for address in (block, other, inner):
        alloc.free(address)


def test_names_whose_memory_has_gone_back_make_room_for_others():
    with allotment.Allocator("sim:1GiB") as alloc:
        for number in range(MOST + 1000):
            with allotment.tag(f"request {number}"):
                alloc.free(alloc.malloc(512))
            if number % 400 == 0:
                alloc.empty_cache()
        alloc.inspection.check_invariants()
        first = allotment.tag("request 0")
        with first:
            block = alloc.malloc(512)
        assert "request 0" in alloc.sleep.tags() and "request 1" not in alloc.sleep.tags()
        alloc.free(block)


def test_the_figures_of_a_forgotten_tag_are_not_those_of_the_next_with_its_number():
    with allotment.Allocator("sim:1GiB") as alloc:

        def peaks():
            figures = alloc.stats().items()
            return [value for key, value in figures if key.startswith("reserved_bytes_by_private") and "peak" in key]

        with allotment.tag("forgotten"):
            alloc.free(alloc.malloc(50 << 20))
        alloc.empty_cache()
        assert max(peaks()) >= 50 << 20
        for number in range(MOST):
            allotment.tag(f"passing {number}")
        assert not any(peaks())


def test_names_that_are_all_in_use_leave_none():
    held = []
    with pytest.raises(RequestError, match="65535 at once"):
        for number in range(MOST + 1):  # earlier tests may have left a few names in use
            held.append(allotment.tag(f"held {number}"))
    assert len(held) > MOST - 1000
    held.clear()
    assert allotment.tag("there is room again").name == "there is room again"


def test_a_tag_that_is_made_stays_what_it_is():
    tag = allotment.tag("first")
    with pytest.raises(TypeError, match="exists already"):
        tag.__init__("second")
    assert tag.name == "first"


def test_the_cache_of_one_tag_is_released_and_that_of_others_stays():
    alloc = on_device(GIB)
    for name in ("one", "other"):
        with allotment.tag(name):
            kept, gone = alloc.malloc(30 * MIB), alloc.malloc(60 * MIB)
        alloc.free(gone)
        assert kept
    alloc.empty_cache(pool_of_tag_named("one"))
    assert {name: found["reserved_bytes"] // MIB for name, found in alloc.sleep.tags().items()} == {
        "one": 40,
        "other": 100,
    }
    alloc.inspection.check_invariants()
    alloc.pause("other")
    alloc.empty_cache(pool_of_tag_named("other"))
    alloc.resume("other")
    alloc.inspection.check_invariants()
    with pytest.raises(PoolError, match="'never made'"):
        pool_of_tag_named("never made")


def test_a_tag_of_the_process_holds_what_threads_in_no_tag_allocate():
    found = output_of("""
import threading
import allotment

alloc = allotment.Allocator("sim:1GiB")
outside = alloc.malloc(1 << 20)
allotment.tag("process")._enter_everywhere()
threading.Thread(target=alloc.malloc, args=(1 << 20,)).start()
alloc.malloc(30 << 20)
with allotment.tag("inner"):
    alloc.malloc(1 << 20)
alloc.pause("process", keep="nothing")
try:
    alloc.malloc(1)
except allotment.PausedError as error:
    print(error.tag, sorted(alloc.sleep.tags()), alloc.sleep.tags()["process"]["paused"] >> 20)
alloc.resume("process")
alloc.inspection.check_invariants()
""")
    assert found.strip() == "process ['inner', 'process'] 42"
