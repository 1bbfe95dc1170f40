"""The engine on a real GPU: its memory is right while streams run, and it survives everything that a driver does."""

import subprocess
import sys

import pytest

import allotment
from allotment import Allocator, DeviceError, OutOfMemoryError, Stream
from allotment._core.contract.probe import Probe
from contracts.late_writes import LateWrites, filled
from helpers.faulty import faulty, no_faults
from helpers.gpu_workload import GpuWorkload
from helpers.relay_device import RelayDevice

pytestmark = pytest.mark.gpu

MIB = 1 << 20
FaultyRelay = faulty(RelayDevice)
SETTINGS = {"plain": "", "expandable": "expandable_segments:True"}


@pytest.fixture
def device(cuda_device):
    yield cuda_device
    cuda_device.synchronize()


@pytest.fixture(params=SETTINGS.values(), ids=SETTINGS)
def settings(request):
    return request.param


@pytest.fixture
def allocator(device, settings, streams):  # torn down after the streams, because it is requested before them
    made = Allocator(device, settings=settings)
    yield made
    made.empty_cache()


# Random requests.


@pytest.mark.parametrize("seed", range(4))
def test_random_requests_keep_every_rule_and_every_mark(device, allocator, seed):
    workload = GpuWorkload(device, allocator, seed)
    workload.run(400)
    workload.wind_up()
    assert workload.errors == []
    stats = allocator.stats()
    assert stats["num_device_alloc"] > 0
    assert stats["reserved_bytes.all.current"] == 0


# A loop that repeats.


def one_step(allocator, stream):
    """Make the requests of one iteration: small and large, on two streams, some kept to the end of the iteration."""
    kept = [allocator.malloc(size, on) for on in (0, stream.handle) for size in (512, 70_000, 3 * MIB, 30 * MIB)]
    for size in (1_000, 2 * MIB, 15 * MIB):
        allocator.free(allocator.malloc(size))
    for address in kept:
        allocator.free(address)


def test_a_loop_that_repeats_does_not_call_the_device(device, settings, streams):
    relay = FaultyRelay(device)
    allocator = Allocator(relay, settings=settings)
    for _ in range(2):
        one_step(allocator, streams[0])
    warm = relay.calls
    for _ in range(100):
        one_step(allocator, streams[0])
    assert relay.calls == warm


def test_a_loop_that_repeats_obtains_and_releases_no_memory(device, allocator, streams):
    def device_calls():
        stats = allocator.stats()
        return stats["num_device_alloc"], stats["num_device_free"]

    def step_with_two_streams():
        address = allocator.malloc(4 * MIB)
        allocator.record_stream(address, streams[1].handle)
        with device.hold(streams[1].handle):  # so that the block is waited for in every step alike
            device.memset_async(address, 1, 4 * MIB, streams[1].handle)
            allocator.free(address)
            one_step(allocator, streams[0])
        device.synchronize()

    for _ in range(3):
        step_with_two_streams()
    warm = device_calls()
    for _ in range(100):
        step_with_two_streams()
    assert device_calls() == warm
    allocator.inspection.check_invariants()


# Two streams and one block.


class TestLateWrites(LateWrites):
    pass


def test_memory_of_a_destroyed_stream_can_be_released(device, allocator):
    stream = Stream(device)
    allocator.free(allocator.malloc(30 * MIB, stream))
    stream.destroy()
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


def test_a_block_is_reused_when_its_destroyed_reader_is_done_and_not_before(device, allocator):
    reader = Stream(device)
    address = allocator.malloc(MIB)
    hold = device.hold(reader.handle)
    allocator.record_stream(address, reader)
    reader.destroy()
    allocator.free(address)
    allocator.inspection.check_invariants()
    other = allocator.malloc(MIB)
    assert other != address
    hold.release()
    device.synchronize()
    assert allocator.malloc(MIB) == address
    allocator.inspection.check_invariants()


def test_a_capture_goes_on_while_memory_of_a_destroyed_stream_is_freed(device, allocator, streams):
    reader, captured = Stream(device), streams[0]
    address, large = allocator.malloc(MIB), allocator.malloc(30 * MIB)
    device.memset_async(address, 0, 64, captured.handle)
    device.synchronize()
    for block in (address, large):
        allocator.record_stream(block, reader)
    reader.destroy()
    with allotment.capture(captured, allocator=allocator) as graph:
        inside = allocator.malloc(MIB, captured)
        device.memset_async(inside, 7, 64, captured.handle)
        allocator.free(address)
        allocator.free(large)
    graph.replay()
    captured.synchronize()
    assert device.copy_to_host(inside, 64) == bytes([7]) * 64
    allocator.free(inside)
    graph.reset()
    allocator.empty_cache()
    allocator.inspection.check_invariants()


# States of pools.


def test_a_restore_waits_for_the_streams_that_use_the_pool_and_leaves_blocks_to_their_owners(
    device, allocator, streams
):
    size = 2 * MIB
    own, side = streams
    pool = allocator.pool()
    with pool:
        first = allocator.empty(size, own)
    state = pool.checkpoint()
    with pool:
        later = allocator.empty(size, own)
    for _ in range(200):
        device.memset_async(first.address, 7, size, side.handle)
    allocator.record_stream(first, side)
    pool.restore(state)
    assert side.query()
    device.memset_async(first.address, 2, size, own.handle)
    own.synchronize()
    assert device.copy_to_host(first.address, size) == filled(2, size)
    with pytest.raises(allotment.RequestError, match="restored"):
        _ = later.address
    del later, first
    assert allocator.stats()["allocation.all.current"] == 0
    pool.close()
    allocator.inspection.check_invariants()


# Graphs.


def test_a_graph_replayed_a_thousand_times_stays_right_while_others_allocate(device, allocator, streams):
    size = 64 << 10
    origin, other = streams
    probe = Probe(device)
    warm = allocator.malloc(size, origin)  # the first work of its kind may set things up, which no capture allows
    device.memset_async(warm, 0, size, origin.handle)
    probe.copy(warm, warm + size // 2, size // 2, device.index, device.index, origin.handle)
    origin.synchronize()
    allocator.free(warm)

    with allotment.capture(origin, allocator=allocator) as graph:
        result = allocator.malloc(2 * size, origin)
        for half, value in enumerate((5, 9)):
            temporary = allocator.malloc(size, origin)
            device.memset_async(temporary, value, size, origin.handle)
            probe.copy(result + half * size, temporary, size, device.index, device.index, origin.handle)
            allocator.free(temporary)

    for turn in range(1_000):
        value = turn % 200 + 20
        blocks = [(allocator.malloc(each, stream), each, stream)
                  for stream in (Stream.default(device), other, origin) for each in (size, 2 * size)]  # fmt: skip
        device.memset_async(result, 0, 2 * size, origin.handle)
        for address, length, stream in blocks:
            device.memset_async(address, value, length, stream.handle)
        graph.replay()
        device.synchronize()
        assert device.copy_to_host(result, 2 * size) == filled(5, size) + filled(9, size)
        for address, length, _ in blocks:
            assert device.copy_to_host(address, length) == filled(value, length)
            allocator.free(address)
        allocator.inspection.check_invariants()
    allocator.free(result)
    graph.reset()
    allocator.inspection.check_invariants()


# No memory left.


def fill(allocator, piece):
    """Allocate blocks of `piece` bytes until no room is left; return them and the refusal."""
    blocks = []
    while True:
        try:
            blocks.append(allocator.malloc(piece))
        except OutOfMemoryError as error:
            allocator.inspection.check_invariants()
            return blocks, error


def test_a_full_device_is_reported_in_figures_and_serves_again(device, allocator):
    free, total = allocator.memory_info()
    piece = free // 12 // (2 * MIB) * (2 * MIB)
    blocks, error = fill(allocator, piece)
    facts = error.facts
    assert facts.requested == piece
    assert facts.device_total == total
    assert facts.device_free < facts.segment_size
    assert facts.allocated == len(blocks) * piece
    assert facts.limit is None
    assert allocator.stats()["num_ooms"] == 1
    seen = device.processes()  # empty where processes of a container cannot be told apart
    assert all(size <= total for _, size in seen)

    for address in blocks[::2]:
        allocator.free(address)
    again = [allocator.malloc(piece) for _ in blocks[::2]]
    allocator.inspection.check_invariants()
    for address in [*blocks[1::2], *again]:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


EATER = """
import sys
from allotment import Allocator, OutOfMemoryError
allocator = Allocator("cuda:0")
allocator.free(allocator.malloc(1))
print("ready", flush=True)
sys.stdin.readline()
try:
    while True:
        allocator.malloc(64 << 20)
except OutOfMemoryError:
    pass
print("full", flush=True)
sys.stdin.readline()
"""


def test_another_process_may_take_the_memory_while_a_request_maps_its_pages(device, allocator):
    before, _ = allocator.memory_info()
    piece = before // 24 // MIB * MIB
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", EATER], **pipes) as eater:
        assert eater.stdout.readline() == "ready\n"
        eater.stdin.write("go\n")
        eater.stdin.flush()
        blocks, _ = fill(allocator, piece)
        assert eater.stdout.readline() == "full\n"
        while blocks:
            allocator.free(blocks.pop())
            allocator.inspection.check_invariants()
        allocator.free(allocator.malloc(piece // 2))
        eater.stdin.close()
    assert eater.returncode == 0
    address = allocator.malloc(before // 2)
    device.memset_async(address, 3, 1 * MIB)
    device.synchronize(0)
    assert device.copy_to_host(address, MIB) == filled(3, MIB)
    allocator.free(address)
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    assert allocator.memory_info()[0] >= before - 64 * MIB


# Any call of the driver may be refused.


FAULTS = [OSError, MemoryError]
LOST = {"chunk_release", "event_destroy"}
"""Calls that are not repeated after a refusal, so that the memory which they should have returned is lost."""


def run_relayed(device, settings, faults):
    relay = FaultyRelay(device)
    workload = GpuWorkload(device, Allocator(relay, settings=settings), seed=3)
    relay.faults = faults
    workload.run(60)
    relay.faults = no_faults
    workload.wind_up()
    return relay, workload


@pytest.mark.parametrize("fault", FAULTS)
def test_any_one_call_to_the_device_may_be_refused(device, settings, fault):
    methods = {}

    def note(number, method):
        methods[number] = method

    _, undisturbed = run_relayed(device, settings, note)
    assert undisturbed.errors == []
    assert len(methods) > 30
    for failing, name in methods.items():
        planted = fault("planted")
        relay, workload = run_relayed(
            device, settings, lambda number, _, at=failing, error=planted: error if number == at else None
        )
        for error in workload.errors:
            assert not isinstance(error, DeviceError) or error.__cause__ is planted
        if name not in LOST:
            # A range whose first pages were refused is kept for the next request: it is addresses, not memory.
            assert not any(relay.held[kind] for kind in ("segments", "chunks", "mappings")), (failing, name)
