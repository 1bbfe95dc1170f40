"""A block in two processes: the same memory, not reused while the other has it, and returned whatever happens."""

import logging
import math
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from allotment import AddressError, Allocator, Buffer, SharedHandle, SharingError, Stream, open_shared
from allotment.errors import RequestError, SettingsError, UnsupportedError
from helpers.forked import goes_well_in_child
from helpers.peer import Peer, descriptors, everything_is_closed, wait_until

MIB = 1 << 20
SETTINGS = {
    "plain": "shareable:True",
    "expandable": "shareable:True,expandable_segments:True",
    "dense": "shareable:True,placement:dense",
}
pytestmark = pytest.mark.threads


@pytest.fixture(params=SETTINGS)
def settings(request):
    return SETTINGS[request.param]


@pytest.fixture
def allocator(settings):
    made = Allocator("host", settings=settings)
    yield made
    made.inspection.check_invariants()


@pytest.fixture(scope="module")
def peers():
    with Peer() as one:
        yield one


@pytest.fixture
def peer(peers):
    yield peers
    peers.run("buffers = {}; buffer = other = None; wait_until(everything_is_closed)")


def active(allocator):
    allocator.inspection.check_invariants()
    return allocator.stats()["active_bytes.all.current"]


@pytest.mark.parametrize("size", [1, 700, 3 * MIB, 45 * MIB])
def test_what_one_writes_the_other_reads_and_the_other_way_round(allocator, peer, size):
    around = [allocator.empty(size) for _ in range(3)]
    buffer = around[1]
    memoryview(buffer)[:] = b"o" * size
    handle = allocator.share(buffer)
    seen = peer.run(
        """
        buffer = open_shared(handle)
        view = memoryview(buffer)
        result = len(buffer), set(bytes(view)) == {ord("o")}
        view[:] = b"i" * len(buffer)
        del view
        buffer.close()
        """,
        handle=handle,
    )
    assert seen == (size, True)
    assert set(bytes(memoryview(buffer))) == {ord("i")}
    handle.close()


def test_a_block_of_a_private_pool_is_shared(allocator, peer):
    with allocator.pool():
        buffer = allocator.empty(2 * MIB)
    memoryview(buffer)[:4] = b"pool"
    handle = allocator.share(buffer)
    assert peer.run("with open_shared(handle) as b: result = bytes(memoryview(b)[:4])", handle=handle) == b"pool"
    handle.close()


def test_a_freed_block_is_not_reused_while_another_process_has_it(allocator, peer):
    buffer = allocator.empty(MIB)
    address = buffer.address
    memoryview(buffer)[:4] = b"keep"
    handle = allocator.share(buffer)
    peer.run("buffer = open_shared(handle)", handle=handle)
    handle.close()
    buffer.close()
    assert active(allocator) > 0
    others = [allocator.malloc(MIB) for _ in range(64)]
    assert address not in others
    for other in others:
        allocator.free(other)
    allocator.empty_cache()
    assert peer.run("result = bytes(memoryview(buffer)[:4])") == b"keep"
    peer.run("buffer.close()")
    wait_until(lambda: active(allocator) == 0)


def test_a_handle_that_is_not_opened_holds_its_block_for_a_while_only(allocator, peer):
    buffer = allocator.empty(MIB)
    handle = allocator.share(buffer, hold=0.2)
    buffer.close()
    assert active(allocator) > 0
    wait_until(lambda: active(allocator) == 0)
    with pytest.raises(SharingError) as raised:
        peer.run("open_shared(handle)", handle=handle)
    assert raised.value.reason == "expired"


@pytest.mark.parametrize("hold", [30 * 86_400, 1e12, 10**400])
def test_a_hold_longer_than_the_system_can_wait_does_not_end_the_service_of_the_others(peer, hold):
    with Allocator("host", settings="shareable:True") as allocator, allocator.empty(MIB) as held:
        handle = allocator.share(held, hold=hold)
        with allocator.empty(MIB) as buffer:
            allocator.share(buffer, hold=0.001)
        wait_until(lambda: active(allocator) == MIB)
        assert peer.run("with open_shared(handle) as opened: result = len(opened)", handle=handle) == MIB
        handle.close()


def test_a_block_that_was_not_opened_in_time_can_be_shared_again_and_has_the_same_handle(allocator, peer):
    buffer = allocator.empty(MIB)
    handle = allocator.share(buffer)
    handle.close()
    with pytest.raises(SharingError) as raised:
        peer.run("open_shared(handle)", handle=handle)
    assert raised.value.reason == "expired"
    assert allocator.share(buffer) == handle
    peer.run("open_shared(handle).close()", handle=handle)
    handle.close()


def test_a_block_at_the_same_address_later_has_another_handle(allocator):
    first = allocator.malloc(MIB)
    one = allocator.share(first)
    one.close()
    allocator.free(first)
    assert active(allocator) == 0
    second = allocator.malloc(MIB)
    assert second == first
    two = allocator.share(second)
    assert one != two
    with pytest.raises(SharingError):
        open_shared(one)
    two.close()
    allocator.free(second)


def test_ten_shares_of_a_block_are_equal_and_open_no_descriptor(settings):
    with Peer() as owner:  # a process in which nothing of other tests ends meanwhile
        owner.run(
            """
            allocator = Allocator("host", settings=settings)
            buffer = allocator.empty(45 << 20)
            allocator.share(buffer)
            before = descriptors()
            handles = [allocator.share(buffer) for _ in range(10)]
            assert len({handle.to_bytes() for handle in handles}) == 1
            assert descriptors() == before
            """,
            settings=settings,
        )


def test_the_same_handle_opened_twice_is_one_mapping(allocator, peer):
    buffers = [allocator.empty(MIB // 4) for _ in range(4)]
    handles = [allocator.share(buffer) for buffer in buffers]
    apart = peer.run(
        """
        buffers = [open_shared(handle) for handle in handles for _ in range(3)]
        count = mappings()
        again = [open_shared(handle) for handle in handles]
        assert mappings() == count
        result = [buffer.address - buffers[0].address for buffer in buffers]
        del again, buffers
        """,
        handles=handles,
    )
    assert apart == [buffer.address - buffers[0].address for buffer in buffers for _ in range(3)]
    for handle in handles:
        handle.close()


def test_an_import_reserves_what_it_needs_and_no_more(allocator, peer):
    buffer = allocator.empty(30 * MIB)
    handle = allocator.share(buffer)
    reserved = peer.run(
        """
        before = address_space()
        buffer = open_shared(handle)
        result = address_space() - before
        """,
        handle=handle,
    )
    assert 30 * MIB <= reserved <= 80 * MIB
    handle.close()


def test_descriptors_are_closed_with_the_segment(settings):
    with Peer() as owner:
        owner.run(
            """
            allocator = Allocator("host", settings=settings)
            allocator.share(allocator.empty(1)).close()
            allocator.empty_cache()
            before = descriptors()
            buffer = allocator.empty(45 << 20)
            allocator.share(buffer).close()
            assert descriptors() > before
            buffer.close()
            allocator.empty_cache()
            assert descriptors() == before
            """,
            settings=settings,
        )


def test_a_hundred_blocks_of_a_killed_importer_return(allocator):
    with Peer() as peer:
        buffers = [allocator.empty(MIB) for _ in range(100)]
        handles = [allocator.share(buffer) for buffer in buffers]
        peer.run("buffers = [open_shared(handle) for handle in handles]", handles=handles)
        for handle, buffer in zip(handles, buffers, strict=True):
            handle.close()
            buffer.close()
        assert active(allocator) >= 100 * MIB
        peer.kill()
        wait_until(lambda: active(allocator) == 0)


def test_an_owner_that_is_killed_leaves_its_importer_the_memory(settings):
    with Peer() as owner:
        handle = owner.run(
            """
            allocator = Allocator("host", settings=settings)
            buffer = allocator.empty(3 << 20)
            memoryview(buffer)[:] = b"x" * (3 << 20)
            result = allocator.share(buffer)
            """,
            settings=settings,
        )
        wait_until(everything_is_closed)
        before = descriptors()
        buffer = open_shared(handle)
        view = memoryview(buffer)
        assert view[0] == ord("x")
        owner.kill()
        assert set(bytes(view)) == {ord("x")}
        view[:] = b"y" * len(view)
        del view
        with pytest.raises(SharingError) as raised:
            open_shared(handle)
        assert raised.value.reason == "owner_gone"
        buffer.close()
        wait_until(lambda: descriptors() <= before)


def test_owner_and_importer_killed_leave_nothing(settings):
    before = set(os.listdir("/dev/shm"))
    with Peer() as owner, Peer() as importer:
        handle = owner.run(
            """
            allocator = Allocator("host", settings=settings)
            buffer = allocator.empty(3 << 20)
            result = allocator.share(buffer)
            """,
            settings=settings,
        )
        importer.run("buffer = open_shared(handle)", handle=handle)
        name = f"allotment-{owner.pid}-"
        assert name in Path("/proc/net/unix").read_text()
        owner.kill()
        importer.kill()
        assert name not in Path("/proc/net/unix").read_text()
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "allotment" in name]


def test_an_importer_that_is_stopped_keeps_its_block_until_it_is_gone(allocator):
    with Peer() as peer:
        buffer = allocator.empty(MIB)
        handle = allocator.share(buffer)
        peer.run("buffer = open_shared(handle)", handle=handle)
        os.kill(peer.pid, signal.SIGSTOP)
        handle.close()
        buffer.close()
        assert active(allocator) > 0
        peer.kill()
        wait_until(lambda: active(allocator) == 0)


def test_a_child_of_the_importer_does_not_prolong_its_lease(allocator):
    with Peer() as peer:
        buffer = allocator.empty(MIB)
        handle = allocator.share(buffer)
        child = peer.run(
            """
            buffer = open_shared(handle)
            result = os.fork()
            if result == 0:
                import signal
                signal.pause()
            """,
            handle=handle,
        )
        handle.close()
        buffer.close()
        peer.kill()
        wait_until(lambda: active(allocator) == 0)
        os.kill(child, signal.SIGKILL)


def test_an_allocator_lives_as_long_as_a_block_of_it_is_open_elsewhere(settings, peer):
    allocator = Allocator("host", settings=settings)
    buffer = allocator.empty(MIB)
    memoryview(buffer)[:3] = b"yes"
    handle = allocator.share(buffer)
    peer.run("buffer = open_shared(handle)", handle=handle)
    handle.close()
    del buffer, allocator
    assert peer.run("result = bytes(memoryview(buffer)[:3])") == b"yes"
    peer.run("buffer.close()")


def test_a_closed_allocator_releases_a_shared_block_when_it_returns(settings, peer):
    allocator = Allocator("host", settings=settings)
    buffer = allocator.empty(MIB)
    handle = allocator.share(buffer)
    peer.run("buffer = open_shared(handle)", handle=handle)
    handle.close()
    buffer.close()
    allocator.close()
    assert allocator.stats()["reserved_bytes.all.current"] > 0
    peer.run("buffer.close()")
    wait_until(lambda: allocator.stats()["reserved_bytes.all.current"] == 0)
    with pytest.raises(RequestError, match="is closed"):
        allocator.share(buffer.address if not buffer.closed else 512)


def test_streams_that_still_use_a_block_are_waited_for_as_well(allocator, peer):
    stream, gate = Stream(allocator), threading.Event()
    buffer = allocator.empty(MIB)
    allocator.record_stream(buffer, stream)
    stream.submit(gate.wait)
    handle = allocator.share(buffer)
    buffer.close()
    peer.begin("open_shared(handle).close()", handle=handle)  # waits for the owner's stream
    assert active(allocator) > 0
    gate.set()
    peer.finish()
    handle.close()
    stream.synchronize()

    def is_over():
        allocator.free(allocator.malloc(1))
        return active(allocator) == 0

    wait_until(is_over)


def test_a_child_of_fork_has_blocks_of_its_own_and_no_leases(settings):
    allocator = Allocator("host", settings=settings)
    buffer = allocator.empty(MIB)
    memoryview(buffer)[:6] = b"parent"
    handle = allocator.share(buffer)

    def in_child():
        allocator.inspection.check_invariants()
        memoryview(buffer)[:5] = b"child"
        buffer.close()
        assert active(allocator) == 0
        with open_shared(handle) as again:  # of its parent, which is another process
            assert bytes(memoryview(again)[:6]) == b"parent"
        other = allocator.empty(MIB)
        assert allocator.share(other) != handle

    assert goes_well_in_child(in_child)
    assert bytes(memoryview(buffer)[:6]) == b"parent"
    handle.close()


def test_a_block_is_opened_by_its_own_process_where_it_is(allocator):
    buffer = allocator.empty(MIB)
    address = buffer.address
    handle = allocator.share(buffer)
    again = open_shared(handle)
    assert again.address == address
    handle.close()
    buffer.close()
    assert active(allocator) > 0
    again.close()
    wait_until(lambda: active(allocator) == 0)


def test_host_memory_is_shared_only_if_the_settings_ask_for_it():
    allocator = Allocator("host")
    with allocator.empty(1) as buffer:
        for share in (allocator.share, allocator.share_torch):
            with pytest.raises(UnsupportedError, match="shareable:True"):
                share(buffer)


def test_shareable_is_fixed_when_the_allocator_is_made():
    allocator = Allocator("host")
    with pytest.raises(SettingsError):
        allocator.settings = "shareable:True"
    with pytest.raises(SettingsError, match=r"HostDevice\(shareable=True\)"):
        Allocator(allocator.device, settings="shareable:True")


def test_what_is_not_a_live_block_is_not_shared(allocator):
    address = allocator.malloc(MIB)
    for wrong in (address + 512, 4096):
        with pytest.raises(AddressError):
            allocator.share(wrong)
    with pytest.raises(RequestError, match="hold must be a number of seconds"):
        allocator.share(address, hold=-1)
    with pytest.raises(RequestError, match="hold must be a number of seconds"):
        allocator.share(address, hold=float("nan"))
    allocator.free(address)
    assert active(allocator) == 0


def test_a_pool_with_a_block_that_is_open_elsewhere_is_not_restored(settings, peer):
    from allotment.errors import CheckpointError

    allocator = Allocator("host", settings=settings)
    pool = allocator.pool()
    with pool:
        buffer = allocator.empty(MIB)
    state = pool.checkpoint()
    handle = allocator.share(buffer)
    peer.run("buffer = open_shared(handle)", handle=handle)
    with pytest.raises(CheckpointError, match="shared with another process"):
        pool.restore(state)
    peer.run("buffer.close()")
    handle.close()

    def is_restored():
        try:
            pool.restore(state)
        except CheckpointError:
            return False
        return True

    wait_until(is_restored)
    allocator.inspection.check_invariants()


def test_opened_memory_is_a_buffer_like_others(allocator, peer):
    buffer = allocator.empty(100)
    handle = allocator.share(buffer)
    result = peer.run(
        """
        import numpy
        opened = open_shared(handle)
        array = numpy.from_dlpack(opened[10:90])
        array[:] = 7
        result = isinstance(opened, Buffer), array.shape, "host" in repr(opened)
        del array
        opened.close()
        opened.close()
        """,
        handle=handle,
    )
    assert result == (True, (80,), True)
    assert bytes(memoryview(buffer)[9:12])[1:] == b"\7\7"
    assert isinstance(buffer, Buffer) and isinstance(handle, SharedHandle)
    handle.close()


def test_the_way_of_sharing_is_logged(settings, caplog):
    caplog.set_level(logging.DEBUG, "allotment")
    allocator = Allocator("host", settings=settings)
    buffer = allocator.empty(MIB)
    handle = allocator.share(buffer, hold=math.inf)
    open_shared(handle).close()
    with Peer() as peer:
        opened = peer.run(
            """
            import logging
            reported = []
            class Keep(logging.Handler):
                def emit(self, record): reported.append((record.levelname, record.getMessage()))
            logging.getLogger("allotment").addHandler(Keep())
            logging.getLogger("allotment").setLevel(logging.DEBUG)
            first, second = open_shared(handle), open_shared(other)
            result = reported
            """,
            handle=handle,
            other=allocator.share(other := allocator.empty(MIB // 2)),
        )
    way = "a descriptor" if settings == "shareable:True" else "descriptors of 1 chunks"
    size = "1024.00 KiB"
    assert f"block of {size} at {buffer.address:#x} is shared as {way}" in caplog.text
    here = f"{buffer.address:#x} by its own address"
    assert f"block of {size} of process {os.getpid()} is opened at {here}" in caplog.text
    assert {level for level, _ in opened} == {"DEBUG"}
    assert re.fullmatch(rf"host: block of {size} of process {os.getpid()} is opened at 0x\w+ by {way}", opened[0][1])
    assert "by " in opened[1][1]
    handle.close()
    other.close()
