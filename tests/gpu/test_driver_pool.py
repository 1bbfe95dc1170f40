"""The driver's own pool on a real GPU, through the allocator on top of it."""

import ctypes
import json
import os
import subprocess
import sys
import threading

import pytest

import allotment
from allotment import AsyncAllocator, DeviceError, OutOfMemoryError, OutOfMemoryFacts, Stream, make_allocator
from allotment._core.contract.probe import Capability, Probe
from allotment._texts import pytorch_out_of_memory
from contracts.late_writes import LateWrites, filled
from helpers.faulty import faulty, no_faults
from helpers.relay_device import OrderedRelay

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SETTINGS = "backend:cudaMallocAsync"


@pytest.fixture
def device(cuda_device):
    if Capability.STREAM_ORDERED not in Capability(cuda_device.capabilities):
        pytest.skip("this device has no memory pools")
    yield cuda_device
    cuda_device.synchronize()


@pytest.fixture
def alloc(device, streams):  # torn down after the streams, because it is requested before them
    made = make_allocator(device, settings=SETTINGS)
    assert type(made) is AsyncAllocator
    yield made
    made.inspection.check_invariants()
    made.empty_cache()


def used(alloc):
    alloc.device.synchronize()
    return alloc.stats()["allocated_bytes.all.current"]


@pytest.mark.parametrize("size", [1, 1000, 4096, 3 * MIB, 100 * MIB])
def test_memory_is_usable_from_end_to_end(device, alloc, streams, size):
    own, _ = streams
    before = used(alloc)
    address = alloc.malloc(size, own)
    device.memset_async(address, 7, size, own.handle)
    own.synchronize()
    assert device.copy_to_host(address + size - 1, 1) == b"\7"
    assert alloc.inspection.base_allocation(address) == (address, size)
    assert used(alloc) >= before + size
    alloc.free(address)
    assert used(alloc) == before


def test_a_buffer_is_seen_by_others_without_a_copy(device, alloc, streams):
    buffer = alloc.empty(MIB, streams[0])
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.address, False)
    assert interface["stream"] == streams[0].handle
    assert buffer.__dlpack_device__() == (2, device.index)


class TestLateWrites(LateWrites):
    @pytest.fixture
    def allocator(self, alloc):
        return alloc


def test_a_block_outlives_its_streams(device, alloc):
    before = used(alloc)
    own, side = Stream(device), Stream(device)
    first, second = alloc.malloc(MIB, own), alloc.malloc(MIB)
    alloc.record_stream(second, side)
    own.destroy()
    side.destroy()
    alloc.free(first)
    alloc.free(second)
    assert used(alloc) == before


# The pool as a whole.


def test_emptying_the_cache_releases_memory_to_the_device(device, alloc):
    alloc.empty_cache()
    free = alloc.memory_info()[0]
    address = alloc.malloc(256 * MIB)
    assert alloc.memory_info()[0] <= free - 256 * MIB
    alloc.free(address)
    device.synchronize()
    assert alloc.memory_info()[0] <= free - 256 * MIB  # memory is kept until the cache is emptied
    alloc.empty_cache()
    assert alloc.memory_info()[0] > free - 256 * MIB


def test_figures_follow_requests(alloc):
    alloc.empty_cache()
    alloc.reset_peak_stats()
    before = used(alloc)
    address = alloc.malloc(64 * MIB)
    stats = alloc.stats()
    assert stats["allocated_bytes.all.current"] >= before + 64 * MIB
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
    alloc.free(address)
    assert used(alloc) == before
    assert alloc.stats()["allocated_bytes.all.peak"] >= before + 64 * MIB
    alloc.reset_peak_stats()
    assert alloc.stats()["allocated_bytes.all.peak"] == before


def test_the_limit_is_kept(device, alloc):
    alloc.limit = 10 * MIB
    address = alloc.malloc(10 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(1)
    assert (caught.value.facts.limit, caught.value.facts.allocated) == (10 * MIB, 10 * MIB)
    assert caught.value.facts.device_total == alloc.memory_info()[1]
    alloc.free(address)
    alloc.free(alloc.malloc(10 * MIB))


def test_a_full_device_is_reported_in_figures_and_serves_again(alloc):
    total = alloc.memory_info()[1]
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(2 * total)
    assert caught.value.facts.requested == 2 * total
    assert 0 < caught.value.facts.device_free <= total
    alloc.free(alloc.malloc(MIB))


def test_the_largest_block_can_be_allocated(alloc):
    alloc.empty_cache()
    largest = alloc.inspection.cache_info()
    assert alloc.memory_info()[1] // 4 < largest <= alloc.memory_info()[1]
    alloc.empty_cache()
    alloc.limit = 5 * MIB
    assert alloc.inspection.cache_info() == 5 * MIB


def test_another_device_may_touch_the_pool(device, alloc):
    alloc.sharing.enable_peer_access(device.index)
    if Capability.PEERS not in Capability(device.capabilities):
        pytest.skip("there is only one CUDA device")
    alloc.sharing.enable_peer_access(1)


# Captures.


@pytest.mark.filterwarnings("ignore:memory")
def test_a_graph_with_memory_of_its_own_is_replayed(device, alloc, streams):
    size = 64 << 10
    origin, side = streams
    warm = alloc.malloc(size, origin)  # the first work of its kind may set things up, which no capture allows
    device.memset_async(warm, 0, size, origin.handle)
    alloc.copy(warm, warm + size // 2, size // 2, origin)
    origin.synchronize()
    result = alloc.malloc(2 * size)
    device.synchronize()
    before = used(alloc)

    with allotment.capture(origin, allocator=alloc) as graph:
        alloc.free(warm)  # waits until the capture is over
        for half, value in enumerate((5, 9)):
            temporary = alloc.malloc(size, origin)
            device.memset_async(temporary, value, size, origin.handle)
            device.wait(side.handle, origin.handle)
            alloc.copy(result + half * size, temporary, size, side)
            alloc.record_stream(temporary, side)
            device.wait(origin.handle, side.handle)
            alloc.free(temporary)  # on the allocator's own stream, which is joined at the end
        kept = alloc.malloc(size, origin)
        device.memset_async(kept, 3, size, origin.handle)
    assert used(alloc) < before

    for _ in range(20):
        device.memset_async(result, 0, 2 * size, origin.handle)
        graph.replay()
        origin.synchronize()
        assert device.copy_to_host(result, 2 * size) == filled(5, size) + filled(9, size)
        assert device.copy_to_host(kept, size) == filled(3, size)
    with pytest.warns(UserWarning, match="outside of its capture"):
        alloc.free(kept)
    alloc.free(result)
    graph.reset()


@pytest.mark.filterwarnings("ignore:memory")
def test_memory_of_a_graph_that_never_ran_can_be_forgotten(device, alloc, streams):
    origin, _ = streams
    with allotment.capture(origin, allocator=alloc) as graph:
        address = alloc.malloc(MIB, origin)
    alloc.free(address)
    alloc.inspection.check_invariants()
    graph.reset()
    alloc.free(alloc.malloc(MIB, origin))


def test_other_streams_are_served_during_a_capture(device, alloc, streams):
    origin, other = streams
    with allotment.capture(origin, allocator=alloc) as graph:
        address = alloc.malloc(MIB, other)
        device.memset_async(address, 4, MIB, other.handle)
    other.synchronize()
    assert device.copy_to_host(address, MIB) == filled(4, MIB)
    alloc.free(address)
    graph.reset()


# Threads, and refusals.


@pytest.mark.threads
def test_threads_keep_their_marks(device, alloc, streams):
    wrong = []

    def work(number):
        stream = Stream(device)
        try:
            for turn in range(100):
                value = (number * 40 + turn) % 250 + 1
                size = (1 + turn % 5) * 4096
                address = alloc.malloc(size, stream)
                device.memset_async(address, value, size, stream.handle)
                alloc.record_stream(address, streams[turn % 2])
                stream.synchronize()
                assert device.copy_to_host(address, size) == filled(value, size)
                alloc.free(address)
        except BaseException as error:
            wrong.append(error)
        stream.destroy()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_any_one_call_to_the_device_may_be_refused(device, streams):
    own, side = streams

    def live(faults):
        relay = faulty(OrderedRelay)(device)
        alloc = make_allocator(relay, settings=SETTINGS)
        relay.faults = faults
        addresses = []
        for size in (MIB, 4096, 3 * MIB):
            try:
                addresses.append(alloc.malloc(size, own.handle))
                alloc.record_stream(addresses[-1], side.handle)
                alloc.empty_cache()
            except (DeviceError, OutOfMemoryError):
                alloc.inspection.check_invariants()
        for address in addresses:
            try:
                alloc.free(address)
            except DeviceError:
                relay.faults = no_faults
                alloc.free(address)
            alloc.inspection.check_invariants()
        relay.faults = no_faults
        alloc.empty_cache()
        assert Probe(device).ordered_usage()[0] == 0
        return relay.calls

    device.synchronize()
    if Probe(device).ordered_usage()[0]:
        pytest.skip("somebody else uses the device's pool")
    count = live(no_faults)
    for failing in range(1, count + 1):
        for fault in (OSError, MemoryError):
            live(lambda number, _, at=failing, fault=fault: fault("planted") if number == at else None)


# PyTorch's own words.

REFUSED_BY_TORCH = """
import json, torch
torch.cuda.set_per_process_memory_fraction({fraction})
kept = torch.empty({kept}, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info()
try:
    torch.empty({wanted}, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(json.dumps([str(error), free, total]))
"""


def test_the_words_for_a_full_device_are_pytorchs(device):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    wanted, kept, fraction = 8 << 30, 3 * MIB + 5, 0.01
    done = subprocess.run(
        [sys.executable, "-c", REFUSED_BY_TORCH.format(fraction=fraction, kept=kept, wanted=wanted)],
        env=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": SETTINGS},
        capture_output=True,
        text=True,
    )
    if not done.stdout:
        pytest.skip(f"PyTorch cannot use this device: {done.stderr.strip()[-200:]}")
    said, free, total = json.loads(done.stdout)
    facts = OutOfMemoryFacts(
        device="cuda:0", device_index=0, requested=wanted, rounded=wanted, segment_size=wanted, device_free=free,
        device_total=total, limit=int(fraction * total), allocated=kept, reserved=0, private_free=0, largest_free=0,
        stream=0, device_pool=True,
    )  # fmt: skip
    assert said == pytorch_out_of_memory(facts)


def test_the_pool_keeps_what_it_has_and_reuses_in_every_way(device, alloc):
    alloc.free(alloc.malloc(MIB))
    driver = ctypes.CDLL("libcuda.so.1")
    pool = ctypes.c_void_p()
    assert driver.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device.index) == 0
    found = {}
    for name, attribute in (("events", 1), ("opportunistic", 2), ("internal", 3), ("threshold", 4)):
        value = ctypes.c_uint64()
        assert driver.cuMemPoolGetAttribute(pool, attribute, ctypes.byref(value)) == 0
        found[name] = value.value
    assert found == {"events": 1, "opportunistic": 1, "internal": 1, "threshold": (1 << 64) - 1}
