"""Plain memory of the host, and the source of its total size."""

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._devices.host.cgroups import memory_groups
from allotment._devices.host.device import HostDevice
from helpers.child import output_of
from helpers.forked import goes_well_in_child

MIB = 1 << 20


@pytest.fixture
def probe():
    return Probe(HostDevice())


def test_segments_are_private_to_a_forked_child(probe):
    address = probe.segment_allocate(MIB)
    ctypes.memset(address, 1, MIB)
    assert goes_well_in_child(lambda: ctypes.memset(address, 2, MIB))
    assert ctypes.string_at(address, MIB) == b"\1" * MIB
    probe.segment_free(address, MIB)


def test_a_freed_segment_is_the_systems_again(probe):
    address = probe.segment_allocate(16 * MIB)
    ctypes.memset(address, 1, 16 * MIB)
    probe.segment_free(address, 16 * MIB)
    assert not is_mapped(address)


@pytest.mark.parametrize("offset, size", [(0, 2 * MIB), (mmap.PAGESIZE, MIB), (0, MIB - 1)])
def test_only_whole_segments_are_freed(probe, offset, size):
    address = probe.segment_allocate(MIB)
    with pytest.raises(StatusError) as caught:
        probe.segment_free(address + offset, size)
    assert caught.value.status == Status.INVALID
    assert hex(address + offset) in caught.value.text
    assert is_mapped(address)
    probe.segment_free(address, MIB)


def test_what_exists_never_exceeds_the_memory_of_the_host(probe):
    _, total = probe.memory_info()
    address = probe.segment_allocate(total // 2)
    with pytest.raises(StatusError) as caught:
        probe.segment_allocate(total // 2 + 2 * MIB)
    assert caught.value.status == Status.OUT_OF_MEMORY
    probe.segment_free(address, total // 2)
    assert probe.device.used == 0


def test_segments_pinned_memory_and_chunks_are_counted_as_used(probe):
    segment, pinned = probe.segment_allocate(MIB), probe.pinned_allocate(MIB)
    chunk = probe.chunk_create(MIB)
    assert probe.device.used == 3 * MIB
    probe.segment_free(segment, MIB)
    probe.pinned_free(pinned)
    probe.chunk_release(chunk, MIB)
    assert probe.device.used == 0


def test_pinned_memory_begins_on_a_page_and_is_freed_once(probe):
    address = probe.pinned_allocate(1)
    assert address % mmap.PAGESIZE == 0
    probe.pinned_free(address)
    with pytest.raises(StatusError) as caught:
        probe.pinned_free(address)
    assert caught.value.status == Status.INVALID


def test_the_host_has_no_more_than_the_machine(probe):
    _, total = probe.memory_info()
    assert total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_host_has_no_more_than_its_control_groups_allow(tmp_path, monkeypatch):
    outer = group_files(tmp_path / "outer", limit=64 * MIB, usage=50 * MIB, reclaimable=20 * MIB)
    inner = group_files(tmp_path / "outer/inner", limit=None, usage=MIB, reclaimable=0)
    monkeypatch.setattr("allotment._devices.host.device.memory_groups", lambda: [inner, outer])
    assert Probe(HostDevice()).memory_info() == (34 * MIB, 64 * MIB)


def test_a_group_that_uses_more_than_its_limit_leaves_nothing_free(tmp_path, monkeypatch):
    group = group_files(tmp_path / "group", limit=64 * MIB, usage=65 * MIB, reclaimable=0)
    monkeypatch.setattr("allotment._devices.host.device.memory_groups", lambda: [group])
    assert Probe(HostDevice()).memory_info() == (0, 64 * MIB)


def test_version_2_groups_are_found_from_the_innermost_out(tmp_path):
    place = tmp_path / "sys"
    for path in ("", "user.slice", "user.slice/work"):
        make_group(place / path, "memory.max", "memory.current")
    process = process_files(
        tmp_path, groups="0::/user.slice/work\n", mounts=f"30 23 0:26 / {place} rw - cgroup2 cgroup2 rw\n"
    )
    assert [group.limit.parent for group in memory_groups(process)] == [
        place / "user.slice/work",
        place / "user.slice",
        place,
    ]


def test_version_1_groups_are_found_on_the_mount_of_the_memory_controller(tmp_path):
    place = tmp_path / "sys/memory"
    make_group(place / "job", "memory.limit_in_bytes", "memory.usage_in_bytes")
    process = process_files(
        tmp_path,
        groups="5:cpuset:/elsewhere\n4:memory:/job\n0::/\n",
        mounts=f"32 31 0:29 / {tmp_path} rw - cgroup cgroup rw,cpu\n"
        f"35 31 0:32 / {place} rw - cgroup cgroup rw,memory\n",
    )
    assert [group.limit.parent for group in memory_groups(process)] == [place / "job"]


def test_inside_a_container_the_root_of_the_mount_is_the_group(tmp_path):
    place = tmp_path / "sys"
    make_group(place, "memory.max", "memory.current")
    process = process_files(
        tmp_path,
        groups="0::/../../outside\n",
        mounts=f"30 23 0:26 /docker/1234 {place} rw - cgroup2 cgroup2 rw\n",
    )
    assert [group.limit.parent for group in memory_groups(process)] == [place]


def test_without_control_groups_there_are_no_limits(tmp_path):
    assert memory_groups(tmp_path) == []


def is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= address < last:
            return True
    return False


def make_group(directory: Path, limit: str, usage: str) -> None:
    directory.mkdir(parents=True)
    (directory / limit).write_text("max\n")
    (directory / usage).write_text("0\n")


def group_files(directory: Path, limit: int | None, usage: int, reclaimable: int):
    directory.mkdir(parents=True)
    (directory / "memory.max").write_text("max\n" if limit is None else f"{limit}\n")
    (directory / "memory.current").write_text(f"{usage}\n")
    (directory / "memory.stat").write_text(f"anon 0\nfile 1\ninactive_anon 3\ninactive_file {reclaimable}\n")
    process = process_files(
        directory.parent / f"process of {directory.name}",
        groups="0::/\n",
        mounts=f"30 23 0:26 / {directory} rw - cgroup2 cgroup2 rw\n",
    )
    (group,) = memory_groups(process)
    return group


def process_files(directory: Path, groups: str, mounts: str) -> Path:
    process = directory / "proc"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(groups)
    (process / "mountinfo").write_text(mounts)
    return process


@pytest.mark.threads
@pytest.mark.parametrize("stream", ["allotment.Stream.default(allocator)", "allotment.Stream(allocator)"])
def test_memory_is_not_unmapped_under_work_that_was_given_before(stream):
    assert (
        output_of(f"""
        import ctypes, threading
        import allotment

        allocator = allotment.Allocator("host")
        stream = {stream}
        gate, started = threading.Event(), threading.Event()
        address = allocator.malloc(30 << 20, stream)

        def work():
            started.set()
            assert gate.wait(60)
            ctypes.memset(address, 1, 30 << 20)     # ends the process if the memory is gone

        stream.submit(work)
        assert started.wait(60)
        allocator.free(address)
        threading.Timer(0.2, gate.set).start()
        allocator.empty_cache()
        stream.synchronize()
        print(allocator.stats()["reserved_bytes.all.current"])
    """)
        == "0\n"
    )
