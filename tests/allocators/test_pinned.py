"""Cached pinned memory: it is reused only when no copy can still touch it.

Tests are for both modes unless they say otherwise.
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import allotment
from allotment.errors import AddressError, RequestError, SettingsError, SizeError, UnsupportedError
from helpers.cuda_like_device import CudaLikeDevice

MIB = 1 << 20


class CountingDevice(CudaLikeDevice):
    """Counts the events recorded and queried; can pin existing memory."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.recorded = self.queried = 0
        self.registered = {}

    def event_record(self, event, stream):
        self.recorded += 1
        super().event_record(event, stream)

    def event_query(self, event):
        self.queried += 1
        return super().event_query(event)

    def register_host(self, address, size):
        self.registered[address] = size

    def unregister_host(self, address):
        del self.registered[address]


@pytest.fixture
def device():
    return CountingDevice()


@pytest.fixture
def stream(device):
    return device.stream_create()


@contextmanager
def made(device, **options):
    allocator = allotment.PinnedAllocator(device, **options)
    yield allocator
    allocator.inspection.check_invariants()


@pytest.fixture(params=["torch", "tight"])
def pinned(device, request):
    with made(device, mode=request.param) as allocator:
        yield allocator


@pytest.fixture
def torch_like(device):
    with made(device) as allocator:
        yield allocator


# --- both modes ---


def test_freed_memory_serves_the_next_request(device, pinned):
    address = pinned.malloc(3000)
    pinned.free(address)
    assert pinned.malloc(3000) == address
    assert len(device.pinned) == 1


def test_a_free_without_a_stream_records_no_event(device, pinned):
    for _ in range(10):
        pinned.free(pinned.malloc(1000))
    assert (device.recorded, device.queried) == (0, 0)


@pytest.mark.parametrize("default", [False, True])
def test_memory_waits_for_the_copies_on_its_streams(device, pinned, stream, default):
    stream = 0 if default else stream
    address = pinned.malloc(1000)
    copy = device.hold(stream)
    pinned.free(address, [stream])
    other = pinned.malloc(1000)
    assert other != address
    copy.release()
    assert pinned.malloc(1000) == address


def test_recorded_streams_are_waited_for_too(device, pinned, stream):
    address = pinned.malloc(1000)
    pinned.record_stream(address, stream)
    copy = device.hold(stream)
    pinned.free(address)
    assert pinned.malloc(1000) != address
    copy.release()
    assert pinned.malloc(1000) == address


def test_the_per_thread_default_stream_is_recorded_by_the_thread_that_frees(device, pinned):
    address = pinned.malloc(1000)
    copy = device.hold(2)
    pinned.free(address, [2])
    assert device.recorded == 1
    assert pinned.malloc(1000) != address
    copy.release()
    assert pinned.malloc(1000) == address


def test_empty_cache_frees_what_nothing_can_touch(device, pinned, stream):
    kept, waiting, lent = (pinned.malloc(30 * MIB) for _ in range(3))
    copy = device.hold(stream)
    pinned.free(kept)
    pinned.free(waiting, [stream])
    if pinned.mode == "torch":
        pinned.empty_cache()
        assert set(device.pinned) == {waiting, lent}
    copy.release()
    pinned.empty_cache()
    assert set(device.pinned) == {lent}


@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_buffers_and_arrays_can_be_read_here(mode):
    pinned = allotment.PinnedAllocator("host", mode=mode)
    array = pinned.zeros((100, 10), "float32")
    array += 1
    buffer = pinned.empty(100)
    assert len(memoryview(buffer)) == 100
    assert pinned.stats()["active_requests.current"] == 2
    assert array.sum() == 1000
    del array, buffer
    gc.collect()
    assert pinned.stats()["active_requests.current"] == 0


def test_statistics_have_the_names_of_the_original(pinned):
    pinned.free(pinned.malloc(3 * MIB))
    stats = pinned.stats()
    for metric in ("allocations", "allocated_bytes", "active_requests", "active_bytes"):
        assert {f"{metric}.{kind}" for kind in ("current", "peak", "allocated", "freed")} <= stats.keys()
    for metric in ("host_alloc_time", "host_free_time"):
        assert {f"{metric}.{kind}" for kind in ("total", "max", "min", "count", "avg")} <= stats.keys()
    assert stats["num_host_alloc"] == stats["allocations.allocated"] == stats["host_alloc_time.count"] == 1
    assert stats["active_bytes.peak"] >= 3 * MIB
    pinned.reset_peak_stats()
    pinned.inspection.reset_accumulated_stats()
    assert pinned.stats()["active_bytes.peak"] == pinned.stats()["allocations.allocated"] == 0
    assert "active_requests.current" in pinned.inspection.summary()


@pytest.mark.parametrize("size", [1 << 60, 1 << 80])
def test_a_size_that_no_machine_has_is_refused_unseen(device, pinned, size):
    with pytest.raises(MemoryError, match="more than any machine has"):
        pinned.malloc(size)
    assert not device.pinned


def test_bad_requests_are_refused(pinned):
    with pytest.raises(SizeError):
        pinned.malloc(-1)
    with pytest.raises(SizeError):
        pinned.malloc("much")
    with pytest.raises(TypeError):
        pinned.malloc(1.5)
    with pytest.raises(AddressError, match="0x1234"):
        pinned.free(0x1234)
    with pytest.raises(AddressError):
        pinned.record_stream(0x1234, 0)
    address = pinned.malloc(100)
    pinned.free(address)
    with pytest.raises(AddressError):
        pinned.free(address)


def test_nothing_costs_nothing(device, pinned):
    assert pinned.malloc(0) == 0
    pinned.free(0)
    assert not device.pinned


@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_a_limit_is_kept(device, mode):
    with made(device, mode=mode, limit="64MiB") as pinned:
        address = pinned.malloc(40 * MIB if mode == "tight" else 32 * MIB)
        with pytest.raises(MemoryError):
            pinned.malloc(60 * MIB)
        pinned.free(address)
        assert pinned.malloc(60 * MIB)
        assert sum(device.pinned.values()) <= 64 * MIB
        assert pinned.limit == 64 * MIB


@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_a_deleted_one_releases_everything(device, stream, mode):
    pinned = allotment.PinnedAllocator(device, mode=mode)
    pinned.free(pinned.malloc(100))
    copy = device.hold(stream)
    pinned.free(pinned.malloc(100), [stream])
    copy.release()
    del pinned
    gc.collect()
    assert not device.pinned


def test_closed_it_serves_no_more(device, pinned):
    pinned.free(pinned.malloc(100))
    pinned.close()
    assert not device.pinned
    with pytest.raises(RequestError, match="is closed"):
        pinned.malloc(100)


@pytest.mark.threads
@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_threads_never_share_a_block(mode):
    pinned = allotment.PinnedAllocator("host", mode=mode)

    def work(number):
        for _ in range(100):
            mine = [pinned.malloc(1000) for _ in range(4)]
            assert len(set(mine)) == 4
            for address in mine:
                pinned.free(address, [0])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    pinned.inspection.check_invariants()
    pinned.empty_cache()


def test_memory_of_a_destroyed_stream_is_freed_once_the_device_is_idle(device, torch_like, stream):
    address = torch_like.malloc(1000)
    work = device.hold(stream)
    device.stream_destroy(stream)
    torch_like.free(address, [stream])
    assert torch_like.malloc(1000) == address
    assert work.is_done


@given(steps=st.lists(st.tuples(st.sampled_from(["malloc", "free", "free on", "hold", "release"]), st.integers(0, 9))))
@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_no_block_is_allocated_while_a_stream_may_use_it(mode, steps):
    device = CountingDevice()
    streams = [device.stream_create() for _ in range(2)]
    pinned = allotment.PinnedAllocator(device, mode=mode)
    lent, holds = {}, []
    in_use: dict[int, list] = {}  # address -> holds that its free had to wait for
    for step, number in steps:
        if step == "malloc":
            address = pinned.malloc(1000 * (number + 1))
            assert address not in lent
            assert all(hold.is_done for hold in in_use.pop(address, ()))
            lent[address] = number
        elif step.startswith("free") and lent:
            address = sorted(lent)[number % len(lent)]
            del lent[address]
            stream = streams[number % 2]
            named = [stream] if step == "free on" else []
            in_use[address] = [hold for held, hold in holds if held in named]
            pinned.free(address, named)
        elif step == "hold":
            holds.append((streams[number % 2], device.hold(streams[number % 2])))
        elif step == "release" and holds:
            holds[number % len(holds)][1].release()
        pinned.inspection.check_invariants()
    for _, hold in holds:
        hold.release()


# --- PyTorch's decisions ---


def test_requests_are_rounded_to_powers_of_two(device, torch_like):
    for size in (1, 3, 4096, 4097):
        torch_like.malloc(size)
    assert sorted(device.pinned.values()) == [1, 4, 4096, 8192]


def test_the_block_freed_last_is_taken_first(torch_like):
    first, second = torch_like.malloc(1000), torch_like.malloc(1000)
    torch_like.free(first)
    torch_like.free(second)
    assert [torch_like.malloc(1000), torch_like.malloc(1000)] == [second, first]


def test_one_event_serves_several_frees_in_a_row(device, torch_like, stream):
    addresses = [torch_like.malloc(1000) for _ in range(8)]
    for address in addresses:
        torch_like.free(address, [stream])
    torch_like.malloc(1000)
    assert device.recorded == 1


def test_an_event_that_is_not_reached_holds_up_all_later_ones(device, torch_like, stream):
    other = device.stream_create()
    held, done = torch_like.malloc(1000), torch_like.malloc(1000)
    copy = device.hold(stream)
    torch_like.free(held, [stream])
    torch_like.malloc(1)
    torch_like.free(done, [other])
    assert torch_like.malloc(1000) not in (held, done)
    copy.release()
    assert torch_like.malloc(1000) in (held, done)


def test_a_stream_in_a_capture_is_not_waited_for(device, torch_like, stream):
    address = torch_like.malloc(1000)
    device.capture_begin(stream)
    torch_like.free(address, [stream])
    assert torch_like.malloc(1000) == address
    device.capture_end(stream)


def test_a_capture_that_began_after_the_free_is_waited_out(device, torch_like, stream):
    address = torch_like.malloc(1000)
    torch_like.free(address, [stream])
    device.capture_begin(stream)
    assert torch_like.malloc(1000) != address
    device.capture_end(stream)
    assert torch_like.malloc(1000) == address


def test_a_request_inside_a_capture_is_never_reused_if_a_stream_used_it(device, torch_like):
    allocator = allotment.Allocator(device)
    stream = allotment.Stream(allocator)
    device.capture_begin(stream.handle)
    with stream:
        used, plain = torch_like.malloc(1000), torch_like.malloc(1000)
    device.capture_end(stream.handle)
    torch_like.free(used, [stream])
    torch_like.free(plain)
    assert [torch_like.malloc(1000), torch_like.malloc(1000)][0] == plain
    assert used in device.pinned


def test_when_memory_is_short_the_cache_is_released_and_waited_for():
    device = CountingDevice(pinned_capacity=4096)
    stream = device.stream_create()
    with made(device) as pinned:
        first, second = pinned.malloc(2048), pinned.malloc(2048)
        device.hold(stream)
        pinned.free(first, [stream])
        pinned.free(second)
        assert pinned.malloc(4096)
        assert set(device.pinned.values()) == {4096}


def test_without_memory_it_raises_memory_error_and_goes_on():
    with made(CountingDevice(pinned_capacity=4096)) as pinned:
        address = pinned.malloc(1024)
        with pytest.raises(MemoryError, match="8192 bytes were requested, 1024 are in use"):
            pinned.malloc(5000)
        pinned.free(address)
        assert pinned.malloc(1024) == address


class Failing(CountingDevice):
    """Cannot record an event while it is broken."""

    broken = True

    def event_record(self, event, stream):
        if self.broken:
            raise RuntimeError("broken")
        super().event_record(event, stream)


def test_an_event_that_is_refused_leaves_the_block_out_of_reach_until_there_is_one():
    device = Failing()
    with made(device) as pinned:
        address = pinned.malloc(100)
        pinned.free(address, [0])
        with pytest.raises(allotment.DeviceError):
            pinned.malloc(100)
        device.broken = False
        assert pinned.malloc(100) == address
        device.broken = True
        with pytest.raises(allotment.DeviceError):
            pinned.free(address, [2])  # recorded at once
        pinned.free(address)


def test_a_device_without_pinned_memory_is_refused():
    with pytest.raises(UnsupportedError, match="does not support pinned memory"):
        allotment.PinnedAllocator(allotment.SimulatedDevice(1 << 30))


# --- settings ---


def test_large_requests_are_exact_above_a_bound(device):
    with made(device, settings="pinned_max_round_threshold_mb:1,compat:newest") as pinned:
        pinned.malloc(3 * MIB + 5)
        pinned.malloc(MIB - 5)
        assert sorted(device.pinned.values()) == [MIB, 3 * MIB + 5]


def test_blocks_above_the_cached_size_are_released_at_their_free(device):
    with made(device, settings="pinned_max_cached_size_mb:1,compat:newest") as pinned:
        pinned.free(pinned.malloc(2 * MIB))
        assert not device.pinned
        pinned.free(pinned.malloc(MIB))
        assert len(device.pinned) == 1


def test_a_reserve_is_allocated_once_and_used_in_pages(device):
    with made(device, settings="pinned_reserve_segment_size_mb:1") as pinned:
        first, second = pinned.malloc(100), pinned.malloc(5000)
        assert list(device.pinned.values()) == [MIB]
        assert second == first + 4096
        pinned.free(first)
        pinned.empty_cache()
        assert list(device.pinned.values()) == [MIB]
        assert pinned.malloc(100) == first
        pinned.malloc(2 * MIB)
        assert sorted(device.pinned.values()) == [MIB, 2 * MIB]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_ordinary_pages_are_registered_in_one_piece(device, mode, threads):
    settings = f"pinned_use_cuda_host_register:True,pinned_num_register_threads:{threads}"
    with made(device, mode=mode, settings=settings) as pinned:
        address = pinned.malloc(32 * MIB)
        assert not device.pinned
        assert device.registered == {address: 32 * MIB}
        array = np.frombuffer(pinned.empty(100), np.uint8)
        array[:] = 7
        del array
        pinned.free(address)
        pinned.empty_cache()
        assert not device.registered


def test_a_registration_that_fails_leaves_nothing(device):
    def refuse(address, size):
        raise MemoryError("no more")

    device.register_host = refuse
    with made(device, settings="pinned_use_cuda_host_register:True") as pinned:
        with pytest.raises(MemoryError):
            pinned.malloc(100)
        assert pinned.stats()["allocations.current"] == 0


@pytest.mark.threads
def test_a_thread_in_the_background_sees_what_is_done(device, stream):
    with made(device, settings="pinned_use_background_threads:True") as pinned:
        address = pinned.malloc(1000)
        copy = device.hold(stream)
        pinned.free(address, [stream])
        copy.release()
        while pinned.stats()["active_requests.current"]:
            pass
        queried = device.queried
        assert pinned.malloc(1000) == address
        assert device.queried == queried
        pinned.close()


def test_a_device_that_refuses_to_free_may_be_believed(device):
    def refuse(address):
        raise RuntimeError("gone")

    for text, fails in (("pinned_free_catch_all:True,compat:newest", False), ("", True)):
        with made(device, settings=text) as pinned:
            pinned.free(pinned.malloc(100))
            free, device.pinned_free = device.pinned_free, refuse
            if fails:
                with pytest.raises(allotment.DeviceError):
                    pinned.empty_cache()
            else:
                pinned.empty_cache()
                assert pinned.stats()["allocations.current"] == 0
            device.pinned_free = free


@pytest.mark.parametrize(
    "key", ["pinned_use_background_threads:True", "pinned_max_round_threshold_mb:1", "pinned_max_cached_size_mb:1"]
)
def test_settings_without_a_meaning_in_the_tight_mode_are_refused_by_name(device, key):
    with pytest.raises(SettingsError, match=f"{key.split(':')[0].removesuffix('_mb')} has no meaning"):
        allotment.PinnedAllocator(device, mode="tight", settings=f"{key},compat:newest")


def test_settings_that_a_device_cannot_do_are_refused_by_name():
    with pytest.raises(SettingsError, match="pinned_use_cuda_host_register is not supported"):
        allotment.PinnedAllocator(CudaLikeDevice(), settings="pinned_use_cuda_host_register:True")
    with pytest.raises(SettingsError, match="numa_node is not supported"):
        allotment.PinnedAllocator(CudaLikeDevice(), numa_node=0)


def test_bad_arguments_are_refused(device):
    with pytest.raises(RequestError, match="mode must be"):
        allotment.PinnedAllocator(device, mode="loose")
    with pytest.raises(RequestError, match="no NUMA node 4096"):
        allotment.PinnedAllocator(device, numa_node=4096)
    with pytest.raises(SettingsError, match="chosen when its allocator is made"):
        allotment.PinnedAllocator(device).settings = "pinned_max_cached_size_mb:1,compat:newest"


# --- the tight mode ---


def test_the_tight_mode_wastes_no_half():
    device = CountingDevice(pinned_capacity=1 << 40)
    with made(device, mode="tight") as tight:
        tight.malloc(4100 * MIB)
        assert sum(device.pinned.values()) == 4100 * MIB


def test_the_tight_mode_cuts_and_joins(device):
    with made(device, mode="tight") as tight:
        whole = tight.malloc(64 * MIB)
        tight.free(whole)
        parts = [tight.malloc(30 * MIB), tight.malloc(30 * MIB)]
        assert parts[0] == whole and len(device.pinned) == 1
        for part in parts:
            tight.free(part)
        assert tight.malloc(64 * MIB) == whole


# --- on host memory ---


@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_memory_of_the_host_is_locked_or_a_warning_is_issued(mode, recwarn):
    pinned = allotment.PinnedAllocator("host", mode=mode)
    array = pinned.full(1000, 3)
    assert array.sum() == 3000
    said = [str(warning.message) for warning in recwarn if "lock pinned memory" in str(warning.message)]
    assert len(said) == (1 if pinned.device.unlocked else 0)
    del array


def test_memory_of_a_node_is_bound_to_it():
    try:
        pinned = allotment.PinnedAllocator("host", numa_node=0)
        array = pinned.full(1 << 20, 1, "uint8")
    except UnsupportedError as error:
        pytest.skip(f"this system cannot: {error}")
    assert array.sum() == 1 << 20
    del array
    pinned.empty_cache()
    assert pinned.stats()["allocations.current"] == 0
