"""Streams of the host: order, waiting, exceptions. The contract tests check what all devices' streams do."""

import ctypes
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._devices.host.device import HostDevice
from allotment._devices.streams import Stream
from allotment.errors import DeviceError, StreamError

pytestmark = pytest.mark.threads


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def gate():
    """An event to wait for; it is always set at the end."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def unraisable(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_value))
    return reported


class Failure(Exception):
    pass


def fail(number=1):
    raise Failure(number)


def test_functions_run_in_the_order_they_were_submitted(device):
    stream, done = Stream(device), []
    for number in range(1000):
        stream.submit(done.append, number)
    stream.synchronize()
    assert done == list(range(1000))


def test_a_stream_has_a_thread_of_its_own(device):
    streams = [Stream.default(device), Stream(device), Stream(device)]
    meeting = threading.Barrier(len(streams) + 1)
    for stream in streams:
        stream.submit(meeting.wait)
    meeting.wait()  # this returns only if all of them run at once
    for stream in streams:
        stream.synchronize()


def test_functions_of_one_stream_share_a_thread_and_its_local_data(device):
    stream, local, seen = Stream(device), threading.local(), []

    def count():
        local.count = getattr(local, "count", 0) + 1
        seen.append((threading.get_ident(), local.count))

    for _ in range(5):
        stream.submit(count)
    stream.synchronize()
    assert [number for _, number in seen] == [1, 2, 3, 4, 5]
    assert {thread for thread, _ in seen} != {threading.get_ident()}


def test_waiting_lets_other_threads_of_python_run(device, gate):
    stream = Stream(device)
    stream.submit(gate.wait)
    threading.Timer(0.01, gate.set).start()
    stream.synchronize()
    assert gate.is_set()


def test_arguments_are_dropped_before_the_next_work_begins(device):
    class Thing:
        pass

    stream, thing = Stream(device), Thing()
    watched = weakref.ref(thing)
    stream.submit(id, thing)
    del thing
    stream.submit(int)
    stream.synchronize()
    assert watched() is None


def test_an_exception_is_raised_by_the_next_synchronize_and_only_there(device):
    stream, done = Stream(device), []
    stream.submit(fail)
    stream.submit(done.append, "later work")
    with pytest.raises(Failure):
        stream.synchronize()
    assert done == ["later work"]
    stream.synchronize()
    assert stream.query()


def test_an_exception_is_raised_by_waiting_for_an_event_of_its_stream(device):
    stream, other = Stream(device), Stream(device)
    stream.submit(fail)
    other.record().synchronize()
    event = stream.record()
    with pytest.raises(Failure):
        event.synchronize()
    stream.synchronize()


def test_waiting_through_the_contract_leaves_the_exception_to_the_user(device):
    stream = Stream(device)
    stream.submit(fail)
    Probe(device).stream_synchronize(stream.handle)
    Probe(device).device_synchronize()
    with pytest.raises(Failure):
        stream.synchronize()


def test_the_first_of_several_exceptions_is_raised_and_the_others_are_reported(device, unraisable):
    stream = Stream(device)
    for number in (1, 2, 3):
        stream.submit(fail, number)
    with pytest.raises(Failure, match="1"):
        stream.synchronize()
    assert [error.args for error in unraisable] == [(2,), (3,)]


def test_even_an_interrupt_in_a_function_is_the_callers_to_handle(device):
    def interrupt():
        raise KeyboardInterrupt

    stream = Stream(device)
    stream.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        stream.synchronize()


def test_an_exception_that_can_no_longer_be_raised_is_reported(device, gate, unraisable):
    before, after = Stream(device), Stream(device)
    before.submit(fail, "before")
    Probe(device).device_synchronize()
    before.destroy()
    assert [error.args for error in unraisable] == [("before",)]

    after.submit(gate.wait)
    after.submit(fail, "after")
    after.destroy()
    gate.set()
    Probe(device).device_synchronize()
    assert [error.args for error in unraisable] == [("before",), ("after",)]


def test_work_of_a_destroyed_stream_is_still_done(device, gate):
    stream, done = Stream(device), []
    stream.submit(gate.wait)
    stream.submit(done.append, "last")
    event = stream.record()
    stream.destroy()
    assert not event.query()
    gate.set()
    event.synchronize()
    assert done == ["last"]


def test_events_of_a_destroyed_stream_stay_done_when_its_place_is_used_again(device, gate):
    probe = Probe(device)
    stream = Stream(device)
    stream.submit(int)
    event = stream.record()
    event.synchronize()
    stale = stream.handle
    stream.destroy()
    heirs = [Stream(device) for _ in range(3)]
    for heir in heirs:
        heir.submit(gate.wait)
    assert event.query()
    assert stale not in [heir.handle for heir in heirs]
    with pytest.raises(StatusError) as caught:
        probe.stream_query(stale)
    assert caught.value.status == Status.INVALID
    gate.set()


@pytest.mark.parametrize("handle", [1, 2, 1 << 32, (1 << 64) - 1, 0x7F0012345678])
def test_a_made_up_handle_is_invalid(device, handle):
    probe = Probe(device)
    Stream(device)
    event = probe.event_create()
    for call in (
        lambda: probe.stream_query(handle),
        lambda: probe.stream_synchronize(handle),
        lambda: probe.event_record(event, handle),
        lambda: probe.event_query(handle),
        lambda: probe.event_destroy(handle),
        lambda: probe.capture_status(handle),
        lambda: probe.copy(1, 1, 1, 0, 0, handle),
    ):
        with pytest.raises(StatusError) as caught:
            call()
        assert caught.value.status == Status.INVALID
        assert hex(handle) in caught.value.text
    with pytest.raises(StreamError, match=hex(handle)):
        device.submit(handle, int)


def test_a_destroyed_event_is_invalid(device):
    probe = Probe(device)
    event = probe.event_create()
    probe.event_destroy(event)
    for call in (probe.event_query, probe.event_synchronize, probe.event_destroy):
        with pytest.raises(StatusError) as caught:
            call(event)
        assert caught.value.status == Status.INVALID
    assert probe.event_create() != event


def test_the_default_stream_cannot_be_destroyed(device):
    with pytest.raises(StatusError) as caught:
        Probe(device).stream_destroy(0)
    assert caught.value.status == Status.INVALID


def test_a_function_that_waits_for_its_own_stream_gets_an_error(device):
    stream = Stream(device)
    event = stream.record()

    def wait_for_own():
        event.synchronize()  # recorded before this function: nothing to wait for
        stream.synchronize()

    stream.submit(wait_for_own)
    with pytest.raises(DeviceError, match="for itself"):
        stream.synchronize()


def test_a_function_may_submit_and_wait_elsewhere(device):
    stream, other, done = Stream(device), Stream(device), []

    def work():
        other.submit(done.append, "other")
        other.synchronize()
        stream.submit(done.append, "own, later")

    stream.submit(work)
    stream.synchronize()
    stream.synchronize()
    assert done == ["other", "own, later"]


def test_waiting_for_an_event_takes_no_thread_when_there_is_nothing_to_wait_for(device):
    stream, other = Stream(device), Stream(device)
    before = native_threads()
    event = stream.record()
    other.wait(event)
    other.synchronize()
    assert event.query()
    assert native_threads() <= before  # workers of other tests may still be ending


def test_many_streams_can_wait_for_one_event(device, gate):
    first, done = Stream(device), []
    first.submit(gate.wait)
    event = first.record()
    others = [Stream(device) for _ in range(20)]
    for number, stream in enumerate(others):
        stream.wait(event)
        stream.submit(done.append, number)
    assert not any(stream.query() for stream in others)
    assert done == []
    gate.set()
    for stream in others:
        stream.synchronize()
    assert sorted(done) == list(range(20))


def test_a_device_is_dropped_while_its_streams_still_work(gate):
    device, done = HostDevice(), []
    watched = weakref.ref(device)
    handle = Stream(device).handle
    device.submit(handle, gate.wait)
    finished = threading.Event()
    device.submit(handle, done.append, ("last",))
    device.submit(handle, finished.set)
    del device
    gc.collect()
    assert watched() is None
    gate.set()
    assert finished.wait(60)
    assert done == ["last"]


def test_a_device_can_be_dropped_by_its_own_worker():
    device, finished = HostDevice(), threading.Event()
    stream = Stream(device)
    weakref.finalize(device, finished.set)
    gate = threading.Event()
    stream.submit(lambda: (stream, gate.wait()))
    stream = device = None
    gate.set()
    gc.collect()
    assert finished.wait(60)


def test_submitting_what_cannot_be_called_is_an_error_at_once(device):
    with pytest.raises(TypeError, match="int"):
        Stream(device).submit(3)


def test_many_threads_may_submit_to_one_stream(device):
    stream, done = Stream(device), []
    with ThreadPoolExecutor(8) as threads:
        for thread in range(8):
            threads.submit(lambda thread=thread: [stream.submit(done.append, (thread, at)) for at in range(200)])
    stream.synchronize()
    assert len(done) == 1600
    for thread in range(8):
        assert [at for who, at in done if who == thread] == list(range(200))


def native_threads() -> int:
    with open("/proc/self/status") as status:
        (count,) = [int(line.split()[1]) for line in status if line.startswith("Threads")]
    return count


def refusal_of(function):
    """Return what the device says if it refuses, else None."""
    try:
        function()
    except DeviceError as error:
        return str(error)
    return None


def test_two_functions_that_wait_for_each_others_streams_do_not_wait_forever(device):
    first, second, refusals = Stream(device), Stream(device), []
    meeting = threading.Barrier(2)

    def wait_for(stream):
        meeting.wait()
        refusals.append(refusal_of(stream.synchronize))

    first.submit(wait_for, second)
    second.submit(wait_for, first)
    first.synchronize()
    second.synchronize()

    assert sum(refusal is not None for refusal in refusals) == 1
    assert any(refusal and "which waits for it" in refusal for refusal in refusals)


def test_a_function_does_not_wait_for_a_stream_whose_queue_waits_for_the_function(device, gate):
    first, second, middle, refusals = Stream(device), Stream(device), Stream(device), []
    second.submit(gate.wait)
    first.submit(lambda: (gate.wait(), refusals.append(refusal_of(second.synchronize))))
    middle.wait(first.record())
    second.wait(middle.record())
    gate.set()
    first.synchronize()

    assert refusals[0] is not None and "which waits for it" in refusals[0]


def test_memory_stays_while_work_behind_a_function_may_use_it(device, gate):
    stream, probe, refusals = Stream(device), Probe(device), []
    segment = probe.segment_allocate(1 << 20, 0)

    def free_segment():
        gate.wait()
        try:
            probe.segment_free(segment, 1 << 20)
        except StatusError as error:
            refusals.append(error)

    stream.submit(free_segment)
    stream.submit(ctypes.memset, segment, 1, 1 << 20)
    gate.set()
    stream.synchronize()

    assert len(refusals) == 1
    probe.segment_free(segment, 1 << 20)
