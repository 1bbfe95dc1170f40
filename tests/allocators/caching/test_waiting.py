"""No allocator waits for foreign work, or calls foreign functions, under its lock. Each program deadlocked when one
did.
"""

import threading

import pytest

from allotment import Allocator, Backend, DeviceError
from helpers.child import output_of
from helpers.engine import MIB, check, on_device, reserved
from helpers.queue_device import QueueDevice

pytestmark = pytest.mark.threads

PLAIN, EXPANDABLE = "", "expandable_segments:True"

ON_HOST = """
    import gc, threading, weakref
    import allotment

    allocator = allotment.Allocator("host", settings={settings!r})
    stream, other = allotment.Stream(allocator), allotment.Stream(allocator)
    started, emptying = threading.Event(), threading.Event()
    kept = [allocator.empty(1000)]
    done = []

    def work():
        started.set()
        assert emptying.wait(60)
        {work}
        done.append(1)

    allocator.free(allocator.malloc(30 << 20, stream))
    block = allocator.malloc(30 << 20, other)
    stream.submit(work)
    assert started.wait(60)
    {before}
    threading.Timer(0.05, emptying.set).start()     # when the others wait, or a little before
    {waiting}
    stream.synchronize()
    allocator.inspection.check_invariants()
    print(done)
"""

WORK = {
    "allocates": "allocator.free(allocator.malloc(40 << 20))",
    "drops a buffer": "kept.clear()",
    "collects garbage": "cycle = [kept.pop()]; cycle.append(cycle); del cycle; gc.collect()",
}
WAITING = {
    "empty_cache": ("", "allocator.empty_cache()"),
    "a free that streams hold up": (
        "allocator.record_stream(block, stream); allocator.free(block)",
        "allocator.empty_cache()",
    ),
    "an out-of-memory retry": (
        "allocator.limit = 90 << 20",
        "allocator.free(allocator.malloc(35 << 20))",
    ),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize(("before", "waiting"), WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("settings", [PLAIN, EXPANDABLE], ids=["plain", "expandable"])
def test_a_function_on_a_stream_may_use_the_allocator_that_waits_for_it(settings, before, waiting, work):
    if "limit" in before:
        work = work.replace("40 << 20", "1 << 20")  # less than what the limit leaves
    program = ON_HOST.format(settings=settings, before=before, waiting=waiting, work=work)
    assert output_of(program) == "[1]\n"


def test_an_allocator_is_deleted_while_a_function_collects_garbage():
    assert (
        output_of("""
        import gc, threading
        import allotment

        allocator = allotment.Allocator("host")
        stream = allotment.Stream(allocator)
        second = allotment.Allocator(allocator.device)
        started, going = threading.Event(), threading.Event()

        def work():
            started.set()
            assert going.wait(60)
            gc.collect()
            second.free(second.malloc(30 << 20))

        allocator.free(allocator.malloc(30 << 20))
        stream.submit(work)
        assert started.wait(60)
        threading.Timer(0.05, going.set).start()
        del allocator
        stream.synchronize()
        print("gone")
    """)
        == "gone\n"
    )


def test_two_allocators_whose_callbacks_empty_each_other_do_not_wait_for_each_other():
    assert (
        output_of("""
        import threading
        import allotment

        one, other = allotment.Allocator("sim:1GiB"), allotment.Allocator("sim:1GiB")
        both = threading.Barrier(2)

        def emptying(another):
            def callback():
                another.empty_cache()
                return True
            return callback

        one.limits.add_free_memory_callback(emptying(other))
        other.limits.add_free_memory_callback(emptying(one))

        def work(allocator):
            both.wait()
            for _ in range(2_000):
                allocator.free(allocator.malloc(30 << 20))

        threads = [threading.Thread(target=work, args=(allocator,)) for allocator in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.inspection.check_invariants()
        other.inspection.check_invariants()
        print("done")
    """)
        == "done\n"
    )


def test_a_function_on_a_stream_is_refused_what_others_would_have_to_wait_for():
    assert (
        output_of("""
        import threading
        import allotment

        allocator = allotment.Allocator("host")
        stream, other = allotment.Stream(allocator), allotment.Stream(allocator)
        gate = threading.Event()
        allocator.free(allocator.malloc(30 << 20))

        def work():
            try:
                allocator.empty_cache()
            except allotment.DeviceError as error:
                print("cannot release memory while work is queued" in str(error))
            allocator.inspection.check_invariants()

        other.submit(gate.wait)
        stream.submit(work)
        stream.synchronize()
        gate.set()
        other.synchronize()
        stream.submit(allocator.empty_cache)        # no other stream has work now
        stream.synchronize()
        print(allocator.stats()["reserved_bytes.all.current"])
    """)
        == "True\n0\n"
    )


class Freeing(Backend):
    """Lets another thread enter while it frees memory."""

    def __init__(self, meanwhile):
        super().__init__(name="freeing")
        self.meanwhile = meanwhile
        self.segments = {}

    def allocate(self, size, stream):
        address = max((start + length for start, length in self.segments.items()), default=1 << 30)
        self.segments[address] = size
        return address

    def free(self, address, size):
        self.meanwhile(address)
        del self.segments[address]


def test_what_is_on_its_way_back_is_seen_as_free_and_handed_to_no_one():
    seen = []

    def meanwhile(address):
        check(allocator)
        state = [(b["address"], b["state"]) for s in allocator.history.segments() for b in s["blocks"]]
        seen.append((address, dict(state)[address], reserved(allocator) // (30 * MIB)))
        other = allocator.malloc(30 * MIB)
        assert other != address
        allocator.free(other)
        check(allocator)

    allocator = Allocator(Freeing(meanwhile))
    blocks = [allocator.malloc(30 * MIB) for _ in range(3)]
    for block in blocks:
        allocator.free(block)
    allocator.empty_cache()
    check(allocator)
    assert seen == [(blocks[0], "inactive", 3), (blocks[1], "inactive", 3), (blocks[2], "inactive", 2)]
    assert reserved(allocator) == 30 * MIB  # memory that was requested meanwhile, and kept


def test_a_refusal_half_way_leaves_the_rest_where_it_was():
    def meanwhile(address):
        if address == blocks[1]:
            raise OSError("not now")

    allocator = Allocator(Freeing(meanwhile), settings="garbage_collection_threshold:0.5", limit="1GiB")
    blocks = [allocator.malloc(30 * MIB) for _ in range(4)]
    for block in blocks:
        allocator.free(block)
    with pytest.raises(DeviceError, match="not now"):
        allocator.empty_cache()
    check(allocator)
    assert reserved(allocator) == 3 * 30 * MIB
    assert [allocator.malloc(30 * MIB) for _ in range(3)] == blocks[1:]
    check(allocator)


@pytest.mark.parametrize("operation", ["stream_synchronize", "unmap", "chunk_release", "segment_free"])
@pytest.mark.parametrize("settings", [PLAIN, EXPANDABLE])
def test_memory_that_could_not_go_is_there_for_the_next_request(operation, settings):
    alloc = on_device(settings=settings)
    blocks = [alloc.malloc(30 * MIB, stream) for stream in (1, 2, 3)]
    for block in blocks:
        alloc.free(block)
    alloc.device.refuse(operation, after=1, out_of_memory=False)
    try:
        alloc.empty_cache()
    except DeviceError:
        check(alloc)
    alloc.device.refuse(operation, times=0)
    check(alloc)
    for stream in (1, 2, 3):
        alloc.malloc(30 * MIB, stream)
        check(alloc)


class Lending:
    """The allocator of a pool, whose functions use the allocator that calls them."""

    def __init__(self):
        self.next = 1 << 50

    def allocate(self, size, stream):
        self.allocator.free(self.allocator.malloc(30 * MIB))
        check(self.allocator)
        self.next += size
        return self.next - size

    def free(self, address, size, stream):
        self.allocator.empty_cache()
        check(self.allocator)


def test_the_allocator_of_a_pool_may_use_the_one_that_calls_it():
    lending = Lending()
    lending.allocator = alloc = on_device()
    pool = alloc.pool(allocator=lending)
    thread = threading.get_ident()
    alloc.pools.begin_allocate_to_pool(pool.id, stream=7)
    address = alloc.malloc(MIB, 7)
    alloc.pools.end_allocate_to_pool(pool.id)
    assert thread == threading.get_ident()
    alloc.free(address)
    pool.close()
    check(alloc)


def test_a_device_may_be_asked_again_while_it_waits():
    device = QueueDevice()
    alloc = Allocator(device)
    stream = device.stream_create()
    address = alloc.malloc(30 * MIB)
    device.hold(stream)
    alloc.record_stream(address, stream)
    alloc.free(address)
    asked = []

    def event_synchronize(event):
        asked.append(alloc.malloc(MIB))
        check(alloc)
        QueueDevice.event_synchronize(device, event)

    device.event_synchronize = event_synchronize
    alloc.empty_cache()
    check(alloc)
    assert len(asked) == 1
    assert reserved(alloc) == 2 * MIB
