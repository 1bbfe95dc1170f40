"""A lock of Python code is free in a forked child, whichever thread held it."""

import os
import threading

import pytest

from allotment._core.tools import fork_safe_lock as module
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from helpers.child import output_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def exit_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_the_holder_of_the_lock():
    lock = fork_safe_lock()
    taken, in_order = threading.Event(), []

    def hold():
        with lock:
            in_order.append("changing")
            taken.set()
            while len(in_order) < 1000:  # many switches of the interpreter lock
                in_order.append("changing")
            in_order.append("done")

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        with lock:
            os._exit(0 if in_order[-1] == "done" else 1)
    holder.join()

    assert exit_of(child) == 0


def test_the_forking_thread_may_hold_it():
    lock = fork_safe_lock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert exit_of(child) == 0
    other = threading.Thread(target=lock.acquire)
    other.start()
    other.join()


def test_two_that_are_nested_either_way_do_not_lock_up_a_fork():
    first, second = fork_safe_lock(), fork_safe_lock()
    over = threading.Event()

    gate = threading.Lock()  # without it the two threads would deadlock

    def guarded(outer, inner):
        while not over.is_set():
            with gate, outer, inner:
                pass

    threads = [threading.Thread(target=guarded, args=order) for order in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                with first, second:
                    os._exit(0)
            assert exit_of(child) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_fork_of_another_thread_waits_and_releases_nothing_of_the_first():
    lock = fork_safe_lock()
    second = threading.Thread(target=lambda: (module._ahead_of_fork(), module._behind_fork()))
    module._ahead_of_fork()
    try:
        second.start()
        second.join(0.05)  # it makes several attempts
        assert second.is_alive() and lock._is_owned()
    finally:
        module._behind_fork()
    second.join(60)
    assert not second.is_alive() and lock.acquire(blocking=False)
    lock.release()


def test_a_child_gets_the_shared_allocator_though_another_thread_was_making_it():
    printed = output_of(
        """
    import os, threading
    import allotment
    from allotment._allocators import current, make

    begun, go_on = threading.Event(), threading.Event()
    real = make.make_allocator

    def slow(*arguments, **named):
        begun.set()
        go_on.wait()
        return real(*arguments, **named)

    make.make_allocator = slow
    maker = threading.Thread(target=allotment.current, args=("sim:1GiB",))
    maker.start()
    begun.wait()
    threading.Timer(0.05, go_on.set).start()
    child = os.fork()
    if child == 0:
        allotment.current("sim:1GiB").malloc(100)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    maker.join()
    """
    )
    assert printed == "0\n"


def test_a_device_may_want_one_under_its_allocators_lock_while_another_thread_forks():
    printed = output_of(
        """
    import os, threading
    import allotment
    from allotment._core.tools.fork_safe_lock import fork_safe_lock

    lock, inside = fork_safe_lock(), threading.Event()

    class Device(allotment.Backend):
        def allocate(self, size, stream):
            inside.set()
            while lock.acquire(blocking=False):  # until the fork has it
                lock.release()
            with lock:
                return 1 << 30

        def free(self, address, size, stream):
            pass

    allocator = allotment.Allocator(Device())
    user = threading.Thread(target=allocator.malloc, args=(512,))
    user.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        with lock:
            os._exit(allocator.stats()["allocation.all.current"])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    user.join()
    """
    )
    assert printed == "1\n"


def test_another_thread_may_make_a_lock_while_a_fork_collects_them():
    printed = output_of(
        """
    import os, sys
    from allotment._core.tools.fork_safe_lock import fork_safe_lock

    lock, made = fork_safe_lock(), []

    def make_one(frame, event, argument):  # wherever another thread could run Python code
        if len(made) < 100:
            made.append(fork_safe_lock())
        return make_one

    sys.settrace(make_one)
    child = os.fork()
    sys.settrace(None)
    if child == 0:
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    )
    assert printed == "0\n"
