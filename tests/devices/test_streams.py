"""Streams and events as users see them, on a device written in Python."""

import gc
import threading
import weakref

import pytest

import allotment
from allotment._devices.python.backend import Backend
from allotment._devices.streams import Event, Stream
from allotment.errors import DeviceError, StreamError, UnsupportedError
from helpers.queue_device import QueueDevice

pytestmark = pytest.mark.threads


@pytest.fixture
def device():
    return QueueDevice()


class Plain(Backend):
    """A device that can only allocate."""

    def allocate(self, size, stream):
        raise MemoryError

    def free(self, address, size):
        raise AssertionError


class FakeAllocator:
    def __init__(self, device):
        self.device = device


def test_a_stream_is_made_on_a_device_or_on_an_allocator(device):
    stream = Stream(FakeAllocator(device))
    assert stream.device is device
    assert stream.handle not in (0, Stream(device).handle)


@pytest.mark.parametrize("wrong", [None, "host", 3, object()])
def test_a_stream_is_not_made_on_anything_else(wrong):
    with pytest.raises(TypeError, match=type(wrong).__name__):
        Stream(wrong)


def test_the_default_stream_has_handle_0_and_is_not_destroyed(device):
    stream = Stream.default(device)
    assert stream.handle == 0
    assert stream.query()
    stream.synchronize()
    with pytest.raises(StreamError, match="default"):
        stream.destroy()
    assert stream.handle == 0


def test_an_event_is_done_when_the_work_before_it_is(device):
    stream = Stream(device)
    work = device.hold(stream.handle)
    event = stream.record()
    assert event.stream is stream
    assert event.device is device
    assert not event.query()
    assert not stream.query()
    work.release()
    assert event.query()
    assert stream.query()


def test_a_stream_waits_for_an_event(device):
    stream, other = Stream(device), Stream(device)
    work = device.hold(stream.handle)
    other.wait(stream.record())
    assert not other.query()
    work.release()
    other.synchronize()
    assert other.query()


def test_a_destroyed_stream_cannot_be_used(device):
    stream, other = Stream(device), Stream(device)
    event = other.record()
    stream.destroy()
    stream.destroy()
    for use in (
        stream.query,
        stream.synchronize,
        stream.record,
        lambda: stream.wait(event),
        lambda: stream.submit(int),
        lambda: stream.handle,
    ):
        with pytest.raises(StreamError, match="destroyed"):
            use()
    assert "destroyed" in repr(stream)


def test_an_event_outlives_the_stream_it_was_recorded_on(device):
    stream = Stream(device)
    event = stream.record()
    stream.destroy()
    assert event.query()
    event.synchronize()
    Stream(device).wait(event)


def test_a_stream_does_not_wait_for_another_devices_event(device):
    with pytest.raises(StreamError, match="queue"):
        Stream(device).wait(Stream(QueueDevice()).record())
    with pytest.raises(TypeError):
        Stream(device).wait(None)


def test_a_dropped_event_is_destroyed_and_a_dropped_stream_is_not(device):
    stream = Stream(device)
    handle = stream.handle
    event = stream.record()
    event_handle = event.handle
    device.event_query(event_handle)
    del event, stream
    with pytest.raises(KeyError):
        device.event_query(event_handle)
    assert device.stream_query(handle)


def test_an_event_in_a_garbage_cycle_is_destroyed_before_its_device_goes():
    destroyed = []

    class Watching(QueueDevice):
        def event_destroy(self, event):
            destroyed.append(event)
            super().event_destroy(event)

    device = Watching()
    event = Stream(device).record()
    handle, watched = event.handle, weakref.ref(device)
    device.event_that_keeps_it_alive = event
    del event, device
    gc.collect()
    assert destroyed == [handle]
    assert watched() is None


def test_streams_are_equal_when_they_are_the_same_stream(device):
    assert Stream.default(device) == Stream.default(device)
    assert len({Stream.default(device), Stream.default(device), Stream(device)}) == 2
    assert Stream.default(device) != Stream.default(QueueDevice())
    assert Stream(device) != 0


def test_what_the_device_lacks_is_unsupported():
    device = Plain()
    with pytest.raises(UnsupportedError, match="stream_create"):
        Stream(device)
    stream = Stream.default(device)
    for use in (stream.query, stream.synchronize, stream.record, lambda: stream.submit(int)):
        with pytest.raises(UnsupportedError):
            use()


def test_submitting_needs_a_device_that_can_run_functions(device):
    with pytest.raises(UnsupportedError, match="submit"):
        Stream(device).submit(int)


def test_a_failure_of_the_device_is_raised_with_its_words():
    class Failing(QueueDevice):
        def stream_synchronize(self, stream):
            raise RuntimeError("the cable is out")

    with pytest.raises(DeviceError, match="the cable is out") as caught:
        Stream(Failing()).synchronize()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_events_are_made_by_recording():
    with pytest.raises(TypeError):
        Event()


def test_waiting_lets_other_threads_run():
    class Slow(QueueDevice):
        def stream_synchronize(self, stream):
            assert gate.wait(60)

    gate = threading.Event()
    threading.Timer(0.01, gate.set).start()
    Stream(Slow()).synchronize()


def test_a_stream_that_is_made_stays_what_it_is():
    first, second = allotment.Allocator("host"), allotment.Allocator("host")
    stream = allotment.Stream(first)
    handle = stream.handle
    with pytest.raises(StreamError, match="exists already"):
        stream.__init__(second)
    assert (stream.device, stream.handle) == (first.device, handle)
    stream.destroy()
