"""Host streams at the limits of a process's life: fork, exit, threads that start and end."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._devices.host.device import HostDevice
from allotment._devices.streams import Stream
from allotment.errors import StreamError
from helpers.child import PATIENCE
from helpers.forked import fork_past_python, goes_well_in_child

pytestmark = pytest.mark.threads
TOUCHED = 8 << 20


@pytest.fixture
def device():
    return HostDevice()


PRELUDE = """
import os, sys, threading
from allotment._devices.host.device import HostDevice
from allotment._devices.streams import Stream
device = HostDevice()
stream = Stream(device)
"""


def run(script: str, first: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", first + PRELUDE + script], capture_output=True, text=True, timeout=PATIENCE
    )


# Ctrl-C.


@pytest.mark.parametrize("waiting", ["stream.synchronize()", "event.synchronize()"])
def test_a_wait_for_a_stream_answers_ctrl_c(waiting):
    script = f"""
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background jobs are started without one
gate = threading.Event()
stream = Stream(device)
stream.submit(gate.wait)
event = stream.record()
threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
try:
    {waiting}
except KeyboardInterrupt:
    print("interrupted")
gate.set()
stream.synchronize()
"""
    done = run(script)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


# Fork.


def test_streams_of_the_parent_are_dead_in_the_child(device):
    stream = Stream(device)
    stream.submit(int)
    stream.synchronize()

    def use():
        probe, event = Probe(device), Probe(device).event_create()
        for call in (
            lambda: probe.stream_query(stream.handle),
            lambda: probe.stream_synchronize(stream.handle),
            lambda: probe.stream_wait(stream.handle, event),
            lambda: probe.capture_begin(stream.handle),
        ):
            with pytest.raises(StatusError) as caught:
                call()
            assert caught.value.status == Status.INVALID
            assert "forked" in caught.value.text
        probe.event_record(event, stream.handle)  # this process has no work left on it
        assert probe.event_query(event)
        with pytest.raises(StreamError, match="forked"):
            stream.submit(int)
        with pytest.raises(StreamError, match="forked"):
            stream.synchronize()
        stream.destroy()

    assert goes_well_in_child(use)
    stream.submit(int)
    stream.synchronize()


@pytest.mark.parametrize("fork", [os.fork, fork_past_python])
def test_new_streams_and_the_default_stream_work_in_the_child(device, fork):
    for stream in (Stream(device), Stream.default(device)):
        stream.submit(int)
        stream.synchronize()  # a worker inside malloc or Python would leave locked locks in the child

    def use():
        done = []
        for stream in (Stream(device), Stream.default(device)):
            stream.submit(done.append, stream.handle)
            event = stream.record()
            event.synchronize()
            stream.synchronize()
            assert stream.query()
        assert len(done) == 2
        Probe(device).device_synchronize()

    assert goes_well_in_child(use, fork)
    Probe(device).device_synchronize()


def test_work_of_the_parent_is_done_once_and_in_the_parent(device):
    stream, gate, done = Stream(device), threading.Event(), []
    stream.submit(gate.wait)
    stream.submit(done.append, 1)
    event = stream.record()

    def use():
        assert event.query(), "nothing in this process will touch what the event guards"
        event.synchronize()
        Probe(device).device_synchronize()
        gate.set()
        assert done == []

    assert goes_well_in_child(use)
    assert not event.query()
    gate.set()
    stream.synchronize()
    assert done == [1]


def test_a_capture_of_the_parent_is_not_one_of_the_child(device):
    stream, done = Stream(device), []
    device.begin_capture(stream)
    stream.submit(done.append, 1)
    event = stream.record()

    def use():
        probe = Probe(device)
        with pytest.raises(StatusError):
            probe.event_query(event.handle)
        probe.device_synchronize()
        own = Stream(device)
        device.begin_capture(own)
        own.submit(done.append, 2)
        graph = device.end_capture(own)
        graph.replay(own)
        own.synchronize()
        assert done == [2]

    assert goes_well_in_child(use)
    graph = device.end_capture(stream)
    graph.replay(stream)
    stream.synchronize()
    assert done == [1]


def test_forks_in_the_middle_of_work_leave_every_lock_in_order(device):
    streams = [Stream(device) for _ in range(3)]
    stop, probe = threading.Event(), Probe(device)

    def keep_busy(stream):
        while not stop.is_set():
            stream.submit(int)
            stream.record().synchronize()
            probe.chunk_release(probe.chunk_create(4096), 4096)
            probe.segment_free(probe.segment_allocate(4096), 4096)

    def keep_giving_back(address):
        # A release of touched pages holds the lock longest.
        while not stop.is_set():
            chunk = probe.chunk_create(TOUCHED)
            probe.map(address, TOUCHED, chunk)
            probe.set_access(address, TOUCHED, 0)
            ctypes.memset(address, 1, TOUCHED)
            probe.unmap(address, TOUCHED)
            probe.chunk_release(chunk, TOUCHED)

    def use():
        signal.alarm(PATIENCE)  # a child that waits for ever is killed, which fails the test
        stream = Stream(device)
        stream.submit(int)
        stream.synchronize()
        probe.chunk_release(probe.chunk_create(4096), 4096)
        probe.segment_free(probe.segment_allocate(4096), 4096)

    threads = [threading.Thread(target=keep_busy, args=(stream,)) for stream in streams]
    threads.append(threading.Thread(target=keep_giving_back, args=(probe.range_reserve(TOUCHED),)))
    for thread in threads:
        thread.start()
    try:
        assert all(goes_well_in_child(use) for _ in range(40))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_child_of_a_child_works_too(device):
    def use():
        stream = Stream(device)
        stream.submit(int)
        stream.synchronize()

    assert goes_well_in_child(lambda: [use(), goes_well_in_child(use) or 1 / 0])


def test_a_function_may_fork(device):
    stream, result = Stream(device), []

    def use():
        own = Stream(device)
        own.submit(int)
        own.synchronize()

    stream.submit(lambda: result.append(goes_well_in_child(use)))
    stream.synchronize()
    assert result == [True]


def test_a_child_ends_normally_at_the_end_of_its_program():
    finished = run(
        "import warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # newer Pythons warn of any fork beside threads\n"
        "stream.submit(int)\n"
        "child = os.fork()\n"
        "Stream(device).submit(os.write, 1, b'child ' if child == 0 else b'parent ')\n"  # two processes, one pipe
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert sorted(finished.stdout.split()) == ["child", "parent"]


# Exit.


def test_work_still_queued_is_finished_before_the_process_ends():
    finished = run(
        "gate = threading.Event()\n"
        "stream.submit(gate.wait)\n"
        "for number in range(3): stream.submit(print, number)\n"
        "other = Stream(device)\n"
        "other.wait(stream.record())\n"
        "other.submit(print, 'last')\n"
        "threading.Timer(0.05, gate.set).start()\n"
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.split() == ["0", "1", "2", "last"]


def test_work_may_submit_more_work_at_the_end():
    finished = run(
        "def again(number):\n"
        "    print(number)\n"
        "    if number < 3: stream.submit(again, number + 1)\n"
        "stream.submit(again, 0)\n"
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.split() == ["0", "1", "2", "3"]


def test_after_the_end_streams_take_no_more_work_but_can_be_asked():
    finished = run(
        "event = stream.record()\n",
        first="import atexit\n"
        "@atexit.register\n"  # the first registered is called last
        "def late():\n"
        "    print(stream.query(), event.query())\n"
        "    for late_stream in (stream, Stream.default(HostDevice())):\n"
        "        try: late_stream.submit(int)\n"
        "        except Exception as error: print(error)\n",
    )
    assert finished.returncode == 0
    assert "True True" in finished.stdout
    assert finished.stdout.count("the interpreter is ending") == 2


def test_an_exception_that_was_never_raised_is_shown_at_the_end():
    finished = run("stream.submit(int, 'not a number')\n")
    assert finished.returncode == 0
    assert "ValueError" in finished.stderr


def test_ctrl_c_ends_the_wait_at_the_end():
    script = (
        # A program that was started in the background ignores SIGINT.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "stream.submit(lambda: print('started', flush=True))\nstream.submit(threading.Event().wait)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout.readline() == "started\n"
            deadline = time.monotonic() + 60
            while program.poll() is None and time.monotonic() < deadline:
                program.send_signal(signal.SIGINT)
                time.sleep(0.05)
            assert program.poll() is not None
        finally:
            program.kill()


def test_objects_that_outlive_the_interpreter_do_no_harm():
    finished = run(
        "stream.submit(int)\n"
        "event = stream.record()\n"
        "device.begin_capture(stream)\n"
        "stream.submit(int)\n"
        "graph = device.end_capture(stream)\n"
        "sys.keep = [event, graph, stream, device]\n"
        "sys.keep.append(sys.keep)\n"
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


# Workers.


def test_an_idle_worker_ends_and_the_next_work_starts_another(device):
    stream = Stream(device)
    first = worker_of(stream)
    assert is_thread(first)
    wait_until(lambda: not is_thread(first))
    assert worker_of(stream) != first


def test_the_worker_of_a_destroyed_stream_ends(device):
    streams = [Stream(device) for _ in range(5)]
    workers = [worker_of(stream) for stream in streams]
    assert len(set(workers)) == 5
    for stream in streams:
        stream.destroy()
    wait_until(lambda: not any(is_thread(worker) for worker in workers))


def test_workers_of_a_collected_device_end():
    device = HostDevice()
    workers = [worker_of(Stream(device)) for _ in range(3)]
    del device
    wait_until(lambda: not any(is_thread(worker) for worker in workers))


def worker_of(stream: Stream) -> int:
    """Return the system's id of the thread that runs the stream's work."""
    numbers: list[int] = []
    stream.submit(lambda: numbers.append(threading.get_native_id()))
    stream.synchronize()
    return numbers[0]


def is_thread(number: int) -> bool:
    return os.path.exists(f"/proc/self/task/{number}")


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
