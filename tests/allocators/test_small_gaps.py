"""Names that users of PyTorch's allocator expect."""

import ctypes
import gc
import os
import weakref

import pytest

import allotment
from allotment.errors import OutOfMemoryError, RequestError


class Told(allotment.Backend):
    """A device that knows the processes that use it."""

    def __init__(self, processes):
        super().__init__(name="told", index=3)
        self.held = processes

    def allocate(self, size, stream):
        raise MemoryError

    def free(self, address, size):
        pass

    def memory_info(self):
        return 0, 1 << 30

    def processes(self):
        if isinstance(self.held, Exception):
            raise self.held
        return self.held


@pytest.fixture
def allocator():
    allocator = allotment.Allocator(allotment.SimulatedDevice("1GiB", 3))
    yield allocator
    allocator.inspection.check_invariants()


# The history.


def test_an_allocator_says_whether_it_keeps_a_history(allocator):
    assert not allocator.history.is_enabled()
    allocator.record_history()
    assert allocator.history.is_enabled()
    allocator.record_history(None)
    assert not allocator.history.is_enabled()


def test_a_tracker_gets_whole_entries_with_their_device(allocator):
    entries = []
    allocator.history.attach_trace_tracker(entries.append, entries=True)
    allocator.record_history()
    allocator.free(allocator.malloc(512))
    assert [entry["action"] for entry in entries] == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    for entry in entries:
        assert entry["device"] == 3
        assert entry["time_us"] > 0
        assert entry["user_metadata"] == ""
        assert entry["frames"][0]["filename"] == __file__


def test_a_recorder_of_the_callers_gives_the_stacks(allocator):
    given = [{"name": "kernel", "filename": "model.cu", "line": 7}, {"name": "main", "filename": "model.cu", "line": 1}]
    allocator.record_history(recorder=lambda: given)
    address = allocator.malloc(512)
    given.pop()
    allocator.free(address)
    by_action = {entry["action"]: entry for entry in allocator.snapshot()["device_traces"][3]}
    assert [frame["name"] for frame in by_action["alloc"]["frames"]] == ["kernel", "main"]
    assert by_action["free_requested"]["frames"] == [{"name": "kernel", "filename": "model.cu", "line": 7}]
    allocator.record_history()
    allocator.free(allocator.malloc(1024))
    assert allocator.snapshot()["device_traces"][3][-1]["frames"][0]["filename"] == __file__


def test_a_recorder_may_use_the_allocator_and_may_fail(allocator, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: reported.append(type(unraisable.exc_value)))

    def recorder():
        allocator.free(allocator.malloc(2048))
        raise LookupError

    allocator.record_history(recorder=recorder, context="alloc")
    allocator.malloc(512)
    assert reported == [LookupError]
    assert "frames" not in allocator.snapshot()["device_traces"][3][-1]
    with pytest.raises(TypeError, match="a recorder must be callable, not int"):
        allocator.record_history(recorder=3)


# Out of memory.


def test_processes_with_memory_are_facts_of_an_out_of_memory_and_in_its_text():
    with pytest.raises(OutOfMemoryError) as caught:
        allotment.Allocator(Told([(os.getpid(), 1 << 29), (17, 1 << 20)])).malloc(512)
    assert caught.value.facts.processes == ((os.getpid(), 1 << 29), (17, 1 << 20))
    assert "in use by this process 512.00 MiB, process 17 1024.00 KiB." in str(caught.value)


@pytest.mark.parametrize("wrong", [OSError("no library"), 5, [1, 2]])
def test_a_device_that_fails_to_report_processes_does_not_hide_the_error(wrong):
    with pytest.raises(OutOfMemoryError) as caught:
        allotment.Allocator(Told(wrong)).malloc(512)
    assert caught.value.facts.processes == ()


# Pools.


def test_a_pool_knows_its_device_its_allocators_and_its_creator(allocator):
    class Source:
        def allocate(self, size, stream):
            return 1 << 30

        def free(self, address, size, stream):
            pass

    source = Source()
    pool, plain = allocator.pool(allocator=source), allocator.pool()
    assert pool.allocator is plain.allocator is allocator
    assert (pool.given_allocator, plain.given_allocator) == (source, None)
    assert pool.device is allocator.device
    assert pool.is_user_created


def test_a_graph_pool_handle_is_an_id_that_captures_can_share(allocator):
    handle = allotment.graph_pool_handle()
    assert handle[0] == 0 and handle < allotment.graph_pool_handle()
    stream = allotment.Stream(allocator)
    graphs = []
    for _ in range(2):
        with allotment.capture(stream, handle) as graph:
            allocator.free(allocator.malloc(1 << 20, stream))
        graphs.append(graph)
    assert {graph.pool for graph in graphs} == {handle}
    assert len(allocator.history.segments(handle)) == 1
    for graph in graphs:
        graph.reset()


# Pluggable allocators.


def pluggable(**functions):
    freed = []
    plug = allotment.PluggableAllocator(
        lambda size, device, stream: 4096, lambda pointer, size, device, stream: freed.append(pointer), **functions
    )
    return plug, freed


def test_functions_of_a_pluggable_allocator_can_be_set_later():
    called = []
    plug, _ = pluggable(reset=lambda: called.append("first"))
    plug.empty_cache()
    plug.set_function("reset", lambda: called.append("second"))
    plug.empty_cache()
    plug.set_function("reset", ctypes.CFUNCTYPE(None)(lambda: called.append("of C")))
    plug.empty_cache()
    plug.set_function("reset", None)
    plug.empty_cache()
    assert called == ["first", "second", "of C"]
    with pytest.raises(RequestError, match="unknown function 'free'; those that can be set are init, reset"):
        plug.set_function("free", print)


def test_every_optional_function_can_be_set():
    names = ["init", "reset", "memory_fraction", "base_alloc", "record_stream", "begin_allocate_to_pool"]
    called = []
    plug, _ = pluggable()
    for name in [*names, "end_allocate_to_pool", "release_pool"]:
        plug.set_function(name, lambda *_, name=name: called.append(name) or 1)
    plug.init(1)
    plug.empty_cache()
    plug.limits.memory_fraction = 0.5
    plug.inspection.base_allocation(4096)
    plug.record_stream(4096, 0)
    plug.pools.begin_allocate_to_pool((0, 1))
    plug.pools.end_allocate_to_pool((0, 1))
    plug.pools.release((0, 1))
    assert called == [*names, "end_allocate_to_pool", "release_pool"]


def test_the_raw_deleter_is_a_c_function_that_frees():
    plug, freed = pluggable()
    address = plug.malloc(100)
    deleter = ctypes.cast(plug.raw_deleter, ctypes.c_void_p).value
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(address)
    assert freed == [4096]
    assert plug.stats()["allocation.all.current"] == 0
    gone = weakref.ref(plug)
    del plug
    gc.collect()
    assert gone() is None


# Copies.


class Copying(allotment.Backend):
    """A device that records between which devices it copies."""

    def __init__(self):
        super().__init__(index=1)
        self.copies = []

    def allocate(self, size, stream):
        return 1 << 30

    def free(self, address, size):
        pass

    def copy(self, destination, source, size, destination_device, source_device, stream):
        self.copies.append((destination_device, source_device))


def test_a_copy_can_go_to_another_device():
    allocator = allotment.Allocator(Copying())
    address = allocator.malloc(512)
    allocator.copy(address, address, 10)
    allocator.copy(1 << 40, address, 10, destination_device=2)
    allocator.copy(address, 1 << 40, 10, source_device=2)
    assert allocator.device.copies == [(1, 1), (2, 1), (1, 2)]
    with pytest.raises(allotment.UnsupportedError, match="cannot copy to device 1"):
        host = allotment.Allocator("host")
        buffer = host.empty(512)
        host.copy(buffer, buffer, 10, destination_device=1)
