"""Pinned memory of a GPU: a copy in progress never meets data of the block's next owner."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import allotment
from allotment._devices.per_thread import thread_stream

pytestmark = pytest.mark.gpu

MIB = 1 << 20
ROUNDS = 100


@pytest.fixture(params=["torch", "tight"])
def pinned(device, request):
    with allotment.PinnedAllocator(device, mode=request.param) as made:
        yield made
        made.inspection.check_invariants()


def test_memory_is_pinned_and_can_be_copied_both_ways(device, pinned, allocator):
    there = allocator.empty(MIB)
    source, back = pinned.full(MIB, 7, "uint8"), pinned.zeros(MIB, "uint8")
    allocator.copy(there, source, MIB)
    allocator.copy(back, there, MIB)
    device.synchronize()
    assert (back == 7).all()


def test_copies_that_overlap_with_frees_carry_the_right_values(device, pinned, allocator, streams):
    """Each block is filled, copied, and freed at once; the next round must not write into it too early."""
    stream = streams[0]
    places = [allocator.empty(MIB, stream) for _ in range(ROUNDS)]
    held = device.hold(stream.handle)
    for number, place in enumerate(places):
        address = pinned.malloc(MIB)
        block = np.frombuffer(allotment.Buffer(pinned, address, MIB), np.uint8)
        block[:] = number
        allocator.copy(place, address, MIB, stream)
        pinned.record_stream(address, stream)
        del block  # and with it the buffer, which frees the block
        if number == 10:
            held.release()
    stream.synchronize()
    for number, place in enumerate(places):
        assert device.copy_to_host(place.address, MIB) == bytes([number]) * MIB
    assert pinned.stats()["active_requests.current"] in (0, *range(1, ROUNDS + 1))


def test_a_free_that_names_its_streams_waits_for_them(device, pinned, streams):
    for stream in (streams[0].handle, 0):
        address = pinned.malloc(3 * MIB)
        held = device.hold(stream)
        pinned.free(address, [stream])
        other = pinned.malloc(3 * MIB)
        assert other != address
        held.release()
        device.synchronize()
        assert pinned.malloc(3 * MIB) in (address, other)
        pinned.empty_cache()


def test_registered_pages_are_pinned(device, allocator):
    settings = "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"
    for mode in ("torch", "tight"):
        with allotment.PinnedAllocator(device, mode=mode, settings=settings) as pinned:
            there = allocator.empty(16 * MIB)
            source, back = pinned.full(16 * MIB, 9, "uint8"), pinned.zeros(16 * MIB, "uint8")
            allocator.copy(there, source, 16 * MIB)
            allocator.copy(back, there, 16 * MIB)
            device.synchronize()
            assert (back == 9).all()
            del source, back


def test_a_node_can_be_chosen(device):
    try:
        with allotment.PinnedAllocator(device, numa_node=0) as pinned:
            assert pinned.full(MIB, 3, "uint8").sum() == 3 * MIB
    except allotment.UnsupportedError as error:
        pytest.skip(f"this machine cannot bind memory to a node: {error}")


def test_an_array_in_pinned_memory_is_a_pinned_tensor(device, pinned):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.cuda.init()  # before that, PyTorch considers no memory as pinned
    array = pinned.full(MIB, 5, "uint8")
    tensor = torch.from_numpy(array)
    assert tensor.is_pinned()
    there = tensor.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert int(there.sum()) == 5 * MIB
    del tensor, array


# --- default streams of threads ---


@pytest.fixture
def threads():
    """Three threads that stay: a thread's stream ends with the thread."""
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, ThreadPoolExecutor(1) as three:
        yield [lambda function, on=pool: on.submit(function).result() for pool in (one, two, three)]


def test_each_threads_default_stream_is_a_stream_of_its_own(device, allocator, threads):
    own, other = thread_stream(), threads[0](thread_stream)
    assert own != other
    address = allocator.malloc(4 * MIB, own)
    held = device.hold(own)
    allocator.free(address)
    assert allocator.malloc(4 * MIB, other) != address
    assert allocator.malloc(4 * MIB, own) == address
    held.release()
    device.synchronize()
    allocator.inspection.check_invariants()


def test_a_free_waits_for_the_default_stream_of_another_thread(device, allocator, threads):
    """One thread cannot record another thread's stream; an event on the legacy stream covers it."""
    held, other = threads[0](lambda: (device.hold(thread_stream()), thread_stream()))
    address = allocator.malloc(4 * MIB)
    allocator.record_stream(address, other)
    allocator.free(address)
    assert allocator.malloc(4 * MIB) != address
    held.release()
    device.synchronize()
    assert allocator.malloc(4 * MIB) == address
    allocator.inspection.check_invariants()


def test_values_freed_across_threads_are_right(device, allocator, threads):
    """Memory of one thread's stream, used by another thread's, freed by a third."""
    for number in range(1, ROUNDS):
        buffer = threads[0](lambda: allocator.empty(MIB, thread_stream()))
        copied = allocator.empty(MIB)

        def fill(buffer=buffer, copied=copied, number=number):
            device.memset_async(buffer.address, number, MIB, thread_stream())
            allocator.copy(copied, buffer, MIB, thread_stream())
            return thread_stream()

        user = threads[1](fill)
        allocator.record_stream(buffer, user)
        allocator.record_stream(copied, user)
        buffer.close()
        again = threads[2](lambda: allocator.empty(MIB, thread_stream()))
        device.memset_async(again.address, 255, MIB, 0)
        device.synchronize()
        assert device.copy_to_host(copied.address, MIB) == bytes([number]) * MIB
        copied.close()
        again.close()
    allocator.inspection.check_invariants()
