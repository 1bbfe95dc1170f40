"""The CUDA device: the contract of every backend, and its own operations."""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from allotment._core.contract.probe import Capability, Probe, Share, Status, StatusError
from allotment.errors import DeviceError, RequestError, StreamError
from allotment.testing import BackendContract

pytestmark = pytest.mark.gpu

SIZE = 2 << 20


@pytest.fixture
def probe(device):
    return Probe(device)


@pytest.fixture
def memory(probe):
    address = probe.segment_allocate(SIZE)
    yield address
    probe.segment_free(address, SIZE)


@pytest.fixture
def streams(device):
    """Makes streams, and destroys those that the test did not."""
    made = []

    def make(count):
        made.extend(device.create_stream() for _ in range(count))
        return made[-count:]

    yield make
    for stream in made:
        with suppress(StreamError):
            device.destroy_stream(stream)


@pytest.fixture
def stream(streams):
    return streams(1)[0]


def refusal(call, *arguments):
    with pytest.raises(StatusError) as caught:
        call(*arguments)
    return caught.value


class TestCudaContract(BackendContract):
    nests_graphs = False
    notices_empty_unmaps = False

    @pytest.fixture
    def device(self, cuda_device):
        self.scratch = Probe(cuda_device).segment_allocate(SIZE)
        self.launch(cuda_device, 0)  # the first of its kind may set things up, which no capture allows
        cuda_device.synchronize()
        yield cuda_device
        Probe(cuda_device).segment_free(self.scratch, SIZE)

    def write(self, device, address, data):
        device.copy_from_host(address, data)

    def read(self, device, address, size):
        return device.copy_to_host(address, size)

    def hold(self, device, stream):
        return device.hold(stream).release

    def launch(self, device, stream):
        device.memset_async(self.scratch, 1, SIZE, stream)


class TestDevice:
    def test_it_knows_what_it_is(self, device, probe):
        assert device.name == "cuda:0"
        assert device.index == 0
        assert device.model
        assert device.uuid.startswith("GPU-")
        assert len(device.uuid) == 40
        assert device.compute_capability >= (5, 0)
        assert device.total_memory >= probe.memory_info()[1]

    def test_a_device_that_is_not_there_is_named(self, device):
        with pytest.raises(DeviceError, match="there is no CUDA device 1000"):
            type(device)(1000)
        with pytest.raises(RequestError, match="invalid device index: -1"):
            type(device)(-1)

    def test_two_objects_of_one_device_share_its_memory(self, device, memory):
        device.copy_from_host(memory, b"shared")
        assert type(device)(0).copy_to_host(memory, 6) == b"shared"

    def test_processes_have_an_id_and_a_size(self, device):
        assert all(pid > 0 and size >= 0 for pid, size in device.processes())

    def test_a_thread_keeps_the_context_it_had(self, device, probe):
        driver = ctypes.CDLL("libcuda.so.1")

        def current():
            context = ctypes.c_void_p()
            assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
            return context.value

        def allocate_between():
            before = current()
            probe.segment_free(probe.segment_allocate(SIZE), SIZE)
            refusal(probe.segment_allocate, 1 << 60)
            return before, current()

        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(allocate_between).result() == (None, None)

    def test_a_forked_process_gets_an_error_that_it_cannot_use_the_device(self, device, probe, stream):
        hold = device.hold(stream)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                hold.release()
                words = [str(refusal(probe.segment_allocate, SIZE))]
                with pytest.raises(DeviceError) as caught:
                    type(device)(0)
                words.append(str(caught.value))
                os.write(writing, "\n".join(words).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading) as pipe:
            operation, construction = pipe.read().splitlines()
        os.waitpid(child, 0)
        assert not probe.stream_query(stream)
        hold.release()
        assert "DEVICE_ERROR" in operation
        assert "forked" in operation
        assert "forked" in construction
        assert "spawn" in construction


class TestStreams:
    def test_a_destroyed_stream_is_reused(self, device, streams):
        first = device.create_stream()
        device.destroy_stream(first)
        assert first in streams(4)

    def test_a_destroyed_busy_stream_is_reused_after_its_work(self, device, probe, streams):
        busy = device.create_stream()
        with device.hold(busy):
            device.destroy_stream(busy)
            (other,) = streams(1)
            assert other != busy
            assert probe.stream_query(other)

    def test_the_default_stream_cannot_be_destroyed(self, probe):
        assert refusal(probe.stream_destroy, 0).status == Status.INVALID

    def test_a_stream_is_held_until_it_is_released(self, device, probe, stream, memory):
        device.copy_from_host(memory, b"before")
        hold = device.hold(stream)
        device.memset_async(memory, ord("x"), 6, stream)
        assert not probe.stream_query(stream)
        assert device.copy_to_host(memory, 6) == b"before"
        hold.release()
        device.synchronize(stream)
        assert device.copy_to_host(memory, 6) == b"xxxxxx"

    def test_a_hold_ends_with_its_block(self, device, probe, stream):
        with device.hold(stream):
            assert not probe.stream_query(stream)
        device.synchronize(stream)

    def test_a_value_written_on_one_stream_lets_another_go_on(self, device, probe, streams, memory):
        waiting, writing = streams(2)
        device.copy_from_host(memory, bytes(4))
        device.wait_value(waiting, memory, 5)
        assert not probe.stream_query(waiting)
        device.write_value(writing, memory, 5)
        device.synchronize(waiting)

    def test_a_destroyed_stream_is_refused_wherever_it_is_given(self, device, probe, memory):
        stream = device.create_stream()
        device.destroy_stream(stream)
        for call in (
            lambda: probe.segment_allocate(SIZE, stream),
            lambda: probe.capture_status(stream),
            lambda: probe.capture_begin(stream),
            lambda: probe.copy(memory, memory, 8, 0, 0, stream),
        ):
            assert refusal(call).status == Status.INVALID
        with pytest.raises(DeviceError, match="destroyed"):
            device.memset_async(memory, 0, 8, stream)


class TestCapture:
    @pytest.fixture(autouse=True)
    def warm(self, device, memory):
        device.memset_async(memory, 0, SIZE)
        device.synchronize()

    def test_a_launched_graph_does_the_captured_work(self, device, stream, memory):
        device.begin_capture(stream)
        device.memset_async(memory, 3, SIZE, stream)
        graph = device.end_capture(stream)
        assert graph.node_count == 1
        assert device.copy_to_host(memory, 1) == b"\0"

        for _ in range(2):
            device.memset_async(memory, 0, SIZE, stream)
            graph.replay(stream)
            device.synchronize(stream)
            assert device.copy_to_host(memory, 1) == b"\3"

    def test_a_destroyed_graph_cannot_be_launched(self, device, stream):
        device.begin_capture(stream)
        graph = device.end_capture(stream)
        graph.destroy()
        graph.destroy()
        assert graph.handle == 0
        for use in (graph.instantiate, lambda: graph.replay(stream), lambda: graph.node_count):
            with pytest.raises(DeviceError, match="destroyed"):
                use()

    def test_forks_and_joins_are_edges_of_the_graph(self, device, probe, streams, memory):
        origin, *branches = streams(4)
        device.begin_capture(origin)
        device.memset_async(memory, 1, 8, origin)
        (fork,) = probe.capture_terminals(origin)
        ends = set()
        for at, branch in enumerate(branches):
            device.wait(branch, on=origin)
            device.memset_async(memory + 16 * at, 2, 8, branch)
            (end,) = probe.capture_terminals(branch)
            assert probe.node_predecessors(end) == (fork,)
            ends.add(end)
        for branch in branches:
            device.wait(origin, on=branch)
        device.memset_async(memory, 3, 8, origin)
        (join,) = probe.capture_terminals(origin)
        # A driver may omit the edge that the others imply.
        assert set(probe.node_predecessors(join)) - {fork} == ends
        assert device.end_capture(origin).node_count == 5

    def test_a_node_can_have_many_predecessors(self, device, probe, streams, memory):
        origin, *branches = streams(21)
        device.begin_capture(origin)
        device.memset_async(memory, 1, 8, origin)
        for at, branch in enumerate(branches):
            device.wait(branch, on=origin)
            device.memset_async(memory + 16 * at, 2, 8, branch)
        for branch in branches:
            device.wait(origin, on=branch)
        assert len(probe.capture_terminals(origin)) >= 20
        device.memset_async(memory, 3, 8, origin)
        (join,) = probe.capture_terminals(origin)
        assert len(set(probe.node_predecessors(join))) >= 20
        device.end_capture(origin)

    def test_a_fork_that_is_not_joined_breaks_the_capture_and_frees_the_streams(self, device, probe, streams, memory):
        origin, branch = streams(2)
        device.begin_capture(origin)
        device.memset_async(memory, 1, 8, origin)
        device.wait(branch, on=origin)
        device.memset_async(memory, 2, 8, branch)
        assert refusal(probe.capture_end, origin).status == Status.DEVICE_ERROR
        assert probe.capture_status(origin) == probe.capture_status(branch) == 0
        assert probe.stream_query(branch)

    def test_memory_from_the_device_spoils_a_strict_capture(self, device, probe, stream):
        device.begin_capture(stream)
        assert refusal(probe.segment_allocate, SIZE).status == Status.DEVICE_ERROR
        assert probe.capture_status(stream) == 0
        assert probe.capture_terminals(stream) == ()
        assert refusal(probe.capture_end, stream).status == Status.DEVICE_ERROR
        assert probe.stream_query(stream)

    def test_relaxed_capture_ends_with_the_outermost_request_for_it(self, device, probe, stream):
        device.begin_capture(stream)
        probe.capture_relaxed(True)
        probe.capture_relaxed(True)
        probe.capture_relaxed(False)
        probe.segment_free(probe.segment_allocate(SIZE), SIZE)
        page = probe.granularity()
        probe.chunk_release(probe.chunk_create(page), page)
        probe.capture_relaxed(False)
        assert refusal(probe.segment_allocate, SIZE).status == Status.DEVICE_ERROR
        refusal(probe.capture_end, stream)

    def test_other_threads_may_allocate_during_a_capture(self, device, probe, stream, memory):
        device.begin_capture(stream)
        device.memset_async(memory, 1, 8, stream)
        with ThreadPoolExecutor(1) as thread:
            address = thread.submit(probe.segment_allocate, SIZE).result()
        assert device.end_capture(stream).node_count == 1
        probe.segment_free(address, SIZE)

    def test_a_stream_can_be_made_during_a_capture(self, device, streams, stream, memory):
        device.destroy_stream(device.create_stream())
        device.begin_capture(stream)
        device.memset_async(memory, 1, 8, stream)
        streams(1)
        assert device.end_capture(stream).node_count == 1

    def test_a_stream_in_a_capture_cannot_be_destroyed(self, device, probe, stream):
        capture = device.begin_capture(stream)
        refused = refusal(probe.stream_destroy, stream)
        assert refused.status == Status.DEVICE_ERROR
        assert "captured" in refused.text
        assert device.capture_of(stream) == capture
        device.end_capture(stream)

    def test_the_default_stream_is_in_no_capture(self, device, probe, stream):
        device.begin_capture(stream)
        assert probe.capture_status(0) == 0
        assert probe.capture_terminals(0) == ()
        assert refusal(probe.capture_begin, 0).status != Status.OK
        with suppress(StatusError):
            probe.graph_destroy(probe.capture_end(stream))


class TestMemory:
    def test_a_chunk_cannot_be_released_twice(self, probe):
        page = probe.granularity()
        chunk = probe.chunk_create(page)
        probe.chunk_release(chunk, page)
        assert refusal(probe.chunk_release, chunk, page).status == Status.INVALID
        assert refusal(probe.chunk_export, chunk, Share.DESCRIPTOR).status == Status.INVALID

    def test_one_chunk_at_two_addresses_is_seen_by_the_device(self, device, probe, stream):
        page = probe.granularity()
        base = probe.range_reserve(2 * page)
        chunk = probe.chunk_create(page)
        for address in (base, base + page):
            probe.map(address, page, chunk)
            probe.set_access(address, page, device.index)
        device.memset_async(base, 9, page, stream)
        device.synchronize(stream)
        assert device.copy_to_host(base + page, 4) == b"\t\t\t\t"
        probe.unmap(base, 2 * page)
        probe.chunk_release(chunk, page)
        probe.range_release(base, 2 * page)

    def test_a_failed_step_is_reported_in_the_words_of_the_driver(self, probe):
        assert "OUT_OF_MEMORY" in refusal(probe.segment_allocate, 1 << 60).text
        probe.clear_error()
        assert probe.describe() == ""

    def test_pinned_memory_is_copied_in_stream_order(self, device, probe, stream, memory):
        pinned = probe.pinned_allocate(4096)
        ctypes.memmove(pinned, b"from the host", 13)
        with device.hold(stream):
            probe.copy(memory, pinned, 13, device.index, device.index, stream)
            probe.copy(pinned + 100, memory, 13, device.index, device.index, stream)
            ctypes.memmove(pinned, b"From", 4)
        device.synchronize(stream)
        assert device.copy_to_host(memory, 13) == b"From the host"
        assert ctypes.string_at(pinned + 100, 13) == b"From the host"
        probe.pinned_free(pinned)
        assert refusal(probe.pinned_free, pinned).status == Status.INVALID

    def test_a_handle_of_the_wrong_length_is_refused(self, probe):
        assert refusal(probe.segment_import, b"short").status == Status.INVALID
        assert refusal(probe.chunk_import, Share.DESCRIPTOR, b"short", SIZE).status == Status.INVALID
        assert refusal(probe.chunk_import, Share.IPC, bytes(64), SIZE).status == Status.UNSUPPORTED


def run_process(body, *arguments, descriptors=()):
    """Return what a new process prints that has `device`, `probe` and `sys.argv`."""
    opening = (
        "import sys\n"
        "from allotment._devices.cuda.device import CudaDevice\n"
        "from allotment._core.contract.probe import Probe, Share\n"
        "device = CudaDevice(0)\n"
        "probe = Probe(device)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", opening + body, *arguments], capture_output=True, text=True, pass_fds=descriptors
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestSharing:
    def test_a_segment_is_shared_with_another_process(self, device, probe, memory):
        device.copy_from_host(memory, b"from the parent")
        handle = probe.segment_export(memory)
        seen = run_process(
            "base = probe.segment_import(bytes.fromhex(sys.argv[1]))\n"
            "print(device.copy_to_host(base, 15).decode())\n"
            "device.copy_from_host(base, b'from the child!')\n"
            "probe.segment_close(base)\n",
            handle.hex(),
        )
        assert seen == "from the parent"
        assert device.copy_to_host(memory, 15) == b"from the child!"

    def test_a_chunk_is_shared_with_another_process_by_descriptor(self, device, probe):
        page = probe.granularity()
        base = probe.range_reserve(page)
        chunk = probe.chunk_create(page)
        probe.map(base, page, chunk)
        probe.set_access(base, page, device.index)
        device.copy_from_host(base, b"in a chunk")
        try:
            descriptor = int.from_bytes(probe.chunk_export(chunk, Share.DESCRIPTOR), sys.byteorder)
        except StatusError as error:
            pytest.skip(f"this machine shares no chunks by descriptor: {error.text}")
        seen = run_process(
            "page = probe.granularity()\n"
            "handle = int(sys.argv[1]).to_bytes(4, sys.byteorder)\n"
            "chunk = probe.chunk_import(Share.DESCRIPTOR, handle, page)\n"
            "base = probe.range_reserve(page)\n"
            "probe.map(base, page, chunk)\n"
            "probe.set_access(base, page, device.index)\n"
            "print(device.copy_to_host(base, 10).decode())\n",
            str(descriptor),
            descriptors=(descriptor,),
        )
        assert seen == "in a chunk"
        probe.unmap(base, page)
        probe.chunk_release(chunk, page)
        probe.range_release(base, page)


class TestPeers:
    @pytest.fixture
    def peer(self, device, probe):
        if Capability.PEERS not in probe.capabilities:
            pytest.skip("there is only one CUDA device")
        return type(device)(1)

    def test_access_can_be_given_more_than_once(self, probe, peer):
        probe.peer_enable(peer.index)
        probe.peer_enable(peer.index)
        probe.peer_enable(probe.device.index)

    def test_chunks_are_opened_to_a_peer(self, device, probe, peer):
        probe.peer_enable(peer.index)
        page = probe.granularity()
        base = probe.range_reserve(page)
        chunk = probe.chunk_create(page)
        probe.map(base, page, chunk)
        for index in (device.index, peer.index):
            probe.set_access(base, page, index)
        device.copy_from_host(base, b"peer")
        assert peer.copy_to_host(base, 4) == b"peer"
        probe.unmap(base, page)
        probe.chunk_release(chunk, page)
        probe.range_release(base, page)

    def test_memory_is_copied_between_devices(self, device, probe, peer, memory):
        there = Probe(peer).segment_allocate(SIZE)
        peer.copy_from_host(there, b"there")
        probe.copy(memory, there, 5, device.index, peer.index)
        device.synchronize(0)
        assert device.copy_to_host(memory, 5) == b"there"
        Probe(peer).segment_free(there, SIZE)

    def test_a_device_that_is_not_there_is_invalid(self, probe, peer, memory):
        assert refusal(probe.peer_enable, 1000).status == Status.INVALID
        assert refusal(probe.copy, memory, memory, 8, 0, 1000).status == Status.INVALID
        assert refusal(probe.copy, memory, memory, 8, 1000, 0).status == Status.INVALID


class TestWithTorch:
    @pytest.fixture
    def torch(self):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if not torch.cuda.is_available():
            pytest.skip("this PyTorch sees no GPU")
        return torch

    def test_memory_and_streams_are_shared_with_torch(self, torch, device, probe, memory):
        tensor = torch.arange(16, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        probe.copy(memory, tensor.data_ptr(), 16, device.index, device.index, stream.cuda_stream)
        event = probe.event_create()
        probe.event_record(event, stream.cuda_stream)
        probe.event_synchronize(event)
        assert device.copy_to_host(memory, 16) == bytes(range(16))

    def test_a_capture_of_torch_is_seen(self, torch, device, probe):
        tensor = torch.zeros(16, device="cuda:0")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream().cuda_stream
            tensor.add_(1)
            assert probe.capture_status(stream) != 0
            assert len(probe.capture_terminals(stream)) == 1
        assert probe.capture_status(stream) == 0
