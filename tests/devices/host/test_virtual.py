"""Virtual memory of the host: what the system really holds for ranges and chunks."""

import ctypes
import errno
import gc
import os
import random
from pathlib import Path

import pytest

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._devices.host.device import HostDevice
from helpers.forked import fork_past_python, goes_well_in_child

MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture
def probe():
    return Probe(HostDevice())


@pytest.fixture
def arena_bytes(probe):
    """Returns the bytes that the memory file of the probe's device holds; it opens one with its first chunk."""
    others = memory_files().keys()
    return lambda: sum(size for file, size in memory_files().items() if file not in others)


def test_a_fresh_mapping_cannot_be_touched_before_access_is_set(probe):
    address = probe.range_reserve(2 * PAGE)
    chunks = put_chunks(probe, address, 1, access=False)
    assert not is_accessible(address)
    probe.set_access(address, PAGE, probe.device.index)
    assert is_accessible(address)
    assert not is_accessible(address + PAGE)
    take_away(probe, address, chunks)
    probe.range_release(address, 2 * PAGE)


def test_unmapped_addresses_stay_reserved(probe):
    address = probe.range_reserve(PAGE)
    chunks = put_chunks(probe, address, 1)
    ctypes.memset(address, 1, PAGE)
    take_away(probe, address, chunks)
    assert not is_accessible(address)
    (mapping,) = [line for line in mappings() if line.first <= address < line.last]
    assert mapping.access == "---p"
    probe.range_release(address, PAGE)


def test_the_memory_of_a_released_chunk_returns_to_the_system(probe, arena_bytes):
    address = probe.range_reserve(8 * PAGE)
    before = shared_bytes()
    chunks = put_chunks(probe, address, 8)
    ctypes.memset(address, 1, 8 * PAGE)
    assert arena_bytes() == 8 * PAGE
    probe.unmap(address, 4 * PAGE)
    assert arena_bytes() == 8 * PAGE, "unmapped chunks keep their content"
    for chunk in chunks[:4]:
        probe.chunk_release(chunk, PAGE)
    assert arena_bytes() == 4 * PAGE
    take_away(probe, address + 4 * PAGE, chunks[4:])
    assert arena_bytes() == 0
    assert shared_bytes() <= before
    probe.range_release(address, 8 * PAGE)


def test_a_chunk_outlives_its_handle_while_it_is_mapped(probe, arena_bytes):
    address = probe.range_reserve(2 * PAGE)
    chunk = probe.chunk_create(PAGE)
    for place in (address, address + PAGE):
        probe.map(place, PAGE, chunk)
        probe.set_access(place, PAGE, 0)
    probe.chunk_release(chunk, PAGE)
    ctypes.memset(address, 7, PAGE)
    probe.unmap(address, PAGE)
    assert ctypes.string_at(address + PAGE, 4) == b"\7\7\7\7"
    assert probe.device.used == PAGE
    probe.unmap(address + PAGE, PAGE)
    assert probe.device.used == 0
    assert arena_bytes() == 0
    probe.range_release(address, 2 * PAGE)


def test_a_recycled_place_gives_zeroed_memory(probe):
    address = probe.range_reserve(PAGE)
    for _ in range(3):
        chunks = put_chunks(probe, address, 1)
        assert ctypes.string_at(address, PAGE) == bytes(PAGE)
        ctypes.memset(address, 1, PAGE)
        take_away(probe, address, chunks)
    probe.range_release(address, PAGE)


@pytest.mark.parametrize("size", [PAGE, 20 * MIB])
def test_neighbours_are_one_mapping_of_the_system(probe, size):
    address = probe.range_reserve(32 * size)
    chunks = put_chunks(probe, address, 16, size)
    assert len(views_in(address, 32 * size)) == 1

    # Released in any order, the places are reused from the lowest up.
    random.Random(1).shuffle(chunks)
    probe.unmap(address, 16 * size)
    for chunk in chunks:
        probe.chunk_release(chunk, size)
    chunks = put_chunks(probe, address, 16, size)
    assert len(views_in(address, 32 * size)) == 1
    take_away(probe, address, chunks, size)
    probe.range_release(address, 32 * size)


def test_sizes_that_are_made_in_turns_do_not_scatter(probe):
    small, large = probe.range_reserve(16 * PAGE), probe.range_reserve(16 * 20 * MIB)
    for at in range(16):
        put_chunks(probe, small + at * PAGE, 1)
        put_chunks(probe, large + at * 20 * MIB, 1, 20 * MIB)
    assert len(views_in(small, 16 * PAGE)) == 1
    assert len(views_in(large, 16 * 20 * MIB)) == 1


def test_a_thousand_chunks_take_one_descriptor(probe):
    before = len(os.listdir("/proc/self/fd"))
    chunks = [probe.chunk_create(PAGE) for _ in range(1000)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    for chunk in chunks:
        probe.chunk_release(chunk, PAGE)


def test_one_unmap_takes_away_several_chunks_but_only_whole_ones(probe):
    address = probe.range_reserve(4 * PAGE)
    chunks = put_chunks(probe, address, 3)
    granularity = probe.granularity()
    for start, size in [
        (address, PAGE + granularity),
        (address + granularity, PAGE),
        (address, 4 * PAGE),
        (address + 3 * PAGE, PAGE),
    ]:
        assert refusal(probe.unmap, start, size) == Status.INVALID
        assert refusal(probe.set_access, start, size, 0) == Status.INVALID
    ctypes.memset(address, 1, 3 * PAGE)
    probe.unmap(address, 3 * PAGE)
    for chunk in chunks:
        probe.chunk_release(chunk, PAGE)
    probe.range_release(address, 4 * PAGE)


def test_a_chunk_is_mapped_only_where_it_fits(probe):
    address = probe.range_reserve(2 * PAGE)
    chunk, other = probe.chunk_create(PAGE), probe.chunk_create(PAGE)
    granularity = probe.granularity()
    probe.map(address + granularity, PAGE, chunk)
    assert refusal(probe.map, address, PAGE, other) == Status.INVALID  # overlaps the first
    assert refusal(probe.map, address + PAGE, PAGE, other) == Status.INVALID
    assert refusal(probe.map, address + PAGE + granularity, PAGE, other) == Status.INVALID  # past the end
    assert refusal(probe.map, address - PAGE, PAGE, other) == Status.INVALID
    assert refusal(probe.map, address + 1, PAGE, other) == Status.INVALID
    assert refusal(probe.map, address, granularity, other) == Status.INVALID
    probe.unmap(address + granularity, PAGE)
    for made in (chunk, other):
        probe.chunk_release(made, PAGE)
    probe.range_release(address, 2 * PAGE)


def test_a_range_is_released_whole_and_empty(probe):
    address = probe.range_reserve(2 * PAGE)
    assert refusal(probe.range_release, address, PAGE) == Status.INVALID
    assert refusal(probe.range_release, address + PAGE, PAGE) == Status.INVALID
    chunks = put_chunks(probe, address, 1)
    assert refusal(probe.range_release, address, 2 * PAGE) == Status.INVALID
    take_away(probe, address, chunks)
    probe.range_release(address, 2 * PAGE)
    assert refusal(probe.range_release, address, 2 * PAGE) == Status.INVALID


def test_a_range_may_be_larger_than_the_memory(probe):
    _, total = probe.memory_info()
    size = (total + total // 8) // PAGE * PAGE
    ranges = [probe.range_reserve(size) for _ in range(8)]
    chunks = put_chunks(probe, ranges[3] + size - PAGE, 1)
    ctypes.memset(ranges[3] + size - PAGE, 1, PAGE)
    take_away(probe, ranges[3] + size - PAGE, chunks)
    for address in ranges:
        probe.range_release(address, size)


def test_chunks_are_whole_pages(probe):
    assert refusal(probe.chunk_create, probe.granularity() + 1) == Status.INVALID
    assert probe.device.used == 0


def test_a_released_chunk_is_not_one_any_more(probe):
    chunk = probe.chunk_create(PAGE)
    assert refusal(probe.chunk_release, chunk, 2 * PAGE) == Status.INVALID
    probe.chunk_release(chunk, PAGE)
    assert refusal(probe.chunk_release, chunk, PAGE) == Status.INVALID
    again = probe.chunk_create(PAGE)
    assert again != chunk
    probe.chunk_release(again, PAGE)


def test_only_the_host_is_given_access(probe):
    address = probe.range_reserve(PAGE)
    chunks = put_chunks(probe, address, 1)
    assert refusal(probe.set_access, address, PAGE, 1) == Status.UNSUPPORTED
    take_away(probe, address, chunks)


@pytest.mark.parametrize("fork", [os.fork, fork_past_python])
def test_what_a_forked_child_writes_stays_in_the_child(probe, fork):
    address = probe.range_reserve(2 * PAGE)
    put_chunks(probe, address, 2)
    ctypes.memset(address, 1, 2 * PAGE)

    def write():
        ctypes.memset(address, 2, PAGE)
        assert ctypes.string_at(address, PAGE) == b"\2" * PAGE

    assert goes_well_in_child(write, fork)
    assert ctypes.string_at(address, 2 * PAGE) == b"\1" * (2 * PAGE)


def test_a_forked_child_has_chunks_of_its_own(probe):
    address = probe.range_reserve(4 * PAGE)
    old = put_chunks(probe, address, 2)
    ctypes.memset(address, 1, 2 * PAGE)

    def work():
        new = put_chunks(probe, address + 2 * PAGE, 2)
        ctypes.memset(address + 2 * PAGE, 3, 2 * PAGE)
        take_away(probe, address + 2 * PAGE, new)
        probe.unmap(address, PAGE)
        assert refusal(probe.map, address, PAGE, old[0]) == Status.INVALID
        take_away(probe, address + PAGE, old[1:])
        probe.chunk_release(old[0], PAGE)
        assert probe.device.used == 0

    assert goes_well_in_child(work)
    assert ctypes.string_at(address, 2 * PAGE) == b"\1" * (2 * PAGE)
    take_away(probe, address, old)


def test_the_memory_file_is_closed_with_the_device():
    gc.collect()  # otherwise garbage of other tests may be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    probe = Probe(HostDevice())
    probe.chunk_create(PAGE)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del probe
    assert len(os.listdir("/proc/self/fd")) == before


def test_random_maps_and_unmaps_keep_every_chunk_intact(probe):
    seed = 20240501
    print(f"seed {seed}")
    rng = random.Random(seed)
    places = [probe.range_reserve(64 * MIB) + at * MIB for _ in range(2) for at in range(64)]
    chunks: dict[int, tuple[int, set[int]]] = {}  # handle -> (mark, places)
    free = set(places)
    for step in range(2000):
        action = rng.random()
        if action < 0.35 and len(chunks) < 60:
            chunks[probe.chunk_create(MIB)] = (step % 251 + 1, set())
        elif action < 0.7 and chunks and free:
            chunk = rng.choice(sorted(chunks))
            place = rng.choice(sorted(free))
            probe.map(place, MIB, chunk)
            probe.set_access(place, MIB, 0)
            free.remove(place)
            mark, views = chunks[chunk]
            expected = bytes([mark]) * 8 if views else bytes(8)
            assert ctypes.string_at(place + MIB - 8, 8) == expected
            ctypes.memset(place, mark, MIB)
            views.add(place)
        elif chunks:
            chunk = rng.choice(sorted(chunks))
            mark, views = chunks.pop(chunk)
            for place in sorted(views):
                assert ctypes.string_at(place, 8) == bytes([mark]) * 8
                probe.unmap(place, MIB)
                free.add(place)
            probe.chunk_release(chunk, MIB)
        assert probe.device.used == len(chunks) * MIB


# Helpers.


def put_chunks(probe, address, count, size=PAGE, access=True):
    chunks = [probe.chunk_create(size) for _ in range(count)]
    for at, chunk in enumerate(chunks):
        probe.map(address + at * size, size, chunk)
        if access:
            probe.set_access(address + at * size, size, probe.device.index)
    return chunks


def take_away(probe, address, chunks, size=PAGE):
    probe.unmap(address, len(chunks) * size)
    for chunk in chunks:
        probe.chunk_release(chunk, size)


def refusal(call, *arguments):
    with pytest.raises(StatusError) as caught:
        call(*arguments)
    assert caught.value.text
    return caught.value.status


def is_accessible(address) -> bool:
    """Return whether this process can read there, without crashing if it cannot."""
    reading, writing = os.pipe()
    try:
        os.write(writing, (ctypes.c_char * 1).from_address(address))
    except OSError as error:
        assert error.errno == errno.EFAULT
        return False
    else:
        return True
    finally:
        os.close(reading)
        os.close(writing)


class Mapping:
    def __init__(self, line: str) -> None:
        fields = line.split(maxsplit=5)
        self.first, self.last = (int(number, 16) for number in fields[0].split("-"))
        self.access = fields[1]
        self.name = fields[5] if len(fields) > 5 else ""


def mappings():
    return [Mapping(line) for line in Path("/proc/self/maps").read_text().splitlines()]


def views_in(address, size):
    return [line for line in mappings() if address <= line.first < address + size and "memfd:allotment" in line.name]


def memory_files() -> dict[int, int]:
    """Return the bytes that each open memory file of this process holds, by inode."""
    files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    found = [os.stat(file) for file in files if os.path.lexists(file) and "memfd:allotment" in os.readlink(file)]
    return {file.st_ino: file.st_blocks * 512 for file in found}


def shared_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (kib,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssShmem")]
    return kib * 1024
