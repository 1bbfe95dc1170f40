"""Pinned memory that is kept: it is handed out again only when no copy can touch it."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import allotment
from allotment._allocators.pinned import PinnedPool
from allotment.errors import AddressError, SizeError, UnsupportedError
from helpers.cuda_like_device import CudaLikeDevice


@pytest.fixture
def device():
    return CudaLikeDevice()


@pytest.fixture
def stream(device):
    return device.stream_create()


@pytest.fixture
def pool(device):
    return PinnedPool(device)


def test_freed_memory_serves_the_next_request_of_its_size_class(device, pool):
    address = pool.allocate(3000)
    pool.free(address)
    assert pool.allocate(4000) == address
    assert device.pinned == {address: 4096}
    assert (pool.hits, pool.misses) == (1, 1)


def test_another_size_class_gets_memory_of_its_own(pool):
    address = pool.allocate(3000)
    pool.free(address)
    assert pool.allocate(5000) != address


def test_small_requests_share_a_size_class(device, pool):
    pool.allocate(1)
    pool.allocate(512)
    assert list(device.pinned.values()) == [512, 512]


def test_memory_waits_for_the_copies_on_its_streams(device, pool, stream):
    address = pool.allocate(1000)
    copy = device.hold(stream)
    pool.free(address, [0, stream])
    other = pool.allocate(1000)
    assert other != address
    copy.release()
    assert pool.allocate(1000) == address


def test_the_oldest_that_is_done_is_taken_whatever_came_before(device, pool, stream):
    other_stream = device.stream_create()
    held, done = pool.allocate(1000), pool.allocate(1000)
    copy = device.hold(stream)
    pool.free(held, [stream])
    pool.free(done, [other_stream])
    assert pool.allocate(1000) == done
    assert pool.stats()["waiting_blocks"] == 1
    copy.release()


def test_a_stream_in_a_capture_is_not_waited_for(device, pool, stream):
    address = pool.allocate(1000)
    device.capture_begin(stream)
    pool.free(address, [stream])
    assert pool.allocate(1000) == address
    device.capture_end(stream)


def test_release_frees_what_is_not_in_use(device, pool, stream):
    kept, waiting, lent = (pool.allocate(1000) for _ in range(3))
    copy = device.hold(stream)
    pool.free(kept)
    pool.free(waiting, [stream])
    pool.release()
    assert set(device.pinned) == {waiting, lent}
    copy.release()
    pool.release()
    assert set(device.pinned) == {lent}


def test_statistics_tell_where_memory_is(device, pool, stream):
    kept, waiting, _ = (pool.allocate(1000) for _ in range(3))
    copy = device.hold(stream)
    pool.free(kept)
    pool.free(waiting, [stream])
    stats = pool.stats()
    assert {key: stats[key] for key in stats if key.endswith("bytes")} == {
        "lent_bytes": 1024,
        "waiting_bytes": 1024,
        "kept_bytes": 1024,
    }
    assert (stats["lent_blocks"], stats["waiting_blocks"], stats["kept_blocks"]) == (1, 1, 1)
    copy.release()


def test_when_memory_is_short_what_is_cached_is_given_back_and_waited_for(stream):
    device = CudaLikeDevice(pinned_capacity=4096)
    pool = PinnedPool(device)
    stream = device.stream_create()
    first, second = pool.allocate(2048), pool.allocate(2048)
    device.hold(stream)
    pool.free(first, [stream])
    pool.free(second)
    assert pool.allocate(4096)
    assert set(device.pinned.values()) == {4096}


def test_without_memory_it_raises_memory_error_and_goes_on(device):
    pool = PinnedPool(CudaLikeDevice(pinned_capacity=4096))
    address = pool.allocate(1024)
    with pytest.raises(MemoryError, match="8192 bytes were requested, 1024 are in use"):
        pool.allocate(5000)
    pool.free(address)
    assert pool.allocate(1024) == address


@pytest.mark.parametrize("size", [1 << 60, 1 << 80])
def test_an_absurd_size_is_refused_unseen(device, pool, size):
    with pytest.raises(MemoryError, match="more than any machine has"):
        pool.allocate(size)
    assert not device.pinned


def test_bad_requests_are_refused(pool):
    with pytest.raises(SizeError):
        pool.allocate(-1)
    with pytest.raises(TypeError):
        pool.allocate("much")
    with pytest.raises(AddressError, match="0x1234"):
        pool.free(0x1234)
    address = pool.allocate(100)
    pool.free(address)
    with pytest.raises(AddressError):
        pool.free(address)


class Failing(CudaLikeDevice):
    """Cannot record an event on one of its streams."""

    def event_record(self, event, stream):
        if stream == 2:
            raise RuntimeError("broken")
        super().event_record(event, stream)


def test_a_free_whose_event_is_refused_leaves_the_block_lent():
    pool = PinnedPool(Failing())
    address = pool.allocate(100)
    with pytest.raises(allotment.DeviceError):
        pool.free(address, [2])
    pool.free(address)


def test_a_free_that_is_refused_keeps_its_events():
    device = Failing()
    pool = PinnedPool(device)
    address = pool.allocate(100)
    for _ in range(5):
        with pytest.raises(allotment.DeviceError):
            pool.free(address, [1, 2])
    assert len(device._events) <= 2


def test_nothing_costs_nothing(device, pool):
    assert pool.allocate(0) == 0
    pool.free(0)
    assert not device.pinned


def test_a_device_without_pinned_memory_is_refused():
    with pytest.raises(UnsupportedError, match="does not support pinned memory"):
        PinnedPool(allotment.SimulatedDevice(1 << 30))


def test_a_pool_that_ends_gives_everything_back(device, stream):
    pool = PinnedPool(device)
    pool.free(pool.allocate(100))
    device.hold(stream)
    pool.free(pool.allocate(100), [stream])
    del pool
    gc.collect()
    assert not device.pinned


@pytest.mark.threads
def test_threads_never_share_a_block():
    pool = PinnedPool(allotment.Allocator("host"))

    def work(number):
        for _ in range(200):
            mine = [pool.allocate(1000) for _ in range(4)]
            assert len(set(mine)) == 4
            for address in mine:
                pool.free(address, [0])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert pool.stats()["lent_blocks"] == 0
    assert pool.stats()["misses"] + pool.stats()["hits"] == 4 * 200 * 4


def test_memory_of_a_destroyed_stream_is_freed_once_the_device_is_idle(device, pool, stream):
    address = pool.allocate(1000)
    work = device.hold(stream)
    device.stream_destroy(stream)
    pool.free(address, [stream])
    assert work.is_done
    assert pool.allocate(1000) == address
