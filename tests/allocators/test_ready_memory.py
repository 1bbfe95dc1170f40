"""Memory that the calling thread may touch at once: the work queued for it is done when the call returns."""

import ctypes
import threading

import numpy as np
import pytest

import allotment
import allotment.numpy

pytestmark = pytest.mark.threads

SIZE = 3 << 20
OLD = 0xAB
PATIENCE = 0.1  # how long queued work waits to be overtaken; only a call that waits for the work takes that long

MADE = {
    "array": lambda alloc, **on: filled(alloc.array(SIZE, "uint8", **on)),
    "zeros": lambda alloc, **on: alloc.zeros(SIZE, "uint8", **on),
    "full": lambda alloc, **on: alloc.full(SIZE, 0, "uint8", **on),
    "like": lambda alloc, **on: filled(alloc.like(np.empty(SIZE, "uint8"), **on)),
}
UNNAMED = {
    **MADE,
    "empty": lambda alloc: filled(np.frombuffer(alloc.empty(SIZE), "uint8")),
    "empty of a tenant": lambda alloc: filled(np.frombuffer(alloc.tenant("t").empty(SIZE), "uint8")),
    "DLPack": lambda alloc: filled(np.from_dlpack(alloc.empty(SIZE))),
}


def filled(array):
    array[:] = 0
    return array


class Overtaken:
    """A block that was freed while its stream has queued work on it; the work begins once it could be overtaken."""

    def __init__(self, alloc, stream):
        self.made = threading.Event()
        self.ran = False
        block = alloc.malloc(SIZE, stream)
        stream.submit(self.work, block)
        alloc.free(block)

    def work(self, block):
        self.made.wait(PATIENCE)
        ctypes.memset(block, OLD, SIZE)
        self.ran = True


@pytest.fixture(params=["torch", "dense"])
def alloc(request):
    with allotment.Allocator("host", settings=f"placement:{request.param}") as made:
        yield made
        made.inspection.check_invariants()


@pytest.fixture
def plain():
    """Make an allocator that NumPy accepts, without shared memory; its entry points keep it from being closed."""
    made = allotment.Allocator("host")
    yield made
    made.inspection.check_invariants()


@pytest.mark.parametrize("how", UNNAMED)
def test_fresh_memory_is_not_overwritten_by_older_work_of_the_default_stream(alloc, how):
    stream = allotment.Stream.default(alloc)
    old = Overtaken(alloc, stream)

    array = UNNAMED[how](alloc)
    old.made.set()
    stream.synchronize()

    assert old.ran and not array.any()


@pytest.mark.parametrize("how", UNNAMED)
def test_fresh_memory_is_not_overwritten_by_work_of_the_stream_that_had_it(alloc, how):
    stream = allotment.Stream(alloc)
    old = Overtaken(alloc, stream)

    array = UNNAMED[how](alloc)
    old.made.set()
    stream.synchronize()

    assert old.ran and not array.any()


@pytest.mark.parametrize("how", MADE)
def test_an_array_for_a_stream_waits_for_the_work_of_that_stream(alloc, how):
    stream = allotment.Stream(alloc)
    old = Overtaken(alloc, stream)

    array = MADE[how](alloc, stream=stream)
    assert old.ran
    old.made.set()
    stream.synchronize()

    assert not array.any()


def test_the_current_stream_is_waited_for(alloc):
    stream = allotment.Stream(alloc)
    old = Overtaken(alloc, stream)

    with stream:
        array = alloc.zeros(SIZE, "uint8")
    old.made.set()
    stream.synchronize()

    assert old.ran and not array.any()


def test_empty_for_a_stream_waits_for_nothing(alloc):
    stream = allotment.Stream(alloc)
    gate = threading.Event()
    stream.submit(gate.wait)

    buffer = alloc.empty(SIZE, stream)
    again = alloc.empty(SIZE, stream=stream.handle)

    assert not stream.query()
    gate.set()
    stream.synchronize()
    assert buffer.stream is stream and again.stream == stream.handle


def test_a_number_that_no_stream_has_needs_no_wait(alloc):
    assert not alloc.zeros(SIZE, "uint8", stream=12345).any()


def test_memory_made_inside_a_capture_waits_for_work_from_before_it(alloc):
    stream = allotment.Stream(alloc)
    pool = alloc.pool()
    with pool:
        old = Overtaken(alloc, stream)

    with allotment.capture(stream, pool=pool) as graph:
        array = alloc.zeros(SIZE, "uint8")
    old.made.set()
    stream.synchronize()

    assert old.ran and not array.any()
    del array
    graph.reset()


def test_a_function_on_a_stream_gets_ready_memory_while_the_default_stream_waits_for_it(alloc):
    stream, default = allotment.Stream(alloc), allotment.Stream.default(alloc)
    ordered = threading.Event()
    found = []

    def ask():
        ordered.wait()
        found.extend(alloc.zeros(SIZE, "uint8") for _ in range(3))
        found.append(filled(np.frombuffer(alloc.tenant("t").empty(SIZE), "uint8")))

    stream.submit(ask)
    default.wait(stream.record())
    old = [alloc.malloc(SIZE) for _ in range(6)]
    for block in old:
        default.submit(ctypes.memset, block, OLD, SIZE)
    for block in old:
        alloc.free(block)
    ordered.set()
    stream.synchronize()
    default.synchronize()

    assert len(found) == 4 and not any(array.any() for array in found)
    found.clear()
    stream.submit(lambda: None)  # without an interpreter lock, its thread frees objects when it runs Python next
    stream.synchronize()
    assert alloc.stats()["allocated_bytes.all.current"] == 0


def test_memory_given_to_such_a_function_waits_for_the_stream_of_its_request(alloc):
    stream, default = allotment.Stream(alloc), allotment.Stream.default(alloc)
    ordered, gate = threading.Event(), threading.Event()
    found = []

    def ask():
        ordered.wait()
        buffer = alloc.empty(SIZE)
        default.submit(gate.wait)
        default.submit(ctypes.memset, buffer.address, OLD, SIZE)
        del buffer
        found.append(alloc.zeros(SIZE, "uint8"))

    stream.submit(ask)
    default.wait(stream.record())
    ordered.set()
    stream.synchronize()
    gate.set()
    default.synchronize()

    assert not found[0].any()


def test_a_function_does_not_wait_for_the_stream_that_it_runs_on(alloc):
    default = allotment.Stream.default(alloc)
    found = []
    default.submit(lambda: found.append(alloc.zeros(SIZE, "uint8")))
    default.synchronize()
    assert not found[0].any()


def test_a_function_gets_no_memory_that_work_behind_it_on_its_own_stream_uses(alloc):
    default = allotment.Stream.default(alloc)
    freed = threading.Event()
    found = []

    def ask():
        freed.wait()
        found.extend(alloc.zeros(SIZE, "uint8") for _ in range(3))

    default.submit(ask)
    old = [alloc.malloc(SIZE) for _ in range(4)]
    for block in old:
        default.submit(ctypes.memset, block, OLD, SIZE)
    for block in old:
        alloc.free(block)
    freed.set()
    default.synchronize()

    assert len(found) == 3 and not any(array.any() for array in found)


def test_an_allocator_of_the_users_own_functions_waits_too():
    memory = (ctypes.c_char * SIZE)()
    alloc = allotment.PluggableAllocator(
        lambda size, device, stream: ctypes.addressof(memory), lambda *_: None, device="host"
    )
    stream = allotment.Stream.default(alloc)
    for make in (UNNAMED["zeros"], UNNAMED["empty"]):
        old = Overtaken(alloc, stream)
        array = make(alloc)
        old.made.set()
        stream.synchronize()
        assert old.ran and not array.any()
        del array


@pytest.mark.parametrize("mode", ["torch", "tight"])
def test_pinned_memory_is_allocated_when_the_streams_recorded_for_it_are_done(mode):
    alloc = allotment.PinnedAllocator("host", mode=mode)
    stream = allotment.Stream(alloc)
    block = alloc.malloc(SIZE)
    made = threading.Event()

    def work():
        made.wait(PATIENCE)
        ctypes.memset(block, OLD, SIZE)

    stream.submit(work)
    alloc.free(block, [stream])
    array = alloc.zeros(SIZE, "uint8")
    made.set()
    stream.synchronize()

    assert not array.any()


@pytest.mark.parametrize("make", [np.zeros, lambda n, t: filled(np.empty(n, t))], ids=["zeros", "empty"])
def test_arrays_of_numpy_are_not_overwritten_by_queued_work(plain, make):
    stream = allotment.Stream.default(plain)
    old = Overtaken(plain, stream)

    with allotment.numpy.caching(plain):
        array = make(SIZE, "uint8")
        old.made.set()
        stream.synchronize()
        again = make(SIZE, "uint8")

    assert old.ran and not array.any()
    assert plain._block_around(again.ctypes.data) is not None
    del array, again


def test_an_array_of_numpy_that_grows_is_not_overwritten_by_queued_work(plain):
    stream = allotment.Stream.default(plain)
    with allotment.numpy.caching(plain):
        array = np.zeros(SIZE // 2, "uint8")
        old = Overtaken(plain, stream)
        array.resize(SIZE, refcheck=False)
        old.made.set()
        stream.synchronize()

    assert old.ran and not array.any()
