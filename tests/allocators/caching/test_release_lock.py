"""With the setting, other threads may enter while the device allocates: everything may be different afterwards."""

import threading
from itertools import pairwise

import pytest

from allotment.errors import OutOfMemoryError
from helpers.engine import BUFFER, MIB, check, empties, on_device, reserved

pytestmark = pytest.mark.threads

LET_GO = "release_lock_on_cudamalloc:True"


class Meanwhile:
    """A device that lets other threads run while it allocates. `then` says whether it has the memory."""

    def __init__(self, device, do, then=True):
        self.device, self.do, self.then = device, do, then
        self.next_address = 1 << 44

    def segment(self, size, stream):
        self.device.script = None  # once
        self.do()
        return self.next_address if self.then else None


def run_in_thread(function):
    """Run a thread to its end; a lock that is held would prevent that."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive(), "the other thread was kept waiting"


def test_a_thread_is_served_while_the_device_allocates_for_another():
    alloc = on_device(settings=LET_GO)
    cached = alloc.malloc(MIB, stream=2)
    alloc.free(cached)
    served = []
    alloc.device.script = Meanwhile(
        alloc.device, lambda: run_in_thread(lambda: served.append(alloc.malloc(MIB, stream=2)))
    )
    alloc.malloc(30 * MIB)
    assert served == [cached]
    check(alloc)


def test_without_the_setting_a_thread_waits_until_the_device_has_allocated():
    alloc = on_device()
    cached = alloc.malloc(MIB, stream=2)
    alloc.free(cached)
    order = []
    threads = [threading.Thread(target=lambda: (alloc.malloc(MIB, stream=2), order.append("other thread")))]

    def start():
        threads[0].start()
        order.append("device")

    alloc.device.script = Meanwhile(alloc.device, start)
    alloc.malloc(30 * MIB)
    threads[0].join()
    assert order == ["device", "other thread"]
    check(alloc)


def test_the_figures_can_be_read_while_the_device_allocates():
    alloc = on_device(settings=LET_GO)
    alloc.malloc(MIB)
    seen = []
    alloc.device.script = Meanwhile(alloc.device, lambda: (check(alloc), seen.append(reserved(alloc))))
    alloc.malloc(30 * MIB)
    assert seen == [BUFFER]
    assert reserved(alloc) == BUFFER + 30 * MIB
    check(alloc)


def test_a_block_freed_meanwhile_is_not_looked_for_again():
    alloc = on_device(settings=LET_GO)
    held = alloc.malloc(30 * MIB)
    alloc.device.script = Meanwhile(alloc.device, lambda: alloc.free(held))
    assert alloc.malloc(30 * MIB) != held
    assert reserved(alloc) == 60 * MIB
    check(alloc)


@pytest.mark.parametrize("granted", [True, False])
def test_a_pool_closed_meanwhile_still_serves_the_request_in_progress(granted):
    alloc = on_device(settings=LET_GO)
    pool = (0, 1_000_001)
    alloc.pools.begin_allocate_to_pool(pool)

    def give_up():
        alloc.pools.end_allocate_to_pool(pool)
        alloc.pools.release(pool)
        alloc.pools.create_or_incref((0, 1_000_002))  # would take the place of a pool that is gone

    # After a refusal, the request releases everything cached, including a pool without users and memory.
    alloc.device.script = Meanwhile(alloc.device, give_up, then=granted)
    address = alloc.malloc(30 * MIB)
    assert [s["segment_pool_id"] for s in alloc.history.segments()] == [pool]
    check(alloc)
    alloc.free(address)
    empties(alloc)
    alloc.pools.create_or_incref(pool)  # by now the pool is gone
    assert alloc.pools.use_count(pool) == 1


def test_a_limit_set_meanwhile_counts_for_the_next_request():
    alloc = on_device(settings=LET_GO)

    def forbid():
        alloc.limit = 0

    alloc.device.script = Meanwhile(alloc.device, forbid)
    alloc.malloc(30 * MIB)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    check(alloc)


def test_threads_that_all_ask_the_device_never_share_memory():
    alloc = on_device(settings=LET_GO)
    start = threading.Barrier(4)
    held = [[] for _ in range(4)]
    failures = []

    def work(own, stream):
        try:
            start.wait()
            for turn in range(60):
                own.append((alloc.malloc(3 * MIB + turn * 512, stream), 3 * MIB))
                if turn % 3 == 2:
                    alloc.free(own.pop(0)[0])
                if turn % 20 == 19:
                    alloc.empty_cache()
        except BaseException as error:  # otherwise nobody would see a thread's error
            failures.append(error)

    threads = [threading.Thread(target=work, args=(own, number % 2)) for number, own in enumerate(held)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    blocks = sorted(block for own in held for block in own)
    assert all(address + size <= later for (address, size), (later, _) in pairwise(blocks))
    check(alloc)
    for address, _ in blocks:
        alloc.free(address)
    empties(alloc)
