"""Pausing on a real GPU: memory is released to the device; contents and graphs are unchanged afterwards."""

import os

import pytest

import allotment
from allotment.errors import OutOfMemoryError, PausedError
from helpers.peer import Peer

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def alloc(device):
    with allotment.Allocator(device) as made:
        yield made


def read(alloc, address, size):
    stream = allotment.Stream(alloc)
    found = bytearray(size)
    alloc.copy(found, address, size, stream)
    stream.synchronize()
    return bytes(found)


def write(alloc, address, contents):
    stream = allotment.Stream(alloc)
    alloc.copy(address, contents, len(contents), stream)
    stream.synchronize()


def test_contents_come_back_under_the_same_address_and_free_memory_rises(alloc):
    size = 200 * MIB
    pattern = os.urandom(MIB) * 200
    with allotment.tag("gpu weights"):
        address = alloc.malloc(size)
    write(alloc, address, pattern)
    alloc.pause("gpu weights")
    alloc.resume("gpu weights")  # including memory that the driver keeps for pinned memory from its first use on
    free = alloc.memory_info()[0]
    assert alloc.pause("gpu weights") >= size
    assert alloc.memory_info()[0] - free >= size
    with allotment.tag("gpu weights"), pytest.raises(PausedError):
        alloc.malloc(MIB)
    alloc.resume("gpu weights")
    alloc.inspection.check_invariants()
    assert read(alloc, address, size) == pattern
    alloc.free(address)


def test_a_resume_fails_whole_while_a_second_process_has_the_memory_and_succeeds_after(alloc):
    size, left = 100 * MIB, 50 * MIB
    pattern = os.urandom(MIB) * 100
    with allotment.tag("gpu taken"):
        address = alloc.malloc(size)
    write(alloc, address, pattern)
    with Peer() as thief:
        thief.run("alloc = Allocator('cuda:0')")
        assert alloc.pause("gpu taken") >= size
        thief.run("taken = alloc.malloc(alloc.memory_info()[0] - left)", left=left)
        free = alloc.memory_info()[0]
        assert free < size
        for _ in range(3):
            with pytest.raises(OutOfMemoryError) as caught:
                alloc.resume("gpu taken")
            assert (caught.value.facts.tag, caught.value.facts.limited_by) == ("gpu taken", None)
            assert alloc.paused() == {"gpu taken"}
            alloc.inspection.check_invariants()
        assert alloc.memory_info()[0] >= free, "what it got before it was refused went back"
        thief.run("alloc.free(taken); alloc.empty_cache()")
        alloc.resume("gpu taken")
        alloc.inspection.check_invariants()
    assert alloc.paused() == set()
    assert read(alloc, address, size) == pattern
    alloc.free(address)


@pytest.mark.parametrize("options", [{}, {"keep_host": True}, {"keep": "file"}], ids=str)
def test_contents_come_back_from_every_place_also_when_several_threads_copy(alloc, options, tmp_path):
    size = 100 * MIB
    patterns = [os.urandom(MIB) * 100 for _ in range(2)]
    with allotment.tag("gpu places"):
        addresses = [alloc.malloc(size) for _ in patterns]
    for address, pattern in zip(addresses, patterns, strict=True):
        write(alloc, address, pattern)
    if options.get("keep") == "file":
        options = {**options, "folder": tmp_path}
    for _ in range(3):
        seen: list[tuple[int, int]] = []
        alloc.pause("gpu places", **options, progress=lambda *done, seen=seen: seen.append(done))
        other = alloc.malloc(2 * size)
        write(alloc, other, b"\xff" * size)
        alloc.free(other)
        alloc.empty_cache()
        alloc.resume("gpu places", progress=lambda *done, seen=seen: seen.append(done))
        assert seen[-1] == (2 * size, 2 * size)
        for address, pattern in zip(addresses, patterns, strict=True):
            assert read(alloc, address, size) == pattern
    alloc.inspection.check_invariants()
    for address in addresses:
        alloc.free(address)


def test_memory_of_a_capture_sleeps_with_its_tag(alloc):
    stream = allotment.Stream(alloc)
    with allotment.tag("gpu graph"):
        source = alloc.malloc(30 * MIB)
        with allotment.capture(stream, allocator=alloc) as graph:
            target = alloc.malloc(30 * MIB, stream)
            alloc.copy(target, source, 30 * MIB, stream)
            with pytest.raises(PausedError, match="being captured"):
                alloc.pause("gpu graph")
    pattern = os.urandom(MIB) * 30
    write(alloc, source, pattern)
    free = alloc.memory_info()[0]
    assert alloc.pause("gpu graph") >= 60 * MIB
    assert alloc.memory_info()[0] - free >= 60 * MIB - 8 * MIB
    alloc.resume("gpu graph")
    write(alloc, target, b"\0" * 30 * MIB)
    graph.replay()
    stream.synchronize()
    assert read(alloc, target, 30 * MIB) == pattern
    alloc.free(target)
    graph.reset()
    alloc.free(source)
    alloc.inspection.check_invariants()


@pytest.mark.parametrize("times", [20])
def test_nothing_drifts_over_many_pauses(alloc, times):
    with allotment.tag("gpu drift"):
        blocks = [alloc.malloc(size * MIB) for size in (1, 3, 25)]
    free = []
    for _ in range(times):
        alloc.pause("gpu drift")
        alloc.resume("gpu drift")
        free.append(alloc.memory_info()[0])
    assert free[0] == free[-1]
    for block in blocks:
        alloc.free(block)
