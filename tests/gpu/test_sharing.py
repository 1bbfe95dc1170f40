"""A block of GPU memory in two processes. `tests/sharing` has the tests that are the same on every device."""

import os
import subprocess
import sys

import pytest

from allotment import Allocator, SharingError, Stream, open_shared, open_shared_torch
from allotment._core.contract.probe import Probe, Share, StatusError
from helpers.effort import some
from helpers.peer import Peer, descriptors, wait_until

pytestmark = pytest.mark.gpu

MIB = 1 << 20
ROUNDS = 100
SETTINGS = {"plain": "", "expandable": "expandable_segments:True", "dense": "placement:dense"}
OPENING = """
from allotment._devices.cuda.device import CudaDevice
from allotment._sharing import ordering
device = CudaDevice(0)
local, stream = Allocator(device), Stream(device)
"""


def shares_chunks(device):
    probe = Probe(device)
    page = probe.granularity()
    chunk = probe.chunk_create(page)
    try:
        for kind in (Share.FABRIC, Share.DESCRIPTOR):
            try:
                probe.chunk_export(chunk, kind)
                return True
            except StatusError:
                continue
        return False
    finally:
        probe.chunk_release(chunk, page)


@pytest.fixture(params=SETTINGS)
def settings(request, device):
    if request.param != "plain" and not shares_chunks(device):
        pytest.skip("this machine shares no chunks by descriptor or over a fabric")
    return SETTINGS[request.param]


@pytest.fixture
def allocator(device, settings):
    made = Allocator(device, settings=settings)
    yield made
    device.synchronize()
    made.inspection.check_invariants()


@pytest.fixture(scope="module")
def peers(cuda_device):
    with Peer() as one:
        one.run(OPENING)
        yield one


@pytest.fixture
def peer(peers):
    yield peers
    peers.run("stream.synchronize(); buffer = buffers = None")


def active(allocator):
    allocator.inspection.check_invariants()
    return allocator.stats()["active_bytes.all.current"]


@pytest.mark.parametrize("size", [700, 3 * MIB, 45 * MIB])
def test_what_one_writes_the_other_reads_and_the_other_way_round(allocator, device, peer, size):
    around = [allocator.empty(size) for _ in range(3)]
    buffer = around[1]
    device.memset_async(buffer.address, 1, size)
    device.synchronize()
    handle = allocator.share(buffer)
    seen = peer.run(
        """
        buffer = open_shared(handle)
        result = len(buffer), set(device.copy_to_host(buffer.address, len(buffer)))
        device.memset_async(buffer.address, 2, len(buffer))
        device.synchronize()
        assert buffer.__cuda_array_interface__["data"][0] == buffer.address
        assert buffer.__dlpack_device__() == (2, 0)
        buffer.close()
        """,
        handle=handle,
    )
    assert seen == (size, {1})
    assert set(device.copy_to_host(buffer.address, size)) == {2}
    handle.close()


def test_a_block_of_a_private_pool_is_shared(allocator, device, peer):
    with allocator.pool():
        buffer = allocator.empty(2 * MIB)
    device.copy_from_host(buffer.address, b"pool")
    handle = allocator.share(buffer)
    assert (
        peer.run("with open_shared(handle) as b: result = device.copy_to_host(b.address, 4)", handle=handle) == b"pool"
    )
    handle.close()


def round_trip(allocator, device, stream, peer, buffer, value, *, reads_early=False):
    """The owner's stream writes behind a gate; return what the importer's stream, also busy, reads and writes back."""
    size = len(buffer)
    gate = device.hold(stream.handle)
    device.memset_async(buffer.address, value, size, stream.handle)
    handle = allocator.share(buffer)
    peer.run(
        """
        gate = device.hold(stream.handle)
        buffer = open_shared(handle, stream=stream)
        copied = local.empty(len(buffer), stream)
        local.copy(copied, buffer, len(buffer), stream)
        device.memset_async(buffer.address, value + 1, len(buffer), stream.handle)
        gate.release()
        """,
        handle=handle,
        value=value,
    )
    if reads_early:
        peer.run("stream.synchronize()")
    gate.release()
    stream.synchronize()
    seen = peer.run(
        "stream.synchronize(); result = set(device.copy_to_host(copied.address, len(copied))); buffer.close()"
    )
    handle.close()
    return seen, set(device.copy_to_host(buffer.address, size))


def test_an_importer_that_closes_the_last_block_of_a_gone_allocator_delays_no_other(allocator, settings, device, peer):
    """The end of an allocator waits for the device. Here the device's work waits for the next opening."""
    stream = Stream(device)
    gone = Allocator(device, settings=settings)
    handle = gone.share(gone.empty(MIB))
    peer.run("kept = open_shared(handle)", handle=handle)
    handle.close()
    buffer = allocator.empty(MIB)
    device.copy_from_host(buffer.address, b"next")
    handle = allocator.share(buffer)
    del gone
    gate = device.hold(stream.handle)
    try:
        peer.run("kept.close()")
        peer.begin("with open_shared(handle) as b: result = device.copy_to_host(b.address, 4)", handle=handle)
        assert peer.can_finish(60)
        assert peer.finish() == b"next"
    finally:
        gate.release()
    handle.close()
    stream.destroy()


def test_with_streams_busy_on_both_sides_the_importer_reads_what_the_owner_wrote(allocator, device, peer):
    stream = Stream(device)
    buffer = allocator.empty(MIB, stream)
    for number in range(some(ROUNDS)):
        value = 2 * number % 256
        assert round_trip(allocator, device, stream, peer, buffer, value) == ({value}, {value + 1})
    stream.destroy()


def test_without_the_event_it_reads_too_early(allocator, device, peer):
    """Checks the test above: that it would notice."""
    peer.run("kept, ordering.wait = ordering.wait, lambda *given, on_stream: None")
    try:
        stream = Stream(device)
        buffer = allocator.empty(MIB, stream)
        device.memset_async(buffer.address, 99, MIB)
        device.synchronize()
        seen, after = round_trip(allocator, device, stream, peer, buffer, 4, reads_early=True)
        assert seen == {99}
        assert after == {4}
        stream.destroy()
    finally:
        peer.run("ordering.wait = kept")


def test_a_block_comes_back_when_the_importers_streams_are_done(allocator, device, peer):
    for _ in range(some(10)):
        buffer = allocator.empty(MIB)
        address = buffer.address
        handle = allocator.share(buffer)
        peer.run(
            """
            buffer = open_shared(handle, stream=stream)
            gate = device.hold(stream.handle)
            device.memset_async(buffer.address, 5, len(buffer), stream.handle)
            buffer.close()
            """,
            handle=handle,
        )
        handle.close()
        buffer.close()
        assert active(allocator) >= MIB
        taken = [allocator.malloc(MIB) for _ in range(3)]
        assert address not in taken
        for one in taken:
            allocator.free(one)
        peer.run("gate.release(); stream.synchronize()")
        wait_until(lambda: active(allocator) == 0)


def test_the_same_handle_opened_twice_is_one_mapping(allocator, peer):
    buffers = [allocator.empty(MIB // 4) for _ in range(4)]
    handles = [allocator.share(buffer) for buffer in buffers]
    apart = peer.run(
        """
        buffers = [open_shared(handle) for handle in handles for _ in range(3)]
        result = [buffer.address - buffers[0].address for buffer in buffers]
        """,
        handles=handles,
    )
    assert apart == [buffer.address - buffers[0].address for buffer in buffers for _ in range(3)]
    for handle in handles:
        handle.close()


def test_ten_shares_of_a_block_are_equal_and_open_at_most_a_descriptor_a_page(allocator, peer):
    buffer = allocator.empty(45 * MIB)
    pages = len(allocator.sharing._share_block(buffer.address, None).pieces)
    allocator.share(buffer)
    before = descriptors()
    handles = [allocator.share(buffer) for _ in range(10)]
    assert len({handle.to_bytes() for handle in handles}) == 1
    peer.run("for handle in handles: open_shared(handle).close()", handles=handles)
    forms = {allocator.share_torch(buffer) for _ in range(10)} if allocator.settings.placement == "torch" else {1}
    assert len(forms) == 1
    wait_until(lambda: descriptors() <= before + pages)
    handles[0].close()


def test_cycles_leave_no_descriptor_and_no_addresses(allocator, peer):
    buffer = allocator.empty(3 * MIB)
    handle = allocator.share(buffer)
    count = """
    for _ in range(times):
        open_shared(handle).close()
    held = open_shared(handle)
    result = len(os.listdir("/proc/self/fd")), address_space()
    held.close()
    """
    peer.run(count, handle=handle, times=some(50))
    mine, there = descriptors(), peer.run(count, handle=handle, times=some(50))
    again = peer.run(count, handle=handle, times=some(500))
    assert again[0] == there[0]
    assert again[1] - there[1] < 64 * MIB
    assert descriptors() - mine < 10  # after 500 cycles: a connection or two may be ending
    handle.close()


def test_a_hundred_blocks_of_a_killed_importer_return(allocator):
    with Peer() as peer:
        buffers = [allocator.empty(MIB // 2) for _ in range(100)]
        handles = [allocator.share(buffer) for buffer in buffers]
        peer.run("buffers = [open_shared(handle) for handle in handles]", handles=handles)
        for handle, buffer in zip(handles, buffers, strict=True):
            handle.close()
            buffer.close()
        assert active(allocator) >= 50 * MIB
        peer.kill()
        wait_until(lambda: active(allocator) == 0, seconds=1)


def test_an_owner_that_is_killed_leaves_its_importer_alive(settings, device):
    with Peer() as owner:
        owner.run(OPENING)
        handle = owner.run(
            """
            allocator = Allocator(device, settings=settings)
            buffer = allocator.empty(3 << 20)
            device.memset_async(buffer.address, 7, 3 << 20)
            device.synchronize()
            result = allocator.share(buffer)
            """,
            settings=settings,
        )
        buffer = open_shared(handle)
        assert set(device.copy_to_host(buffer.address, 1000)) == {7}
        owner.kill()
        if settings:  # the driver guarantees nothing about plain memory after its process has ended
            assert set(device.copy_to_host(buffer.address, len(buffer))) == {7}
        with pytest.raises(SharingError) as raised:
            open_shared(handle)
        assert raised.value.reason == "owner_gone"
        before = descriptors()
        buffer.close()
        wait_until(lambda: descriptors() < before)
        device.synchronize()


def test_a_gpu_that_is_not_visible_is_another_device(allocator):
    with allocator.empty(1) as buffer, Peer(CUDA_VISIBLE_DEVICES="", FAKE_CUDA_DEVICES="0") as peer:
        handle = allocator.share(buffer)
        with pytest.raises(SharingError) as raised:
            peer.run("open_shared(handle)", handle=handle)
        assert raised.value.reason == "other_device"
        handle.close()


# PyTorch's bytes.


@pytest.mark.parametrize("compat", ["2.11", "2.13"])
def test_bytes_in_pytorchs_form_are_opened(settings, device, peer, compat):
    if settings == SETTINGS["dense"]:
        pytest.skip("PyTorch's form has pages of one size")
    allocator = Allocator(device, settings=f"{settings},compat:{compat}".lstrip(","))
    buffer = allocator.empty(45 * MIB)
    device.memset_async(buffer.address, 3, len(buffer))
    device.synchronize()
    offset, handle = allocator.share_torch(buffer)
    assert handle[0] == {"2.11": 2, "2.13": 3}[compat]
    seen = peer.run(
        """
        buffer = open_shared_torch(handle, offset, size)
        again = open_shared_torch(handle, offset, size)
        assert buffer.address == again.address
        result = set(device.copy_to_host(buffer.address, size))
        again.close(), buffer.close()
        """,
        handle=handle, offset=offset, size=len(buffer),
    )  # fmt: skip
    assert seen == {3}


TORCH_SENDS = """
import sys, torch
tensor = torch.full((size,), 9, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
_, handle, _, offset, *_ = tensor.untyped_storage()._share_cuda_()
print(offset, handle.hex(), flush=True)
sys.stdin.read()
"""
TORCH_RECEIVES = """
import torch
own = torch.empty(1, device="cuda").untyped_storage()._share_cuda_()
storage = torch.UntypedStorage._new_shared_cuda(0, handle, size, offset, own[4], own[5], own[6], False)
tensor = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
assert tensor.numel() == size, tensor.shape
assert bool((tensor == 9).all()), tensor
tensor.fill_(10)
torch.cuda.synchronize()
"""


@pytest.fixture
def torch_conf(settings):
    if settings == SETTINGS["dense"]:
        pytest.skip("PyTorch's form has pages of one size")
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return settings


def test_what_pytorch_sends_is_opened(torch_conf, device):
    program = f"size = {3 * MIB}\n{TORCH_SENDS}"
    sender = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": torch_conf},
    )  # fmt: skip
    offset, handle = sender.stdout.readline().split()
    buffer = open_shared_torch(bytes.fromhex(handle), int(offset), 3 * MIB, device=device)
    assert set(device.copy_to_host(buffer.address, 3 * MIB)) == {9}
    buffer.close()
    sender.communicate("")
    assert sender.returncode == 0


def test_pytorch_opens_what_is_sent_to_it(torch_conf, device):
    from torch import __version__

    compat = ".".join(__version__.split(".")[:2])
    allocator = Allocator(device, settings=f"{torch_conf},compat:{compat}".lstrip(","))
    buffer = allocator.empty(3 * MIB)
    device.memset_async(buffer.address, 9, 3 * MIB)
    device.synchronize()
    offset, handle = allocator.share_torch(buffer)
    program = f"size, offset, handle = {3 * MIB}, {offset}, bytes.fromhex('{handle.hex()}')\n{TORCH_RECEIVES}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": torch_conf},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(device.copy_to_host(buffer.address, 3 * MIB)) == {10}
