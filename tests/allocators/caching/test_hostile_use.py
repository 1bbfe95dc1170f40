"""Uses of an allocator that its author did not expect: they raise an error, and the allocator still works.

Each program once crashed, hung or corrupted the allocator. Each runs in a separate process.
"""

import pytest

from helpers.child import output_of

pytestmark = pytest.mark.threads

BEGIN = """
    import gc, os, sys, threading
    import allotment
    from allotment import *

    def tried(function, *arguments):
        "What it raises, by name."
        try:
            function(*arguments)
        except BaseException as error:
            return type(error).__name__
        return "nothing"

    def is_usable(allocator):
        "Another thread gets in."
        address = []
        thread = threading.Thread(target=lambda: address.append(allocator.malloc(1)), daemon=True)
        thread.start()
        thread.join(20)
        if address:
            allocator.free(address[0])
            allocator.inspection.check_invariants()
        return bool(address)

    class Device(Backend):
        "Addresses alone."
        next = 1 << 40

        def allocate(self, size, stream):
            self.next += size + (1 << 21)
            return self.next - size

        def free(self, address, size):
            pass
"""


def said_by(program: str) -> list[str]:
    return output_of(BEGIN + program).split()


# --- pools that are closed ---


def test_a_closed_pool_cannot_be_entered_or_captured_into():
    assert said_by("""
    allocator = Allocator("sim:1GiB")
    pool = allocator.pool(no_split=True)
    with pool:
        allocator.free(allocator.malloc(1 << 20))
    pool.close()
    stream = Stream(allocator)
    print(tried(pool.__enter__), tried(capture, stream, pool))
    pool.close()
    print(allocator.stats()["reserved_bytes.all.current"], tried(lambda: allocator.pools.use_count(pool.id)))
    """) == ["PoolError", "PoolError", "0", "PoolError"]


# --- a fraction of memory of unknown size ---


def test_a_fraction_of_a_device_that_does_not_report_its_memory_is_refused():
    assert said_by("""
    allocator = Allocator(Device())
    print(tried(setattr, allocator.limits, "memory_fraction", 0.5))
    print(tried(lambda: Allocator(Device(), settings="per_process_memory_fraction:0.5")))
    print(allocator.limit, allocator.limits.memory_fraction)
    allocator.limit = "40MiB"
    print(tried(lambda: allocator.limits.memory_fraction), allocator.limit)
    allocator.free(allocator.malloc(1 << 20))
    print(tried(allocator.malloc, 50 << 20))
    """) == ["UnsupportedError", "UnsupportedError", "None", "1.0", "UnsupportedError", "41943040", "OutOfMemoryError"]


# --- callbacks ---


def test_callbacks_come_and_go_on_other_threads_during_a_slow_miss():
    assert said_by("""
    allocator = Allocator("sim:4GiB")
    inside, go_on = threading.Event(), threading.Event()

    class Callback:
        def __call__(self):
            inside.set()
            go_on.wait(20)
            return self.__dict__ is None

    allocator.limits.add_free_memory_callback(Callback())
    first = [callback for callback in gc.get_objects() if type(callback) is Callback][0]
    thread = threading.Thread(target=allocator.malloc, args=(30 << 20,))
    thread.start()
    inside.wait(20)
    allocator.limits.remove_free_memory_callback(first)
    del first
    gc.collect()
    for _ in range(100):
        other = Callback()
        allocator.limits.add_free_memory_callback(other)
        allocator.limits.remove_free_memory_callback(other)
        del other
    go_on.set()
    thread.join()
    print(is_usable(allocator))

    def churn():
        for _ in range(500):
            callback = lambda: False
            allocator.limits.add_free_memory_callback(callback)
            allocator.limits.remove_free_memory_callback(callback)

    def miss():
        for size in range(21, 121):
            allocator.free(allocator.malloc(size << 20))
            allocator.empty_cache()

    threads = [threading.Thread(target=work) for work in (churn, churn, miss, miss)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(is_usable(allocator))
    """) == ["True", "True"]


def test_a_change_that_is_refused_from_inside_has_changed_nothing():
    assert said_by("""
    allocator = Allocator("sim:1GiB")
    calls, refused = [], []
    callback = lambda: calls.append(1)

    def tracker(*entry):
        if refused:
            return
        refused.append(tried(allocator.limits.add_free_memory_callback, callback))
        refused.append(tried(allocator.pools.set_reserve_class, 5, "x"))
        refused.append(tried(allocator.history.attach_trace_tracker, print))
        refused.append(tried(allocator.history.detach_trace_tracker, tracker))
        refused.append(tried(allocator.limits.remove_free_memory_callback, kept))
        refused.append(tried(allocator.record_history))
        refused.append(tried(setattr, allocator, "limit", 1))
        refused.append(tried(setattr, allocator, "settings", "max_split_size_mb:64"))

    kept = lambda: calls.append(2)
    allocator.limits.add_free_memory_callback(kept)
    allocator.history.attach_trace_tracker(tracker)
    allocator.malloc(1 << 20)
    allocator.malloc(30 << 20)
    gc.collect()
    unchanged = allocator.settings.max_split_size == Settings().max_split_size
    print(set(refused), len(refused), calls, allocator.limit, unchanged)
    print(tried(allocator.limits.remove_free_memory_callback, callback))
    allocator.limits.remove_free_memory_callback(kept)
    allocator.history.detach_trace_tracker(tracker)
    print(is_usable(allocator))
    """) == ["{'RequestError'}", "8", "[2,", "2]", "None", "True", "RequestError", "True"]


def test_a_graph_that_is_deleted_inside_the_allocator_closes_its_pool_afterwards():
    assert said_by("""
    allocator = Allocator("host")
    stream = Stream(allocator)
    with capture(stream) as graph:
        allocator.free(allocator.malloc(1 << 20, stream))
    held = [graph]
    pool = graph.pool
    del graph
    allocator.history.attach_trace_tracker(lambda *entry: held.clear())
    address = allocator.malloc(30 << 20)
    allocator.free(address)
    allocator.empty_cache()
    print(tried(allocator.pools.use_count, pool), allocator.stats()["reserved_bytes.all.current"])
    """) == ["PoolError", "0"]


# --- every way out of the engine leaves it ---


@pytest.mark.parametrize(
    "call",
    [
        "allocator.pools.reserved_bytes(np.array([0, 1]))",
        "allocator.pools.use_count(np.array([0, 1]))",
        "allocator.empty_cache(np.array([[0, 1], [0, 1]]))",
        "allocator.snapshot(np.array([0.5, 1]))",
        "allocator.record_history(context=Odd('all'))",
        "allocator.record_history(enabled=Odd('all'))",
        "allocator.record_history(skip_actions=[Odd('alloc')])",
        "allocator.record_history(max_entries=Odd('1'))",
        "allocator.history.record_annotation(Odd('x'))",
        "allocator.pools.begin_allocate_to_pool((0, 7), stream=Odd('x'))",
        "allocator.pools.check_live_allocations((0, 9), Odd('x'))",
        "allocator.limits.remove_free_memory_callback(Odd('x'))",
        "allocator.history.detach_trace_tracker(Odd('x'))",
        "allocator.pools.malloc_at(512, Odd('x'))",
        "allocator.pools.set_reserve_class(3, Odd('x'))",
        "setattr(allocator, 'settings', Odd('expandable_segments:True'))",
        "setattr(allocator, 'limit', Odd('1GiB'))",
        "setattr(allocator.pools, 'caching', Odd('x'))",
        "allocator.inspection.cache_info(Odd('x'))",
        "allocator.pools.restore(PoolState(allocator, (0, 1), Odd('x')))",
        "allocator.pools.create_or_incref((0, 3), placement=Odd('torch'))",
        "allocator.history.annotate(Odd('x'), Odd('y'))",
    ],
)
def test_what_raises_leaves_the_allocator_open(call):
    assert said_by(f"""
    import numpy as np

    class Odd(str):
        "Raises wherever it is looked at, but not at once."
        looks = 0

        def look(self, *_):
            Odd.looks += 1
            if Odd.looks > ALLOWED:
                raise ValueError("looked at")
            return str.__hash__(self)

        __hash__ = look
        __index__ = __int__ = __float__ = __bool__ = __iter__ = __len__ = look
        __eq__ = lambda self, other: bool(self.look()) and str.__eq__(self, other)
        __getitem__ = keys = split = look

    allocator = Allocator("sim:1GiB")
    allocator.limits.add_free_memory_callback(lambda: False)
    allocator.history.attach_trace_tracker(lambda *entry: None)
    allocator.record_history()
    for ALLOWED in range(6):
        Odd.looks = 0
        tried(lambda: {call})
        if not is_usable(allocator):
            print("locked")
    print("done")
    """) == ["done"]


def test_finalizers_do_not_run_while_the_allocator_is_locked():
    assert said_by("""
    allocator = Allocator("sim:1GiB", settings="expandable_segments:True")
    for stream in range(1, 400):
        allocator.free(allocator.malloc(1 << 20, stream))
    stuck = []

    class Finalized:
        "Wants the allocator on another thread, and waits for that."

        def __del__(self):
            served = threading.Event()
            threading.Thread(target=lambda: (allocator.stats(), served.set()), daemon=True).start()
            if not served.wait(20):
                stuck.append(1)

    def litter():
        for _ in range(30):
            cycle = [Finalized()]
            cycle.append(cycle)

    gc.set_threshold(20)
    looking = allocator.inspection
    for call in (allocator.stats, looking.nested_stats, looking.expandable_segment_sizes, looking.pending_events,
                 looking.check_invariants, looking.expandable_ranges, allocator.tenants):
        litter()
        call()
    print(len(stuck), gc.isenabled(), flush=True)
    os._exit(0)         # without the finalizers of what is left
    """) == ["0", "True"]


# --- objects that lie ---


@pytest.mark.parametrize("reported", ["()", "(0,)", "[0]", "(0, 5, 6)", "''", "None", "7", "{}", "(0, 'x')", "(0, -1)"])
def test_a_foreign_stream_that_does_not_report_its_handle_is_refused(reported):
    [said] = said_by(f"""
    class Foreign:
        def __cuda_stream__(self):
            return {reported}

    allocator = Allocator("sim:1GiB")
    print(tried(allocator.malloc, 10, Foreign()))
    """)
    assert said in ("StreamError", "TypeError")


@pytest.mark.parametrize(
    "version", ["()", "(1,)", "[]", "'x'", "''", "7", "(None, None)", "(1.5, 0)", "(1, 0, 0)", "{}"]
)
def test_an_invalid_version_of_dlpack_is_refused(version):
    assert said_by(f"""
    buffer = Allocator("host").empty(10)
    print(tried(lambda: buffer.__dlpack__(max_version={version})))
    """) == ["TypeError"]


def test_a_size_object_is_read_once():
    assert said_by("""
    class Size:
        looks = 0

        def __index__(self):
            self.looks += 1
            return 10 if self.looks == 1 else 1 << 30

        __int__ = __index__

    plug = PluggableAllocator(lambda *_: 4096, print, device="sim:1GiB")
    for allocator in (Allocator("host"), Allocator("sim:1GiB").tenant("x"), AsyncAllocator("sim:1GiB")):
        print(len(allocator.empty(Size())))
    """) == ["10", "10", "10"]


def test_objects_that_were_never_made_raise():
    assert set(
        said_by("""
    from allotment import cpu, devices, entry
    from allotment._allocators.base import AllocatorBase
    from allotment import PinnedAllocator
    from allotment._devices.graphs import DeviceGraph

    classes = [
        Event, Stream, PinnedAllocator, DeviceGraph, AllocatorBase, PluggableAllocator, Allocator, AsyncAllocator,
        Buffer, Tenant, cpu.CachingAllocator, cpu.Guard, devices.HostDevice, devices.CudaDevice,
        devices.SimulatedDevice, devices.Device, Backend, Pool, Graph]
    arguments = [(), (0,), (1, 2), (1, 2, 3)]
    for cls in classes:
        for given in arguments:
            try:
                made = cls.__new__(cls, *given)
            except (TypeError, AllotmentError, OverflowError):
                continue
            for name in dir(cls):
                if name in ("__class__", "__init_subclass__", "__subclasshook__"):
                    continue
                if (cls, name) == (PluggableAllocator, "__init__"):
                    continue        # numbers are functions of the user's there
                try:
                    member = getattr(made, name)
                    for values in arguments if callable(member) else ():
                        try:
                            member(*values)
                        except Exception:
                            pass
                except Exception:
                    pass
    print("alive")
    """)
    ) >= {"alive"}


def test_states_that_change_while_they_are_read_are_refused():
    assert said_by("""
    import dataclasses, pickle

    allocator = Allocator("sim:1GiB")
    pool = allocator.pool()
    with pool:
        blocks = [allocator.malloc(512) for _ in range(8)]
    state = pool.checkpoint()
    segment = state.segments[0]

    class Growing:
        "More blocks at every look."
        address, looks = segment.address, 0

        @property
        def blocks(self):
            self.looks += 1
            return segment.blocks[:1] if self.looks == 1 else segment.blocks * 1000

    class Other(PoolState):
        looks = 0

        def __getattribute__(self, name):
            if name == "segments":
                Other.looks += 1
                return (segment,) * (1 if Other.looks == 1 else 10000)
            return super().__getattribute__(name)

    print(tried(pool.restore, dataclasses.replace(state, segments=(Growing(),))))
    print(tried(pool.restore, dataclasses.replace(state, segments=[Growing()] * 3)))
    print(tried(pool.restore, dataclasses.replace(state, pool=(0, 2 ** 80))))
    print(tried(pool.restore, dataclasses.replace(state, pool="no pool")))
    print(tried(pool.restore, dataclasses.replace(state, owners={blocks[0]: lambda: pool, 5: lambda: 5})))
    print(tried(pool.restore, dataclasses.replace(state, owners=7)))
    print(tried(pool.restore, PoolState.__new__(PoolState)), tried(pickle.dumps, state))
    print(tried(pool.restore, Other(allocator, pool.id, ())))
    allocator.inspection.check_invariants()
    print(allocator.pools.check_live_allocations(pool.id, blocks), is_usable(allocator))
    """) == [
        *("CheckpointError", "CheckpointError", "PoolError", "PoolError", "nothing", "CheckpointError"),
        *("CheckpointError", "TypeError", "nothing", "True", "True"),
    ]


# --- devices and graphs ---


def test_a_device_that_is_only_a_name_has_no_memory():
    assert said_by("""
    device = PluggableAllocator(print, print).device
    print(tried(Allocator, device), tried(AsyncAllocator, device), tried(Stream, device))
    stream = Stream.default(device)
    print(tried(stream.synchronize), tried(stream.record), tried(capture, Stream.external(device, 5)))
    """) == ["UnsupportedError"] * 5 + ["CaptureError"]


def test_a_graph_is_not_replayed_on_a_stream_of_another_device():
    assert said_by("""
    from allotment.devices import HostDevice

    one, other = Allocator("host"), Allocator(HostDevice(1))
    stream, foreign = Stream(one), Stream(other)
    ran = []
    with capture(stream) as graph:
        stream.submit(ran.append, 1)
    print(tried(graph.replay, foreign), tried(graph.replay, Stream.default(other)))
    graph.replay()
    stream.synchronize()
    foreign.synchronize()
    print(ran)
    """) == ["StreamError", "StreamError", "[1]"]


@pytest.mark.parametrize("base", ["1 << 63", "(1 << 63) - 4096", "(1 << 64) - 4096", "(1 << 64) - 1"])
def test_memory_at_addresses_that_cannot_be_freed_is_not_allocated(base):
    assert said_by(f"""
    class High(Device):
        def allocate(self, size, stream):
            return {base}

    allocator = Allocator(High())
    print(tried(allocator.malloc, 10))
    allocator.inspection.check_invariants()
    """) == ["DeviceError"]


def test_the_records_of_the_devices_own_pool_are_right_whichever_thread_works():
    assert said_by("""
    allocator = make_allocator("sim:1GiB", settings="backend:cudaMallocAsync")
    done = threading.Event()

    def work():
        while not done.is_set():
            allocator.free(allocator.malloc(1000))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3000):
        allocator.inspection.check_invariants()
    done.set()
    for thread in threads:
        thread.join()
    allocator.inspection.check_invariants()
    print("right")
    """) == ["right"]
