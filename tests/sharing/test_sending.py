"""A buffer that is sent arrives as the same memory, if the program asked for that."""

import importlib.util
import math
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

import allotment.multiprocessing
from allotment import Allocator, RequestError, SharingError, UnsupportedError, open_shared
from helpers.child import output_of
from helpers.peer import Peer, descriptors, everything_is_closed, wait_until
from helpers.shared_work import close_what_comes, fill, fill_from_pipe, fill_what_comes

pytestmark = pytest.mark.threads
METHODS = ("spawn", "forkserver", "fork")


@pytest.fixture
def allocator():
    made = Allocator("host", settings="shareable:True")
    yield made
    made.inspection.check_invariants()


def content(buffer):
    return set(bytes(memoryview(buffer)))


@pytest.mark.parametrize("method", METHODS)
def test_through_a_queue(allocator, method):
    context = multiprocessing.get_context(method)
    queue, done = context.Queue(), context.Queue()
    worker = context.Process(target=fill_what_comes, args=(queue, 7, done))
    worker.start()
    buffer = allocator.empty(5000)
    queue.put(buffer)
    assert done.get(timeout=60) == 5000
    worker.join(60)
    assert content(buffer) == {7}


def test_through_a_pipe_there_and_back_again(allocator):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=fill_from_pipe, args=(there, 8))
    worker.start()
    there.close()
    buffer = allocator.empty(5000)
    here.send(buffer[1000:2000])
    assert here.recv() == 1000
    back = here.recv()
    assert len(back) == 1000
    assert content(back) == {8}
    assert back.address == buffer.address + 1000
    here.send(None)
    worker.join(60)
    assert content(buffer[1000:2000]) == {8}


def test_as_arguments_of_a_process_and_of_pools(allocator):
    context = multiprocessing.get_context("spawn")
    buffer = allocator.empty(3000)
    worker = context.Process(target=fill, args=(buffer, 1))
    worker.start()
    worker.join(60)
    assert content(buffer) == {1}
    with context.Pool(1) as pool:
        assert pool.apply(fill, (buffer, 2)) == 3000
    assert content(buffer) == {2}
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(fill, buffer, 3).result(60) == 3000
    assert content(buffer) == {3}


def test_any_pickle_refuses_a_buffer_unless_it_was_asked_to_share(allocator):
    buffer = allocator.empty(3000)
    with pytest.raises(TypeError, match=r"allotment\.multiprocessing"):
        pickle.dumps(buffer)
    with allotment.multiprocessing.sharing():
        data = pickle.dumps({"buffer": buffer, "part": buffer[10:20]})
    with pytest.raises(TypeError):
        pickle.dumps(buffer)
    with Peer() as peer:
        sizes = peer.run(
            """
            import pickle
            sent = pickle.loads(data)
            memoryview(sent["part"])[:] = b"0123456789"
            result = len(sent["buffer"]), len(sent["part"]), sent["part"].address - sent["buffer"].address
            """,
            data=data,
        )
    assert sizes == (3000, 10, 10)
    assert bytes(memoryview(buffer)[10:20]) == b"0123456789"


def test_a_pickle_made_by_another_thread_shares_only_if_all_threads_do(allocator):
    buffer = allocator.empty(3000)
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()  # starts the thread: a free-threaded Python hands the context on to it
        with allotment.multiprocessing.sharing(), pytest.raises(TypeError):
            other.submit(pickle.dumps, buffer).result()
        with allotment.multiprocessing.sharing(all_threads=True):
            with allotment.multiprocessing.sharing(30, all_threads=True):
                pass
            assert pickle.loads(other.submit(pickle.dumps, buffer).result()).address == buffer.address
        with pytest.raises(TypeError):
            other.submit(pickle.dumps, buffer).result()


def pickled(buffer):
    """Hold it until it is received, however long that takes, as a queue does."""
    with allotment.multiprocessing.sharing(math.inf):
        return pickle.dumps(buffer)


def active(allocator):
    allocator.inspection.check_invariants()
    return allocator.stats()["active_bytes.all.current"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("settings", ["", ",expandable_segments:True", ",placement:dense"])
def test_what_was_sent_is_counted_after_it_was_received_and_nothing_is_held(monkeypatch, method, settings):
    monkeypatch.setattr(allotment.multiprocessing, "HOLD_SECONDS", math.inf)  # only the receiver can end a hold
    allocator = Allocator("host", settings=f"shareable:True{settings}")
    context = multiprocessing.get_context(method)
    queue, done = context.Queue(), context.Queue()
    worker = context.Process(target=close_what_comes, args=(queue, 7, done))
    worker.start()

    def send(count):
        buffers = [allocator.empty(100_000) for _ in range(count)]
        for buffer in buffers:
            queue.put(buffer)
        assert [done.get(timeout=60) for _ in buffers] == [7] * count
        assert all(content(buffer) == {7} for buffer in buffers)
        for buffer in buffers:
            buffer.close()
        wait_until(lambda: active(allocator) == 0)
        wait_until(everything_is_closed)
        allocator.empty_cache()
        return allocator.stats()["reserved_bytes.all.current"]

    assert send(1) == 0
    before = descriptors()
    assert send(100) == 0
    wait_until(lambda: descriptors() <= before)  # fewer, if objects of an earlier test end meanwhile
    queue.put(None)
    worker.join(60)


def test_each_send_of_a_block_is_held_for_its_own_receiver(allocator):
    buffer = allocator.empty(3000)
    fill(buffer, 5)
    first, second = pickled(buffer), pickled(buffer)
    buffer.close()
    with Peer() as one, Peer() as two:
        receive = "import pickle\nwith pickle.loads(data) as b: result = set(bytes(memoryview(b)))"
        assert one.run(receive, data=first) == {5}
        one.run("wait_until(everything_is_closed)")
        assert active(allocator) > 0
        assert two.run(receive, data=second) == {5}
        wait_until(lambda: active(allocator) == 0)
        with pytest.raises(SharingError) as raised:
            one.run(receive, data=first)
        assert raised.value.reason == "expired"


def test_a_handle_stays_openable_after_it_was_opened_and_closed_and_a_send_was_received(allocator):
    buffer = allocator.empty(3000)
    handle, data = allocator.share(buffer, hold=math.inf), pickled(buffer)
    buffer.close()
    with Peer() as peer:
        peer.run("import pickle; pickle.loads(data).close()", data=data)
        for _ in range(2):
            peer.run("open_shared(handle).close(); wait_until(everything_is_closed)", handle=handle)
    wait_until(everything_is_closed)
    assert active(allocator) > 0
    handle.close()
    wait_until(lambda: active(allocator) == 0)


def test_closing_a_handle_does_not_end_a_send_that_is_on_its_way(allocator):
    buffer = allocator.empty(3000)
    data = pickled(buffer)
    allocator.share(buffer).close()
    buffer.close()
    assert active(allocator) > 0
    with Peer() as peer:
        assert peer.run("import pickle\nwith pickle.loads(data) as b: result = len(b)", data=data) == 3000
    wait_until(lambda: active(allocator) == 0)


def test_what_a_receiver_sends_on_and_closes_is_held_for_the_next_one(allocator):
    buffer = allocator.empty(3000)
    fill(buffer, 6)
    data = pickled(buffer)
    buffer.close()
    send_on = """
    import math, pickle, allotment.multiprocessing
    with allotment.multiprocessing.sharing(math.inf), pickle.loads(data) as received:
        result = pickle.dumps(received)
    wait_until(everything_is_closed)
    """
    with Peer() as second, Peer() as third:
        data = second.run(send_on, data=data)
        assert active(allocator) > 0
        with pickle.loads(data) as back:  # the owner is a receiver like others
            data = pickled(back)
        data = third.run(send_on, data=data)
        assert second.run("with pickle.loads(data) as b: result = set(bytes(memoryview(b)))", data=data) == {6}
    wait_until(lambda: active(allocator) == 0)


@pytest.mark.parametrize("hold", [-1, float("nan"), "long"])
def test_what_is_not_a_time_holds_nothing(hold):
    with pytest.raises(RequestError, match="seconds from 0 on"), allotment.multiprocessing.sharing(hold):
        pass


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")
def test_through_dask(allocator):
    from distributed import Client

    buffer = allocator.empty(3000)
    cluster = Client(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster as client, allotment.multiprocessing.sharing(all_threads=True):
        for value in (4, 5):
            assert client.submit(fill, buffer, value, pure=False).result(60) == 3000
            assert content(buffer) == {value}


def test_a_third_process_opens_what_it_gets_from_the_second(allocator):
    buffer = allocator.empty(100)
    with Peer() as second, Peer() as third:
        second.run("buffer = open_shared(handle)", handle=allocator.share(buffer))
        data = second.run(
            """
            import pickle, allotment.multiprocessing
            with allotment.multiprocessing.sharing():
                result = pickle.dumps(buffer)
            """
        )
        third.run("import pickle; memoryview(pickle.loads(data))[:3] = b'two'", data=data)
    assert bytes(memoryview(buffer)[:3]) == b"two"


def test_memory_that_is_not_shared_is_not_sent():
    with Allocator("host") as allocator, allocator.empty(10) as buffer, allotment.multiprocessing.sharing():
        with pytest.raises(UnsupportedError, match="shareable:True"):
            pickle.dumps(buffer)
        with pytest.raises(UnsupportedError, match="cannot be shared"):
            pickle.dumps(allocator.empty(0))


def test_nothing_is_turned_on_by_importing_the_package():
    program = (
        "import sys, allotment\n"
        "assert 'multiprocessing' not in sys.modules\n"
        "from multiprocessing.reduction import ForkingPickler\n"
        "a = allotment.Allocator('sim:1GiB')\n"
        "try:\n    ForkingPickler.dumps(a.empty(1))\nexcept TypeError:\n    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


def test_a_program_that_ends_with_memory_of_others_open_is_silent(allocator):
    buffer = allocator.empty(3000)
    data = pickled(buffer)
    kept_to_the_end = f"import pickle, sys; sys.kept = pickle.loads({data!r}); memoryview(sys.kept)[:] = b'7' * 3000"
    output_of(kept_to_the_end)
    assert content(buffer) == {ord("7")}
    buffer.close()
    wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)


def test_a_child_that_was_forked_before_the_first_share_opens_blocks():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    worker = context.Process(target=fill_from_pipe, args=(there, 9))
    worker.start()
    there.close()
    allocator = Allocator("host", settings="shareable:True")
    buffer = allocator.empty(200)
    here.send(buffer)
    assert here.recv() == 200
    with here.recv() as back:
        assert back.address == buffer.address
    here.send(None)
    worker.join(60)
    assert content(buffer) == {9}
    with open_shared(allocator.share(buffer)) as again:
        assert again.address == buffer.address
