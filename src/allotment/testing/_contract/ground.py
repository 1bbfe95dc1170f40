"""The base of all parts of the suite. Its tests call a device only through its contract table."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_any
from contextlib import contextmanager, suppress
from typing import TypeVar

import pytest

from allotment._core.contract.probe import Capability, Probe, Status, StatusError
from allotment._core.contract.table import Device

Busy = Callable[[int], Callable[[], object]]

MORE_THAN_ANY_DEVICE = 1 << 60

Test = TypeVar("Test", bound=Callable[..., object])


def on_threads(test: Test) -> Test:
    """Mark a test that starts threads, without requiring users to register a marker."""
    vars(test)["runs_threads"] = True
    return test


class Ground:
    """The base of all parts of the suite: what a device's tests supply, fixtures, and shared steps.

    `segment_size` is the size of the segments in the tests.
    """

    segment_size = 2 << 20
    exact_memory_info = False
    """Whether no other process uses the device, and its free memory changes by exactly what is allocated and created.
    """
    notices_empty_unmaps = True
    """Whether the device refuses to unmap where nothing is mapped; a driver may find that there is nothing to do."""

    nests_graphs = True
    """Whether a graph can be launched on a stream that is being captured; a driver may refuse that."""

    # Supplied by a backend's tests.

    @pytest.fixture
    def device(self) -> Device:
        """The device to test; a subclass must supply it."""
        raise NotImplementedError("a contract test needs a `device` fixture")

    def write(self, device: Device, address: int, data: bytes) -> None:
        """Put bytes into device memory."""
        need(Probe(device), Capability.HOST)
        ctypes.memmove(address, data, len(data))

    def read(self, device: Device, address: int, size: int) -> bytes:
        """Bytes of device memory."""
        need(Probe(device), Capability.HOST)
        return ctypes.string_at(address, size)

    def hold(self, device: Device, stream: int) -> Callable[[], object]:
        """Give the stream work that finishes only after a call of the returned function (a second call is harmless).

        Waiting for the stream may itself be what finishes the work.
        """
        pytest.skip("these tests have no way to keep a stream of this device busy")

    def launch(self, device: Device, stream: int) -> None:
        """Give the stream one piece of work that ends by itself: one node, if the stream is being captured."""
        pytest.skip("these tests have no way to give a stream of this device work")

    @pytest.fixture
    def probe(self, device: Device) -> Probe:
        """The operations of its contract table, callable one by one."""
        return Probe(device)

    @pytest.fixture
    def stream(self, probe: Probe) -> Iterator[int]:
        """Handle of a stream."""
        with created_stream(probe) as stream:
            yield stream

    @pytest.fixture
    def other_stream(self, probe: Probe) -> Iterator[int]:
        """Handle of another stream."""
        with created_stream(probe) as stream:
            yield stream

    @pytest.fixture
    def busy(self, device: Device, stream: int, other_stream: int) -> Iterator[Busy]:
        """`hold`, for tests: even a test that fails half-way leaves no stream waiting."""
        finishes = []

        def keep_busy(stream: int) -> Callable[[], object]:
            finishes.append(self.hold(device, stream))
            return finishes[-1]

        yield keep_busy
        for finish in finishes:
            finish()

    @pytest.fixture
    def event(self, probe: Probe) -> int:
        """Handle of an event that was never recorded."""
        need(probe, Capability.EVENTS)
        event: int = probe.event_create()
        return event

    @pytest.fixture
    def page(self, probe: Probe) -> int:
        """Size of the chunks that virtual memory is tested with."""
        need(probe, Capability.VIRTUAL)
        granularity = probe.granularity()
        assert granularity > 0
        page: int = -(-self.segment_size // granularity) * granularity
        return page

    # Steps that several tests share.

    def captured(self, device: Device, probe: Probe, stream: int) -> int:
        """A graph of one piece of work."""
        need(probe, Capability.CAPTURE)
        probe.capture_begin(stream)
        self.launch(device, stream)
        graph: int = probe.capture_end(stream)
        return graph

    def map_with_access(self, probe: Probe, address: int, size: int, chunk: int) -> None:
        """Map a chunk so that the device may touch it."""
        probe.map(address, size, chunk)
        probe.set_access(address, size, probe.device.index)

    def unmap_and_release(self, probe: Probe, address: int, size: int, chunk: int) -> None:
        """The end of a chunk that is mapped once."""
        probe.unmap(address, size)
        probe.chunk_release(chunk, size)

    def wait_for(self, probe: Probe, stream: int) -> None:
        """Wait for a stream, if the device has a way to."""
        if "stream_synchronize" in probe.operations:
            probe.stream_synchronize(stream)

    def assert_lasts(
        self, wait: Callable[[], None], is_ready: Callable[[], bool], finish: Callable[[], object]
    ) -> None:
        """Check that `wait` returns once `finish` was called, and that it is ready then."""

        def is_ready_after_waiting() -> bool:
            wait()
            return is_ready()

        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(is_ready_after_waiting)
            wait_for_any([waiting], timeout=0.05)  # long enough to expose a wait that returns too early
            finish()
            assert waiting.result()

    def need_exact_memory_info(self, probe: Probe) -> None:
        """Skip the test unless free memory changes only by what is allocated."""
        need_operation(probe, "memory_info")
        if not self.exact_memory_info:
            pytest.skip("the free memory of this device also moves for other reasons")


def need(probe: Probe, capability: Capability) -> None:
    if capability not in probe.capabilities:
        pytest.skip(f"{probe.device.name} lacks the capability {capability.name}")


def need_operation(probe: Probe, operation: str) -> None:
    if operation not in probe.operations:
        pytest.skip(f"{probe.device.name} lacks the operation {operation}")


@contextmanager
def created_stream(probe: Probe) -> Iterator[int]:
    need(probe, Capability.EVENTS)
    need_operation(probe, "stream_create")
    stream = probe.stream_create()
    yield stream
    with suppress(StatusError):  # the test may have destroyed it
        probe.stream_destroy(stream)


def refusal(call: Callable[..., object], *arguments: object) -> Status:
    """Return the status of a call that must fail."""
    with pytest.raises(StatusError) as caught:
        call(*arguments)
    return caught.value.status
