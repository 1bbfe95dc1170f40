"""Tags: memory that is released and mapped again at the same addresses."""

import ctypes
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import allotment
from allotment.errors import AddressError, OutOfMemoryError, PausedError, PoolError, RequestError, UnsupportedError
from helpers.child import output_of
from helpers.engine import GIB, MIB, on_device, reserved

DEVICES = pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])


def tagged(alloc, tag, *sizes, stream=0):
    with allotment.tag(tag):
        return [alloc.malloc(size, stream) for size in sizes]


@DEVICES
@pytest.mark.parametrize("freed", [{0}, {1}, {0, 2}, {1, 3}, {0, 1, 2, 3}])
def test_what_was_freed_while_asleep_is_not_brought_back(settings, freed):
    with allotment.Allocator("host", settings=settings) as alloc:
        with allotment.tag("weights"):
            arrays = [alloc.full(length << 18, number, "int32") for number, length in enumerate((30, 70, 5, 40))]
        alloc.pause("weights")
        arrays = [None if number in freed else array for number, array in enumerate(arrays)]
        alloc.empty_cache()
        seen = []
        alloc.resume("weights", progress=lambda done, total: seen.append((done, total)))
        alloc.inspection.check_invariants()
        assert all((array == number).all() for number, array in enumerate(arrays) if array is not None)
        assert not seen or seen[-1][0] == seen[-1][1]
        arrays.clear()


@DEVICES
def test_what_was_in_a_paused_tag_is_there_again_under_the_same_addresses(settings):
    with allotment.Allocator("host", settings=settings) as alloc:
        with allotment.tag("weights"):
            arrays = [alloc.full(length, number, "int32") for number, length in enumerate((100, 70_000, 900_000))]
        before = reserved(alloc)
        released = alloc.pause("weights")
        alloc.inspection.check_invariants()
        assert released == before
        assert reserved(alloc) == 0
        assert alloc.paused() == {"weights"}
        other = alloc.malloc(5 * MIB)
        seen = []
        alloc.resume("weights", progress=lambda done, total: seen.append((done, total)))
        alloc.inspection.check_invariants()
        assert alloc.paused() == set()
        assert all((array == number).all() for number, array in enumerate(arrays))
        assert seen[-1][0] == seen[-1][1] >= sum(array.nbytes for array in arrays)
        alloc.free(other)
        del arrays


def test_memory_outside_of_the_tag_shares_no_page_with_it():
    alloc = on_device(GIB)
    outside = alloc.malloc(512)
    (inside,) = tagged(alloc, "small", 512)
    alloc.pause("small", keep="nothing")
    assert reserved(alloc) == 2 * MIB
    segments = {segment["segment_pool_id"]: segment for segment in alloc.history.segments()}
    assert len(segments) == 2
    alloc.free(outside)
    alloc.free(inside)
    alloc.empty_cache()
    alloc.inspection.check_invariants()
    assert reserved(alloc) == 0
    assert alloc.device.used == 0


def test_the_device_has_as_much_more_as_was_paused():
    alloc = on_device(GIB)
    tagged(alloc, "w", 300 * MIB, 20 * MIB, 3000)
    used = alloc.device.used
    released = alloc.pause("w", keep="nothing")
    assert alloc.device.used == used - released == 0
    alloc.resume("w")
    assert alloc.device.used == used
    alloc.inspection.check_invariants()


def test_a_paused_tag_serves_no_request_and_says_so():
    alloc = on_device()
    tagged(alloc, "asleep", MIB)
    alloc.pause("asleep", keep="nothing")
    with pytest.raises(PausedError, match="tag 'asleep'") as caught:
        tagged(alloc, "asleep", 512)
    assert caught.value.tag == "asleep"
    assert alloc.malloc(512), "others are served"
    alloc.resume("asleep")
    assert tagged(alloc, "asleep", 512)
    alloc.inspection.check_invariants()


def test_blocks_of_a_paused_tag_can_be_freed_and_need_no_memory_then():
    alloc = on_device(GIB)
    first, second = tagged(alloc, "w", 40 * MIB, 60 * MIB)
    alloc.pause("w", keep="nothing")
    alloc.free(second)
    alloc.empty_cache()
    alloc.inspection.check_invariants()
    alloc.resume("w")
    alloc.inspection.check_invariants()
    assert reserved(alloc) == 40 * MIB
    alloc.free(first)


@DEVICES
def test_a_resume_that_finds_no_memory_changes_nothing_and_works_later(settings):
    device = allotment.SimulatedDevice(100 * MIB)
    alloc, thief = allotment.Allocator(device, settings=settings), allotment.Allocator(device)
    blocks = tagged(alloc, "w", 30 * MIB, 30 * MIB, 512)
    alloc.pause("w", keep="nothing")
    stolen = thief.malloc(60 * MIB)
    for _ in range(3):
        with pytest.raises(OutOfMemoryError) as caught:
            alloc.resume("w")
        assert caught.value.facts.tag == "w"
        alloc.inspection.check_invariants()
        assert alloc.paused() == {"w"}
        assert device.used == 60 * MIB
    thief.free(stolen)
    thief.empty_cache()
    alloc.resume("w")
    alloc.inspection.check_invariants()
    for block in blocks:
        alloc.free(block)


def test_a_resume_empties_the_cache_first():
    alloc = on_device(100 * MIB)
    tagged(alloc, "w", 60 * MIB)
    alloc.pause("w", keep="nothing")
    alloc.free(alloc.malloc(80 * MIB))
    alloc.resume("w")
    alloc.inspection.check_invariants()


def test_a_resume_calls_the_out_of_memory_handlers():
    alloc = on_device(100 * MIB)
    tagged(alloc, "w", 60 * MIB)
    alloc.pause("w", keep="nothing")
    taken = alloc.malloc(80 * MIB)
    alloc.on_out_of_memory(lambda facts: alloc.free(taken) or True)
    alloc.resume("w")
    alloc.inspection.check_invariants()


def test_a_resume_keeps_to_the_limit():
    alloc = on_device(GIB)
    tagged(alloc, "w", 60 * MIB)
    alloc.pause("w", keep="nothing")
    alloc.limit = 20 * MIB
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.resume("w")
    assert caught.value.facts.limited_by == "the allocator"
    alloc.limit = None
    alloc.resume("w")
    alloc.inspection.check_invariants()


@pytest.mark.parametrize("operation", ["chunk_create", "map", "set_access"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_device_that_fails_half_way_through_a_resume_leaves_it_asleep(operation, after):
    alloc = on_device(GIB)
    tagged(alloc, "w", 60 * MIB, 512)
    alloc.pause("w", keep="nothing")
    alloc.device.refuse(operation, times=1, after=after)
    try:
        alloc.resume("w")
    except allotment.AllotmentError:
        assert alloc.device.used == 0
        alloc.inspection.check_invariants()
        alloc.resume("w")
    alloc.inspection.check_invariants()


@pytest.mark.parametrize("operation", ["unmap", "chunk_release"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_device_that_refuses_to_take_memory_back_is_asked_again(operation, after):
    alloc = on_device(GIB)
    tagged(alloc, "w", 60 * MIB, 512)
    used = alloc.device.used
    alloc.device.refuse(operation, times=1, after=after)
    with pytest.raises(allotment.DeviceError) if operation == "unmap" else pytest.MonkeyPatch.context():
        alloc.pause("w", keep="nothing")
    alloc.inspection.check_invariants()
    alloc.pause("w", keep="nothing")
    alloc.inspection.check_invariants()
    alloc.resume("w")
    alloc.inspection.check_invariants()
    assert alloc.device.used == used


def resumed(alloc, tag, progress):
    alloc.resume(tag, progress=progress)


def resumed_in_background(alloc, tag, progress):
    alloc.sleep.resume_in_background(tag, progress=progress).result(60)


@pytest.mark.threads
@pytest.mark.parametrize("resume", [resumed, resumed_in_background])
def test_a_progress_that_raises_leaves_it_asleep_with_its_contents(resume):
    with allotment.Allocator("host") as alloc:
        with allotment.tag("w"):
            array = alloc.full(1000, 7, "uint8")
        alloc.pause("w")

        def stop(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            resume(alloc, "w", stop)
        assert alloc.paused() == {"w"}
        assert reserved(alloc) == 0
        alloc.inspection.check_invariants()
        alloc.resume("w")
        assert (array == 7).all()
        del array


def test_pausing_waits_for_the_work_of_all_streams():
    with allotment.Allocator("host") as alloc:
        stream = allotment.Stream(alloc)
        (address,) = tagged(alloc, "w", 4096, stream=stream)
        for number in range(50):
            stream.submit(ctypes.memset, address, number, 4096)
        alloc.pause("w")
        alloc.resume("w")
        assert ctypes.string_at(address, 4096) == bytes([49]) * 4096
        alloc.free(address)


@pytest.mark.threads
def test_a_graph_captured_before_runs_after():
    with allotment.Allocator("host") as alloc:
        stream = allotment.Stream(alloc)
        with allotment.tag("w"):
            weights, result = alloc.full(1000, 3, "int64"), alloc.zeros(1000, "int64")
        with allotment.capture(stream) as graph:
            stream.submit(np.multiply, weights, 2, result)
        alloc.pause("w")
        alloc.resume("w")
        graph.replay()
        stream.synchronize()
        assert (result == 6).all()
        graph.reset()
        del weights, result


def test_a_private_pool_on_virtual_memory_can_be_paused_too():
    alloc = on_device(GIB, "expandable_segments:True")
    pool = alloc.pool()
    with pool:
        alloc.malloc(30 * MIB)
    assert alloc.pause(pool, keep="nothing") == 40 * MIB
    assert alloc.paused() == {pool.id}
    with pool, pytest.raises(PausedError):
        alloc.malloc(512)
    alloc.resume(pool)
    alloc.inspection.check_invariants()


def test_a_paused_pool_that_is_closed_and_empty_is_gone_with_its_contents():
    with allotment.Allocator("host", settings="expandable_segments:True") as alloc:
        pool = alloc.pool()
        with pool:
            block = alloc.malloc(64 * MIB)
        alloc.pause(pool)
        pool.close()
        assert alloc.paused() == {pool.id}, "a block of it is in use"
        alloc.free(block)
        alloc.empty_cache()
        assert alloc.paused() == set()
        alloc.inspection.check_invariants()


def run_out(alloc):
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(2 * GIB)


@pytest.mark.parametrize("clear", [allotment.Allocator.empty_cache, lambda alloc: alloc.trim_to(0), run_out])
def test_a_tenant_whose_paused_pool_is_gone_has_nothing_to_resume(clear):
    alloc = on_device(GIB, "expandable_segments:True")
    mine = alloc.tenant("mine")
    alloc.pools.create_or_incref((0, 7))
    alloc.pools.begin_allocate_to_pool((0, 7))
    block = mine.malloc(30 * MIB)
    alloc.pools.end_allocate_to_pool((0, 7))
    alloc.pause(mine, keep="nothing")
    alloc.pools.release((0, 7))
    alloc.pools.release((0, 7))
    alloc.free(block)
    held = alloc.malloc(MIB)
    clear(alloc)
    alloc.resume(mine)
    assert alloc.paused() == set()
    alloc.pools.create_or_incref((0, 7))
    assert alloc.paused() == set(), "that is another one"
    alloc.inspection.check_invariants()
    alloc.free(held)


def test_plain_memory_cannot_be_paused():
    alloc = on_device(GIB)
    pool = alloc.pool()
    with pool:
        alloc.malloc(30 * MIB)
    with pytest.raises(UnsupportedError, match="plain memory"):
        alloc.pause(pool, keep="nothing")
    dense = on_device(GIB, "placement:dense")
    pool = dense.pool()
    with pool:
        dense.malloc(30 * MIB)
    with pytest.raises(UnsupportedError, match="dense"):
        dense.pause(pool, keep="nothing")
    alloc.inspection.check_invariants()


class PlainDevice(allotment.Backend):
    def __init__(self):
        self.next = 1 << 30

    def allocate(self, size, stream):
        self.next += 1 << 30
        return self.next

    def free(self, address, size):
        pass


def test_a_device_without_virtual_memory_refuses_by_name_and_still_has_limits():
    alloc = allotment.Allocator(PlainDevice())
    alloc.set_limit("w", hard=4 * MIB)
    (address,) = tagged(alloc, "w", MIB)
    with pytest.raises(UnsupportedError, match="virtual memory"):
        alloc.pause("w", keep="nothing")
    with pytest.raises(OutOfMemoryError):
        tagged(alloc, "w", 20 * MIB)
    alloc.free(address)
    alloc.inspection.check_invariants()


def test_a_block_that_another_process_may_have_open_keeps_its_tag_awake():
    with allotment.Allocator("host", settings="shareable:True") as alloc:
        with allotment.tag("shared"):
            buffer = alloc.empty(1000)
        handle = alloc.share(buffer)
        with pytest.raises(PausedError, match="another process"):
            alloc.pause("shared")
        handle.close()
        alloc.pause("shared")
        with pytest.raises(PausedError):
            alloc.share(buffer)
        alloc.resume("shared")
        buffer.close()


def test_a_tag_that_nothing_was_allocated_in_is_not_there():
    alloc = on_device()
    for operation in (alloc.pause, alloc.resume, alloc.sleep.resume_in_background):
        with pytest.raises(PoolError, match=r"no tag 'unheard of' on .*never used"):
            operation("unheard of")
    with pytest.raises(RequestError, match="keep"):
        alloc.pause("unheard of", keep="everything")
    with pytest.raises(TypeError):
        alloc.pause(3)
    with pytest.raises(TypeError):
        allotment.tag(3)
    with pytest.raises(RequestError, match="empty"):
        allotment.tag("")


def test_the_inner_of_two_tags_counts_and_a_pool_comes_first():
    alloc = on_device(GIB)
    pool = alloc.pool()
    with allotment.tag("outer"):
        with allotment.tag("inner") as inner:
            assert inner.name == "inner"
            alloc.malloc(30 * MIB)
        alloc.malloc(10 * MIB)
        with pool:
            alloc.malloc(50 * MIB)
    assert {name: figures["reserved_bytes"] for name, figures in alloc.sleep.tags().items()} == {
        "inner": 40 * MIB,
        "outer": 20 * MIB,
    }
    assert pool.reserved_bytes == 50 * MIB
    alloc.inspection.check_invariants()


def test_memory_cached_in_a_tag_is_released_with_the_cache():
    alloc = on_device(100 * MIB)
    (address,) = tagged(alloc, "w", 60 * MIB)
    alloc.free(address)
    assert alloc.malloc(90 * MIB), "memory was short, so it went back"
    alloc.inspection.check_invariants()
    assert alloc.sleep.tags()["w"]["reserved_bytes"] == 0


def test_a_whole_process_sleeps_and_wakes():
    with allotment.Allocator("host") as one, allotment.Allocator("host") as other:
        with allotment.tag("model"):
            arrays = [alloc.full(300_000, 5, "int32") for alloc in (one, other)]
        one.free(one.malloc(30 * MIB))
        assert allotment.sleep() >= 2 * 2 * MIB + 30 * MIB
        assert reserved(one) == reserved(other) == 0
        allotment.wake()
        assert all((array == 5).all() for array in arrays)
        del arrays


def test_pause_and_resume_a_hundred_times_leaves_everything_as_it_was():
    alloc = on_device(GIB)
    blocks = tagged(alloc, "w", *(MIB * number for number in (1, 3, 30, 7)), 700)
    used, stats = alloc.device.used, alloc.stats()
    segments = alloc.history.segments()
    for _ in range(100):
        alloc.pause("w", keep="nothing")
        alloc.resume("w")
    alloc.inspection.check_invariants()
    assert alloc.device.used == used
    assert alloc.history.segments() == segments
    current = {key: value for key, value in stats.items() if key.endswith("current")}
    assert {key: alloc.stats()[key] for key in current} == current
    for block in blocks:
        alloc.free(block)


def test_an_allocator_can_be_closed_while_a_tag_sleeps():
    alloc = on_device(GIB)
    (address,) = tagged(alloc, "w", 30 * MIB)
    alloc.pause("w", keep="nothing")
    alloc.free(address)
    alloc.close()
    assert alloc.device.used == 0


def test_a_copy_from_paused_memory_is_refused():
    with allotment.Allocator("host") as alloc:
        with allotment.tag("w"):
            buffer = alloc.empty(1000)
        alloc.pause("w")
        with pytest.raises(PausedError, match="tag 'w'"):
            alloc.copy(bytearray(1000), buffer, 1000)
        alloc.resume("w")
        alloc.copy(bytearray(1000), buffer, 1000)
        buffer.close()


def test_touching_paused_host_memory_ends_the_process_with_a_word_about_the_tag():
    program = """
        import allotment
        alloc = allotment.Allocator("host")
        with allotment.tag("the weights"):
            array = alloc.zeros(1000)
        alloc.pause("the weights")
        print(array[3])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert "tag 'the weights'" in done.stderr
    assert "paused" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="faults of paused memory are explained on Linux")
def test_a_fault_that_is_sent_to_a_program_with_a_paused_tag_ends_it():
    program = """
        import os, signal
        import allotment
        alloc = allotment.Allocator("host")
        with allotment.tag("w"):
            array = alloc.zeros(1000)
        alloc.pause("w")
        os.kill(os.getpid(), signal.SIGSEGV)
        print("goes on")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGSEGV, "", "")


def test_address_errors_stay_address_errors():
    alloc = on_device()
    tagged(alloc, "w", 512)
    alloc.pause("w", keep="nothing")
    with pytest.raises(AddressError):
        alloc.free(12345)


# --- tenants ---------------------------------------------------------------------------------------------------------


def test_a_tenant_is_paused_where_it_has_its_pages_to_itself():
    alloc = on_device(GIB, "expandable_segments:True")
    mine, other = alloc.tenant("mine"), alloc.tenant("other")
    pool = alloc.pool()
    kept = alloc.malloc(40 * MIB), other.malloc(40 * MIB)
    with pool:
        first = mine.malloc(30 * MIB)
    with allotment.tag("of mine"):
        second = mine.malloc(50 * MIB)
    before = alloc.device.used
    assert alloc.pause(mine, keep="nothing") == (40 + 60) * MIB
    alloc.inspection.check_invariants()
    assert alloc.device.used == before - 100 * MIB
    assert alloc.paused() == {pool.id, "of mine"}
    with allotment.tag("of mine"), pytest.raises(PausedError):
        mine.malloc(MIB)
    alloc.free(second)
    alloc.resume(mine)
    alloc.inspection.check_invariants()
    assert alloc.paused() == set(), "that of a pool without blocks by now too"
    for address in (first, *kept):
        alloc.free(address)


def test_contents_of_a_tenant_come_back():
    with allotment.Allocator("host") as alloc:
        tenant = alloc.tenant("t")
        with allotment.tag("one of t"):
            one = tenant.empty(1000)
        with allotment.tag("two of t"):
            two = tenant.empty(3 * MIB)
        for number, buffer in enumerate((one, two)):
            memoryview(buffer)[:] = bytes([number + 7]) * buffer.size
        alloc.pause(tenant)
        assert reserved(alloc) == 0
        alloc.resume(tenant)
        assert [set(bytes(buffer)) for buffer in (one, two)] == [{7}, {8}]
        one.close()
        two.close()


def test_a_tenant_that_shares_pages_is_not_paused_and_hears_with_whom():
    alloc = on_device(GIB, "expandable_segments:True")
    mine, other = alloc.tenant("mine"), alloc.tenant("other")
    with allotment.tag("of both"):
        blocks = [mine.malloc(MIB), other.malloc(MIB)]
    with pytest.raises(PausedError, match="of other is in tag 'of both' too"):
        alloc.pause(mine, keep="nothing")
    alloc.free(blocks.pop())
    with allotment.tag("of both"):
        blocks.append(alloc.malloc(MIB))
    with pytest.raises(PausedError, match="no tenant"):
        alloc.pause(mine, keep="nothing")
    alloc.free(blocks.pop())
    everybodys = mine.malloc(MIB)
    with pytest.raises(UnsupportedError, match="default pool"):
        alloc.pause(mine, keep="nothing")
    alloc.free(everybodys)
    with pytest.raises(PoolError, match="no block"):
        alloc.pause(other, keep="nothing")
    with pytest.raises(TypeError, match="Tenant of"):
        alloc.pause(on_device().tenant("mine"), keep="nothing")
    assert alloc.paused() == set()
    assert alloc.pause(mine, keep="nothing") == 2 * MIB, "it has it to itself by now"
    alloc.inspection.check_invariants()


def test_a_tenant_whose_second_pool_finds_no_memory_sleeps_on_with_all_of_them():
    device = allotment.SimulatedDevice(100 * MIB)
    alloc, thief = allotment.Allocator(device), allotment.Allocator(device)
    tenant = alloc.tenant("t")
    for tag in ("one of t", "two of t"):
        with allotment.tag(tag):
            tenant.malloc(40 * MIB)
    alloc.pause(tenant, keep="nothing")
    taken = thief.malloc(50 * MIB)
    with pytest.raises(OutOfMemoryError):
        alloc.resume(tenant)
    assert device.used == 50 * MIB
    assert alloc.paused() == {"one of t", "two of t"}
    alloc.inspection.check_invariants()
    thief.free(taken)
    thief.empty_cache()
    alloc.resume(tenant)
    assert alloc.paused() == set()
    alloc.inspection.check_invariants()


# --- in the background -----------------------------------------------------------------------------------------------


@pytest.mark.threads
def test_contents_come_back_while_the_caller_goes_on():
    with allotment.Allocator("host") as alloc:
        with allotment.tag("w"):
            array = alloc.full(1_000_000, 7, "int32")
        alloc.pause("w")
        seen, may_end = [], threading.Event()

        def progress(done, total):
            seen.append((done, total, threading.current_thread()))
            may_end.wait()

        future = alloc.sleep.resume_in_background("w", progress=progress)
        assert not future.done()
        assert reserved(alloc) >= array.nbytes, "memory is there at once"
        assert alloc.paused() == {"w"}
        with allotment.tag("w"), pytest.raises(PausedError):
            alloc.malloc(512)
        with pytest.raises(PausedError, match="being paused or resumed"):
            alloc.pause("w")
        may_end.set()
        assert future.result(60) is None
        assert seen[-1][0] == seen[-1][1] >= array.nbytes
        assert seen[-1][2] is not threading.current_thread()
        assert alloc.paused() == set()
        assert (array == 7).all()
        alloc.inspection.check_invariants()
        assert alloc.sleep.resume_in_background("w").result(60) is None, "awake already"
        del array


def test_a_resume_in_the_background_that_finds_no_memory_raises_at_once():
    alloc = on_device(100 * MIB)
    tagged(alloc, "w", 60 * MIB)
    alloc.pause("w", keep="nothing")
    taken = alloc.malloc(80 * MIB)
    with pytest.raises(OutOfMemoryError):
        alloc.sleep.resume_in_background("w")
    alloc.inspection.check_invariants()
    alloc.free(taken)
    assert alloc.sleep.resume_in_background("w").result(60) is None
    alloc.inspection.check_invariants()


@pytest.mark.threads
def test_closing_waits_for_a_resume_in_the_background():
    alloc = allotment.Allocator("host")
    with allotment.tag("w"):
        buffer = alloc.empty(1000)
    alloc.pause("w")
    entered, may_end = threading.Event(), threading.Event()
    future = alloc.sleep.resume_in_background("w", progress=lambda done, total: entered.set() or may_end.wait())
    entered.wait()
    buffer.close()
    threading.Timer(0, may_end.set).start()
    alloc.close()
    assert future.done()
    assert alloc.stats()["reserved_bytes.all.current"] == 0


@pytest.mark.threads
def test_a_pause_of_a_sleeping_tag_does_not_disturb_a_wake_by_another_thread():
    printed = output_of(
        """
        import threading, time
        import allotment

        allocator = allotment.Allocator("host")
        with allotment.tag("contended"):
            array = allocator.full(1 << 20, 7, "int8")

        def repeat(operation):
            for _ in range(300_000):
                try:
                    operation("contended")
                except allotment.PausedError:  # another thread is at it
                    time.sleep(0)

        operations = (allocator.pause, allocator.resume, allocator.pause)
        threads = [threading.Thread(target=repeat, args=(operation,)) for operation in operations]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        allocator.resume("contended")
        print(int(array.min()), int(array.max()))
        """
    )
    assert printed == "7 7\n"
