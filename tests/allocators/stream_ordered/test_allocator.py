"""The allocator that leaves caching to the device (`backend:cudaMallocAsync`), on a simulated device."""

from __future__ import annotations

import gc
import warnings
from contextlib import contextmanager

import pytest

import allotment
from allotment import (
    AddressError,
    Allocator,
    AsyncAllocator,
    CaptureError,
    DeviceError,
    OutOfMemoryError,
    PoolError,
    RequestError,
    SettingsError,
    SimulatedDevice,
    SizeError,
    Stream,
    StreamError,
    UnsupportedError,
    make_allocator,
)
from allotment._allocators.caching.pool import next_graph_pool_id
from allotment._allocators.current import allocator_on
from allotment._core.contract.probe import Probe
from allotment._texts import pytorch_out_of_memory
from helpers.child import output_of
from helpers.queue_device import QueueDevice
from helpers.relay_device import OrderedRelay
from helpers.warned import only_warning

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CAPACITY = 256 * MIB
SETTINGS = "backend:cudaMallocAsync"
MAIN, SIDE, OTHER = 5, 7, 9


@pytest.fixture
def device():
    return SimulatedDevice(CAPACITY)


@pytest.fixture
def alloc(device):
    made = make_allocator(device, settings=SETTINGS)
    yield made
    made.inspection.check_invariants()


def used(alloc):
    return alloc.stats()["allocated_bytes.all.current"]


@contextmanager
def calls(device):
    """Return how often each operation of the device was called inside the block, for those that were."""
    before = device.calls
    counted: dict[str, int] = {}
    yield counted
    after = device.calls
    counted.update({name: after[name] - before[name] for name in after if after[name] != before[name]})


# Which allocator.


def test_the_setting_chooses_the_class(device):
    assert type(make_allocator(device, settings=SETTINGS)) is AsyncAllocator
    assert type(make_allocator(device, settings=allotment.Settings.parse(SETTINGS))) is AsyncAllocator
    assert type(make_allocator(device=device, settings=SETTINGS)) is AsyncAllocator
    assert type(make_allocator(device, settings="backend:native")) is Allocator
    assert type(make_allocator(device)) is Allocator


def test_the_environment_chooses_the_class(monkeypatch):
    monkeypatch.setenv("ALLOTMENT_CONF", SETTINGS)
    assert type(make_allocator("sim:1GiB")) is AsyncAllocator
    assert type(allotment.current("sim:1GiB#77")) is AsyncAllocator
    assert type(make_allocator("sim:1GiB", settings="")) is Allocator


@pytest.mark.parametrize(("kind", "other"), [(Allocator, "cudaMallocAsync"), (AsyncAllocator, "native")])
def test_a_class_that_the_settings_do_not_ask_for_names_the_function_that_chooses(device, kind, other):
    with pytest.raises(SettingsError, match=r"allotment\.make_allocator") as caught:
        kind(device, settings=allotment.Settings(backend=other))
    assert (caught.value.key, caught.value.value) == ("backend", other)


def test_a_class_that_the_environment_does_not_ask_for_is_not_made(monkeypatch):
    monkeypatch.setenv("ALLOTMENT_CONF", SETTINGS)
    with pytest.raises(SettingsError, match=r"allotment\.make_allocator"):
        Allocator("sim:1GiB")
    assert type(Allocator("sim:1GiB", settings="")) is Allocator


@pytest.mark.parametrize("make", [Allocator, AsyncAllocator, make_allocator])
def test_arguments_are_checked(device, make):
    with pytest.raises(TypeError):
        make(device, setting=SETTINGS)
    with pytest.raises(TypeError):
        make(device, SETTINGS)
    with pytest.raises(SettingsError):
        make(device, settings="backend:mine")


def test_the_shared_allocator_of_a_device_object_may_be_one(device):
    alloc = make_allocator(device, settings=SETTINGS)
    assert allocator_on(device) is alloc


def test_it_says_what_it_is(alloc):
    figures = "0 bytes live, reserved by the device's own pool, no limit"
    assert repr(alloc) == f"<AsyncAllocator on {alloc.device.name}: {figures}>"
    assert alloc.settings.backend == "cudaMallocAsync"
    assert alloc.pools.caching
    assert AsyncAllocator(alloc.device).settings.backend == "cudaMallocAsync"


def test_a_device_without_a_pool_of_its_own_is_refused():
    with pytest.raises(UnsupportedError, match=r"host has no stream-ordered pool of its own.*use backend:native"):
        make_allocator("host", settings=SETTINGS)


# Requests.


def test_nothing_is_rounded(alloc):
    address = alloc.malloc(1000)
    assert alloc.inspection.base_allocation(address) == (address, 1000)


def test_size_zero_is_no_request(alloc):
    with calls(alloc.device) as counted:
        assert alloc.malloc(0) == 0
        alloc.free(0)
        alloc.record_stream(0, SIDE)
    assert counted == {}


def test_a_request_is_one_call_to_the_device(alloc):
    with calls(alloc.device) as counted:
        alloc.free(alloc.malloc(MIB, MAIN))
    assert counted == {"ordered_allocate": 1, "ordered_free": 1}


def test_more_than_any_device_has_is_refused_unseen(alloc):
    with calls(alloc.device) as counted, pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(1 << 60)
    assert caught.value.facts.too_large
    assert counted == {}


@pytest.mark.parametrize(
    ("size", "stream", "error"),
    [
        (-1, 0, SizeError),
        ("5", 0, SizeError),  # a text is a size with a unit
        (5.0, 0, TypeError),
        (5, -1, StreamError),
        (5, 2**64 - 1, StreamError),
        (5, 2**64, StreamError),
        (5, "main", TypeError),
    ],
)
def test_anything_but_a_request_is_refused(alloc, size, stream, error):
    with calls(alloc.device) as counted, pytest.raises(error):
        alloc.malloc(size, stream)
    assert counted == {}


def test_a_stream_of_another_device_is_refused(alloc):
    with pytest.raises(StreamError, match="belongs to"):
        alloc.malloc(5, Stream(SimulatedDevice(MIB)))


def test_a_destroyed_stream_gets_no_memory(alloc):
    stream = alloc.device.create_stream()
    alloc.device.destroy_stream(stream)
    with pytest.raises(StreamError):
        alloc.malloc(5, stream)
    assert alloc.limit is None


def test_a_buffer_gives_itself_back(alloc):
    buffer = alloc.empty(MIB, MAIN)
    assert (buffer.size, buffer.stream, used(alloc)) == (MIB, MAIN, MIB)
    buffer.record_stream(SIDE)
    del buffer
    assert used(alloc) == 0


# Out of memory.


def test_a_full_device_is_reported_in_figures(alloc):
    alloc.malloc(200 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(100 * MIB, MAIN)
    facts = caught.value.facts
    assert facts.device_pool
    assert (facts.requested, facts.stream) == (100 * MIB, MAIN)
    assert (facts.allocated, facts.reserved) == (200 * MIB, 200 * MIB)
    assert (facts.device_free, facts.device_total, facts.limit) == (56 * MIB, CAPACITY, None)
    assert "100.00 MiB requested on stream 5 of the device's own pool" in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    alloc.malloc(56 * MIB)


def test_the_limit_counts_requested_bytes(alloc):
    alloc.limit = "1MiB"
    first = alloc.malloc(1000)
    alloc.malloc(MIB - 1000, SIDE)
    with calls(alloc.device) as counted, pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(1)
    assert "ordered_allocate" not in counted
    assert (caught.value.facts.limit, caught.value.facts.allocated) == (MIB, MIB)
    assert "raise the limit" in str(caught.value)
    alloc.free(first)
    alloc.malloc(1000)


def test_a_limit_below_what_is_in_use_refuses_everything(alloc):
    address = alloc.malloc(MIB)
    alloc.limit = KIB
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(1)
    alloc.free(address)
    alloc.malloc(KIB)


def test_a_fraction_is_a_limit(device):
    alloc = make_allocator(device, settings=SETTINGS + ",per_process_memory_fraction:0.25")
    assert (alloc.limit, alloc.limits.memory_fraction) == (64 * MIB, 0.25)
    alloc.limits.memory_fraction = 1.0
    assert (alloc.limit, alloc.limits.memory_fraction) == (None, 1.0)
    alloc.limits.memory_fraction = 0.5
    assert alloc.limit == 128 * MIB
    with pytest.raises(RequestError):
        alloc.limits.memory_fraction = 1.5
    assert make_allocator(device, settings=SETTINGS, limit="3GiB").limit == 3 * GIB


def test_pytorchs_words_for_it(alloc):
    alloc.limit = MIB
    alloc.malloc(600 * KIB)
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(512 * KIB)
    assert pytorch_out_of_memory(caught.value.facts) == (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 600.00 KiB\n"
        "Requested               : 512.00 KiB\n"
        "Device limit            : 256.00 MiB\n"
        "Free (according to CUDA): 255.41 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 1024.00 KiB"
    )


# Frees.


@pytest.mark.parametrize("address", [1, 1 << 62, 2**64 - 1])
def test_an_unknown_address_is_refused(alloc, address):
    with pytest.raises(AddressError, match="ptr not found in ptr_info") as caught:
        alloc.free(address)
    assert caught.value.address == address
    with pytest.raises(AddressError):
        alloc.record_stream(address, SIDE)
    with pytest.raises(AddressError):
        alloc.inspection.base_allocation(address)


def test_a_number_that_is_not_an_address_is_refused(alloc):
    for wrong in (-1, 2**64):
        with pytest.raises(AddressError):
            alloc.free(wrong)


def test_a_block_cannot_be_freed_twice(alloc):
    address = alloc.malloc(MIB)
    alloc.free(address)
    with pytest.raises(AddressError):
        alloc.free(address)


def test_a_block_returns_in_the_order_of_its_stream(alloc):
    address = alloc.malloc(MIB, MAIN)
    alloc.device.launch(MAIN)
    alloc.free(address)
    assert alloc.malloc(MIB, SIDE) != address
    assert alloc.malloc(MIB, MAIN) == address


@pytest.mark.parametrize("busy", [MAIN, SIDE, OTHER])
def test_a_block_waits_for_every_stream_that_uses_it(alloc, busy):
    address = alloc.malloc(MIB, MAIN)
    for stream in (SIDE, OTHER, SIDE):
        alloc.record_stream(address, stream)
    alloc.device.launch(busy)
    with calls(alloc.device) as counted:
        alloc.free(address)
    assert counted == {
        "event_create": 3, "event_record": 3, "stream_wait": 3, "event_destroy": 3, "ordered_free": 1,
    }  # fmt: skip
    assert [alloc.malloc(MIB, stream) == address for stream in (MAIN, SIDE, OTHER)] == [False] * 3
    alloc.device.finish(busy)
    assert alloc.malloc(MIB, MAIN) == address


def test_a_use_that_is_not_recorded_is_not_waited_for(alloc):
    address = alloc.malloc(MIB, MAIN)
    alloc.device.launch(SIDE)
    alloc.free(address)
    assert alloc.malloc(MIB, MAIN) == address


def test_work_given_after_a_free_is_not_waited_for(alloc):
    address = alloc.malloc(MIB, MAIN)
    alloc.record_stream(address, SIDE)
    alloc.free(address)
    alloc.device.launch(SIDE)
    assert alloc.malloc(MIB, MAIN) == address


def test_recording_a_blocks_own_stream_warns_and_does_nothing(alloc):
    address = alloc.malloc(MIB, MAIN)
    with pytest.warns(UserWarning, match="unnecessary and has no effect") as caught:
        alloc.record_stream(address, MAIN)
    assert only_warning(caught).filename == __file__
    with calls(alloc.device) as counted:
        alloc.free(address)
    assert counted == {"ordered_free": 1}


def test_a_block_outlives_its_stream(alloc):
    stream = alloc.device.create_stream()
    address = alloc.malloc(MIB, stream)
    alloc.device.destroy_stream(stream)
    alloc.free(address)
    assert used(alloc) == 0


def test_a_block_outlives_a_stream_that_uses_it(alloc):
    stream = alloc.device.create_stream()
    address = alloc.malloc(MIB, MAIN)
    alloc.record_stream(address, stream)
    alloc.device.destroy_stream(stream)
    alloc.device.launch(MAIN)
    with calls(alloc.device) as counted:
        alloc.free(address)
    assert "device_synchronize" not in counted
    alloc.device.finish(MAIN)
    assert used(alloc) == 0


@pytest.mark.parametrize("operation", ["event_create", "event_record", "stream_wait", "ordered_free"])
def test_a_free_that_the_device_refuses_has_not_happened(alloc, operation):
    address = alloc.malloc(MIB, MAIN)
    alloc.record_stream(address, SIDE)
    alloc.device.refuse(operation, out_of_memory=False)
    with pytest.raises(DeviceError, match=operation):
        alloc.free(address)
    assert alloc.inspection.base_allocation(address) == (address, MIB)
    alloc.inspection.check_invariants()
    alloc.free(address)
    assert used(alloc) == 0


def test_a_deleted_allocator_releases_everything(device):
    alloc = make_allocator(device, settings=SETTINGS)
    for stream in (0, MAIN, SIDE):
        for size in range(1, 200):
            alloc.record_stream(alloc.malloc(size * KIB, stream), OTHER)
    del alloc
    gc.collect()
    assert Probe(device).ordered_usage()[0] == 0
    Probe(device).ordered_trim(0)
    assert device.used == 0


def test_an_allocator_may_go_before_its_buffers(device, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    alloc = make_allocator(device, settings=SETTINGS)
    ring = [alloc, *(alloc.empty(KIB) for _ in range(50))]
    ring.append(ring)
    del alloc, ring
    gc.collect()
    assert reported == []
    assert Probe(device).ordered_usage()[0] == 0


def test_a_finalizer_gets_no_memory_from_an_allocator_that_is_gone(device):
    class Last:
        def __del__(self):
            for call in (lambda: self.alloc.malloc(1), self.alloc.empty_cache, self.alloc.inspection.cache_info):
                try:
                    call()
                except RequestError as error:
                    said.append(str(error))

    said: list[str] = []
    last = Last()
    last.alloc, last.ring = make_allocator(device, settings=SETTINGS), last
    del last
    gc.collect()
    assert said in ([], ["this allocator is gone: it has given everything back"] * 3), "whichever goes first"


# The pool as a whole.


def test_emptying_the_cache_waits_and_trims(alloc):
    address = alloc.malloc(MIB, MAIN)
    kept = alloc.malloc(KIB)
    alloc.device.launch(MAIN)
    alloc.free(address)
    with calls(alloc.device) as counted:
        alloc.empty_cache()
    assert counted == {"device_synchronize": 1, "ordered_trim": 1}
    assert alloc.device.used == KIB
    alloc.free(kept)


def test_a_graphs_memory_is_not_in_the_cache(alloc):
    with calls(alloc.device) as counted:
        alloc.empty_cache((3, 0))
        alloc.pools.release((3, 0))
    assert counted == {}
    with pytest.raises(PoolError):
        alloc.empty_cache("all")


def test_figures_are_the_devices_and_all_others_are_zero(alloc):
    address = alloc.malloc(3 * MIB)
    alloc.free(alloc.malloc(MIB))
    stats = alloc.stats()
    assert stats.keys() == Allocator(SimulatedDevice(MIB), settings="compat:2.11").stats().keys()
    assert {key: value for key, value in stats.items() if value} == {
        "allocated_bytes.all.current": 3 * MIB,
        "allocated_bytes.all.peak": 4 * MIB,
        "active_bytes.all.current": 3 * MIB,
        "active_bytes.all.peak": 4 * MIB,
        "reserved_bytes.all.current": 4 * MIB,
        "reserved_bytes.all.peak": 4 * MIB,
    }
    assert alloc.inspection.nested_stats()["reserved_bytes"]["all"]["peak"] == 4 * MIB
    alloc.empty_cache()
    alloc.reset_peak_stats()
    assert alloc.stats()["allocated_bytes.all.peak"] == alloc.stats()["reserved_bytes.all.peak"] == 3 * MIB
    assert "3072 KiB" in alloc.inspection.summary()
    alloc.free(address)


def test_accumulated_figures_cannot_be_reset(alloc):
    with pytest.warns(UserWarning, match="reset_accumulated_stats has no effect"):
        alloc.inspection.reset_accumulated_stats()


def test_the_largest_block_is_found_by_halving(alloc):
    assert alloc.inspection.cache_info() == CAPACITY
    alloc.empty_cache()  # the device does not report memory of the pool as free
    alloc.device.refuse("ordered_allocate", times=2)
    with calls(alloc.device) as counted:
        assert alloc.inspection.cache_info() == CAPACITY // 4
    assert counted == {"memory_info": 1, "ordered_allocate": 3, "ordered_free": 1}
    assert used(alloc) == 0


def test_the_largest_block_is_within_the_limit(alloc):
    alloc.limit = 10 * MIB
    address = alloc.malloc(4 * MIB)
    assert alloc.inspection.cache_info() == 6 * MIB
    assert alloc.inspection.cache_info(7 * MIB) == 7 * MIB
    alloc.limit = 3 * MIB
    with calls(alloc.device) as counted:
        assert alloc.inspection.cache_info() == 0
    assert counted == {"memory_info": 1}
    alloc.free(address)


def test_other_devices_get_access_to_the_pool(alloc):
    other = SimulatedDevice("1GiB", 1)
    with calls(alloc.device) as counted:
        alloc.sharing.enable_peer_access(other.index)
    assert counted == {"ordered_access": 1}


def test_memory_can_be_copied(alloc):
    source, destination = alloc.empty(MIB), alloc.empty(MIB)
    with calls(alloc.device) as counted:
        alloc.copy(destination, source.address, MIB, MAIN)
    assert counted == {"copy": 1}


def test_the_devices_cache_cannot_be_switched_off(alloc):
    alloc.pools.caching = True
    with pytest.raises(UnsupportedError, match="does not support switching the cache off"):
        alloc.pools.caching = False


def test_settings_that_the_device_ignores_are_named(device):
    with pytest.warns(UserWarning, match="ignores max_split_size, expandable_segments") as caught:
        alloc = make_allocator(device, settings=SETTINGS + ",max_split_size_mb:40,expandable_segments:True")
    assert only_warning(caught).filename == __file__
    with pytest.warns(UserWarning, match="ignores garbage_collection_threshold"):
        alloc.settings = "garbage_collection_threshold:0.5,expandable_segments:False"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alloc.settings = SETTINGS
        make_allocator(device, settings=SETTINGS)
    with pytest.raises(SettingsError):
        alloc.settings = "backend:native"
    with pytest.raises(SettingsError):
        alloc._configure_leniently("pinned_use_background_threads:True,backend:native")
    assert alloc.settings.pinned_use_background_threads


# Captures.


@contextmanager
def capturing(alloc, stream=MAIN):
    """A capture on the device, announced to the allocator."""
    pool = next_graph_pool_id()
    capture = alloc.device.begin_capture(stream)
    alloc.pools.begin_allocate_to_pool(pool, capture=capture)
    yield
    alloc.pools.join_capture(stream)
    alloc.device.end_capture(stream)
    alloc.pools.end_allocate_to_pool(pool)


def test_there_is_one_capture_at_a_time_in_a_process(alloc):
    elsewhere = make_allocator("sim:1GiB", settings=SETTINGS)
    with capturing(alloc):
        for allocator in (alloc, elsewhere):
            with pytest.raises(CaptureError, match="Only one capture at a time is allowed in a process"):
                allocator.pools.begin_allocate_to_pool((99, 0))
        with pytest.raises(PoolError):
            elsewhere.pools.end_allocate_to_pool((99, 0))
        with pytest.raises(PoolError):
            alloc.pools.end_allocate_to_pool((99, 0))
    with capturing(elsewhere):
        pass
    with pytest.raises(PoolError):
        alloc.pools.end_allocate_to_pool((99, 0))


def test_several_allocators_on_a_device_serve_one_capture(alloc):
    other = make_allocator(alloc.device, settings=SETTINGS)
    before = [(each, each.malloc(MIB)) for each in (alloc, other)]
    with allotment.capture(Stream(alloc), allocator=alloc):
        for each, block in before:
            inside = each.malloc(KIB)
            assert used(each) == 2 * MIB  # the device's records, which do not contain the graph's memory
            each.free(inside)
            with pytest.warns(UserWarning, match="capture"):
                each.free(block)
        with pytest.raises(CaptureError, match="Only one capture at a time"):
            other.pools.begin_allocate_to_pool((99, 0))
        assert used(alloc) == 2 * MIB
    other.empty_cache()  # it ended first, and could not free while `alloc` still served the capture
    assert used(alloc) == 0


def test_a_deleted_allocator_ends_its_capture(alloc):
    gone = make_allocator("sim:1GiB", settings=SETTINGS)
    gone.pools.begin_allocate_to_pool((99, 0))
    del gone
    gc.collect()
    with capturing(alloc):
        pass


def test_memory_is_not_kept_apart_for_a_thread(alloc):
    with pytest.raises(UnsupportedError, match="does not support a private pool"):
        alloc.pools.begin_allocate_to_pool((0, 99), thread=1)
    with capturing(alloc):
        pass


def test_memory_of_a_capture_is_the_graphs(alloc):
    with capturing(alloc):
        inside = alloc.malloc(MIB, MAIN)
        outside = alloc.malloc(KIB, SIDE)
        assert used(alloc) == KIB
        assert alloc.inspection.base_allocation(inside) == (inside, MIB)
        alloc.free(inside)
    alloc.free(outside)
    assert used(alloc) == 0


def test_a_free_of_earlier_memory_waits_until_the_capture_is_over(alloc):
    first, second = alloc.malloc(MIB, MAIN), alloc.malloc(MIB, SIDE)
    with capturing(alloc):
        with calls(alloc.device) as counted:
            with pytest.warns(UserWarning, match="the free waits until the capture is over") as caught:
                alloc.free(first)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                alloc.free(second)
            with pytest.raises(AddressError):
                alloc.free(first)
        assert counted == {}
        assert only_warning(caught)
        alloc.inspection.check_invariants()
        assert used(alloc) == 2 * MIB
    assert used(alloc) == 0


def test_a_capture_postpones_frees_of_every_allocator(alloc):
    elsewhere = make_allocator("sim:1GiB", settings=SETTINGS)
    address = elsewhere.malloc(MIB)
    with capturing(alloc), pytest.warns(UserWarning, match="the free waits"):
        elsewhere.free(address)
    assert used(elsewhere) == MIB
    elsewhere.free(elsewhere.malloc(KIB))
    assert used(elsewhere) == 0


@pytest.mark.filterwarnings("ignore:memory that was allocated before a graph capture")
def test_a_postponed_free_that_is_refused_is_tried_again(alloc):
    address = alloc.malloc(MIB)
    with capturing(alloc):
        alloc.free(address)
        alloc.device.refuse("ordered_free", times=2, out_of_memory=False)
    assert used(alloc) == MIB
    alloc.inspection.check_invariants()
    with pytest.raises(DeviceError, match="ordered_free"):
        alloc.empty_cache()
    alloc.malloc(KIB)
    assert used(alloc) == KIB


@pytest.mark.filterwarnings("ignore:memory that was allocated before a graph capture")
def test_postponed_memory_counts_towards_the_limit(alloc):
    alloc.limit = MIB
    address = alloc.malloc(MIB)
    with capturing(alloc):
        alloc.free(address)
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(1, SIDE)
    alloc.malloc(MIB)


def test_freeing_a_graphs_memory_outside_its_capture_warns(alloc):
    with capturing(alloc):
        address = alloc.malloc(MIB, MAIN)
    with pytest.warns(UserWarning, match="which a graph allocated, is freed outside of its capture"):
        alloc.free(address)
    with pytest.raises(AddressError):
        alloc.free(address)


@pytest.mark.filterwarnings("ignore:memory that was allocated before a graph capture")
def test_memory_of_an_earlier_graph_is_not_freed_in_a_later_capture(alloc):
    with capturing(alloc):
        address = alloc.malloc(MIB, MAIN)
    with capturing(alloc), calls(alloc.device) as counted:
        alloc.free(address)
    assert counted == {}
    with pytest.raises(AddressError):
        alloc.free(address)


def test_a_graphs_memory_that_the_device_no_longer_knows_is_forgotten(alloc):
    with capturing(alloc):
        address = alloc.malloc(MIB, MAIN)
    Probe(alloc.device).ordered_free(address, MAIN)
    with pytest.warns(UserWarning, match="outside of its capture"):
        alloc.free(address)


def test_streams_that_freed_in_a_capture_are_joined_at_its_end(alloc):
    device = alloc.device
    with capturing(alloc):
        device.launch(MAIN)
        device.wait(SIDE, MAIN)
        used_on_side = alloc.malloc(MIB, MAIN)
        made_on_side = alloc.malloc(MIB, SIDE)
        device.wait(MAIN, SIDE)
        alloc.record_stream(used_on_side, SIDE)
        alloc.free(used_on_side)  # on the allocator's own stream, which no other code can join
        alloc.free(made_on_side)
    assert device.capture_of(SIDE) == device.capture_of(MAIN) == 0


def test_without_the_join_the_capture_cannot_end(alloc):
    device = alloc.device
    device.begin_capture(MAIN)
    alloc.pools.begin_allocate_to_pool((99, 0))
    address = alloc.malloc(MIB, MAIN)
    device.wait(SIDE, MAIN)
    alloc.record_stream(address, SIDE)
    alloc.free(address)
    with pytest.raises(DeviceError):
        device.end_capture(MAIN)
    alloc.pools.join_capture(MAIN)  # nothing is captured any more, so nothing can be joined
    alloc.pools.end_allocate_to_pool((99, 0))


@pytest.mark.filterwarnings("ignore:memory that was allocated before a graph capture")
def test_a_capture_of_the_package_works_with_it(device):
    alloc = make_allocator(device, settings=SETTINGS)
    stream, side = Stream(device), Stream(device)
    before = alloc.malloc(MIB, stream)
    with allotment.capture(stream) as graph:
        assert graph.allocator is alloc
        address = alloc.malloc(MIB, stream)
        device.wait(side.handle, stream.handle)
        alloc.record_stream(address, side)
        alloc.free(address)
        alloc.free(before)
    graph.reset()
    assert used(alloc) == 0
    with pytest.raises(ZeroDivisionError), allotment.capture(stream):
        alloc.malloc(MIB, stream)
        1 / 0  # noqa: B018
    with allotment.capture(stream):
        pass


@pytest.mark.parametrize("operation", ["event_record", "capture_status", "capture_end"])
def test_a_capture_that_cannot_be_joined_is_abandoned(device, operation):
    alloc = make_allocator(device, settings=SETTINGS)
    stream, side = Stream(device), Stream(device)
    with pytest.raises(CaptureError, match=operation), allotment.capture(stream):
        address = alloc.malloc(MIB, stream)
        device.wait(side.handle, stream.handle)
        alloc.record_stream(address, side)
        alloc.free(address)
        device.refuse(operation, out_of_memory=False)
    with allotment.capture(stream):
        alloc.free(alloc.malloc(MIB, stream))
    alloc.inspection.check_invariants()


def test_a_device_that_cannot_capture_is_an_error(device):
    alloc = make_allocator(OrderedRelay(device), settings=SETTINGS)
    with pytest.raises(UnsupportedError, match="does not support graph capture"):
        alloc.pools.begin_allocate_to_pool((1, 0))


# A device written in Python.


def test_the_pool_may_be_written_in_python(device):
    alloc = make_allocator(OrderedRelay(device), settings=SETTINGS)
    address = alloc.malloc(MIB, MAIN)
    alloc.record_stream(address, SIDE)
    device.launch(SIDE)
    alloc.free(address)
    assert used(alloc) == MIB
    device.finish()
    assert used(alloc) == 0
    alloc.empty_cache()
    assert alloc.device.target.used == 0
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(GIB)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_buffer_may_be_collected_inside_a_call_to_the_device(device):
    class Collecting(OrderedRelay):
        cycles: list[object] = []

        def ordered_allocate(self, size, stream):
            if self.cycles:
                self.cycles.clear()
                gc.collect()
            return super().ordered_allocate(size, stream)

    relay = Collecting(device)
    alloc = make_allocator(relay, settings=SETTINGS)
    cycle: list[object] = [alloc.empty(MIB, MAIN)]
    cycle.append(cycle)
    relay.cycles = [cycle]
    del cycle
    address = alloc.malloc(KIB, MAIN)
    assert used(alloc) == KIB
    alloc.free(address)
    alloc.inspection.check_invariants()


@pytest.mark.threads
def test_invariants_hold_while_threads_are_at_work():
    assert (
        output_of("""
        import threading
        import allotment
        alloc = allotment.make_allocator("sim:1GiB", settings="backend:cudaMallocAsync")
        working = True

        def work(stream):
            while working:
                alloc.free(alloc.malloc(1 << 20, stream))

        threads = [threading.Thread(target=work, args=(stream,)) for stream in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for _ in range(20_000):
            alloc.inspection.check_invariants()
        working = False
        for thread in threads:
            thread.join()
        alloc.inspection.check_invariants()
        print(alloc.stats()["allocated_bytes.all.current"])
    """)
        == "0\n"
    )


class Repeating(QueueDevice):
    """Its pool returns one address again and again."""

    def ordered_allocate(self, size, stream):
        return 1 << 40

    def ordered_free(self, address, stream):
        pass

    def ordered_trim(self, keep):
        pass

    def ordered_usage(self):
        return 0, 0, 0, 0

    def ordered_reset_high(self):
        pass

    def ordered_access(self, device):
        pass


def test_an_address_that_a_block_in_use_has_is_refused():
    alloc = allotment.make_allocator(Repeating(), settings=SETTINGS)
    address = alloc.malloc(KIB)
    with pytest.raises(DeviceError, match=f"ordered_allocate returned {address:#x}.*in use"):
        alloc.malloc(KIB)
    alloc.inspection.check_invariants()
    alloc.free(address)
    assert alloc.malloc(KIB) == address
    alloc.inspection.check_invariants()


class ClosesMeanwhile(OrderedRelay):
    """Its allocator is closed while it is in the call `during`."""

    during = ""

    def _relay(self, method, *arguments):
        result = super()._relay(method, *arguments)
        if method == self.during:
            self.during = ""
            self.allocator.close()
            assert self.allocator.closed
        return result


@pytest.mark.parametrize("during", ["ordered_allocate", "event_record", "ordered_free"])
def test_an_allocator_that_is_closed_during_a_call_frees_everything_when_the_call_ends(device, during):
    relay = ClosesMeanwhile(device)
    alloc = relay.allocator = make_allocator(relay, settings=SETTINGS)
    kept = alloc.malloc(MIB, MAIN)
    block = alloc.malloc(3 * MIB, MAIN)
    alloc.record_stream(block, SIDE)
    relay.during = during
    if during == "ordered_allocate":
        with pytest.warns(ResourceWarning), pytest.raises(RequestError, match="is closed; make another one"):
            alloc.malloc(5 * MIB, MAIN)
    else:
        with pytest.warns(ResourceWarning):
            alloc.free(block)
    assert Probe(device).ordered_usage()[0] == 0
    with pytest.raises(RequestError, match="is closed; make another one"):
        alloc.malloc(MIB, MAIN)
    alloc.free(kept)
    alloc.inspection.check_invariants()
