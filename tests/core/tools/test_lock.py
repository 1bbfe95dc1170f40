"""The engine's mutex: one holder at a time, and the holder is known."""

import ctypes
import errno
import os
import struct
import sys
import threading

import pytest

from helpers.effort import some
from helpers.forked import goes_well_in_child
from helpers.threads import in_a_thread

BARRIER_CALL = {"x86_64": 324, "aarch64": 283}  # the number of membarrier


def test_a_free_lock_is_taken_and_a_held_one_is_not(tools):
    lock = tools.Guarded()
    assert lock.try_it()
    assert not lock.try_it()
    lock.give()
    assert lock.try_it()


def test_only_the_holder_finds_the_lock_to_be_its_own(tools):
    lock = tools.Guarded()
    assert not lock.is_mine()
    lock.try_it()
    assert lock.is_mine()
    assert in_a_thread(lock.is_mine) is False
    assert in_a_thread(lock.try_it) is False
    lock.give()
    assert not lock.is_mine()


def test_a_lock_passes_from_thread_to_thread(tools):
    lock = tools.Guarded()
    assert in_a_thread(lambda: (lock.try_it(), lock.is_mine(), lock.give())) == (True, True, None)
    assert lock.try_it()


@pytest.mark.threads
def test_a_thread_that_waits_gets_the_lock_when_it_is_released(tools):
    lock, got_it = tools.Guarded(), threading.Event()
    lock.wait()
    thread = threading.Thread(target=lambda: (lock.wait(), got_it.set(), lock.give()))
    thread.start()
    assert not got_it.is_set()  # it cannot: this thread holds the lock
    lock.give()
    thread.join()
    assert got_it.is_set()


@pytest.mark.threads
def test_what_is_done_under_the_lock_is_done_by_one_thread_at_a_time(tools):
    lock = tools.Guarded()
    threads = [threading.Thread(target=lock.add, args=(50_000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lock.number == 200_000


@pytest.fixture
def favored(tools):
    """Return a lock that favors this thread."""
    lock = tools.Guarded()
    if not lock.allow_bias():
        pytest.skip("this system has no barrier of all threads")
    lock.until_favored()
    return lock


def test_a_thread_that_acquires_a_lock_often_in_succession_is_favored_and_all_else_is_as_before(favored):
    assert favored.try_it()
    assert favored.is_mine()
    assert not favored.try_it()
    assert in_a_thread(favored.is_mine) is False
    favored.give()
    assert not favored.is_mine()
    assert favored.is_favored()


def test_a_lock_whose_bias_was_not_allowed_favors_nobody(tools):
    lock = tools.Guarded()
    lock.add(10_000)
    assert not lock.is_favored()


def test_threads_that_take_turns_are_not_favored(tools):
    lock = tools.Guarded()
    if lock.allow_bias():
        for _ in range(5):
            lock.add(300)
            in_a_thread(lambda: lock.add(300))
        assert not lock.is_favored()


def test_another_thread_revokes_the_bias_for_good(favored):
    assert in_a_thread(lambda: (favored.try_it(), favored.is_mine(), favored.give())) == (True, True, None)
    favored.add(10_000)
    assert not favored.is_favored()
    assert not favored.allow_bias()


def test_another_thread_does_not_get_a_lock_that_its_favored_thread_holds(favored):
    favored.try_it()
    assert in_a_thread(favored.try_it) is False
    assert favored.is_mine()
    assert not favored.try_it()
    favored.give()
    assert not favored.is_mine()
    assert in_a_thread(lambda: (favored.try_it(), favored.give())) == (True, None)
    assert favored.try_it()


def test_the_favored_thread_lends_the_lock_and_gets_it_back_also_after_another_had_it(favored):
    for has_another in (False, True):
        favored.try_it()
        favored.lend()
        assert not favored.is_mine()
        assert favored.away() == 1
        if has_another:
            assert in_a_thread(lambda: (favored.try_it(), favored.give())) == (True, None)
        favored.reclaim()
        assert favored.is_mine()
        assert favored.away() == 0
        favored.give()


def test_a_thread_that_lent_the_lock_before_another_was_favored_gets_it_back(tools):
    lock = tools.Guarded()
    if not lock.allow_bias():
        pytest.skip("this system has no barrier of all threads")
    lock.try_it()
    lock.lend()
    in_a_thread(lock.until_favored)
    assert lock.away() == 1
    lock.reclaim()
    assert lock.is_mine()
    assert lock.away() == 0
    assert not lock.is_favored()
    lock.give()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_fork_keeps_the_bias_of_the_thread_that_forked_and_its_other_threads_revoke_it(favored):
    def use():
        favored.add(1)
        assert favored.is_favored()
        assert in_a_thread(lambda: (favored.try_it(), favored.give())) == (True, None)
        assert not favored.is_favored()
        favored.add(1)

    assert goes_well_in_child(use)


def test_a_child_of_fork_forgets_a_thread_that_was_trying_the_lock_while_the_favored_one_forked(favored):
    favored.try_it()
    assert in_a_thread(favored.take_word)  # and is then not in the child
    favored.forget_other_threads()
    assert favored.is_mine()
    favored.give()
    assert in_a_thread(lambda: (favored.try_it(), favored.give())) == (True, None)
    assert favored.try_it()


def refuse_system_call(number):
    """Make the kernel answer it with EPERM, for this thread and those that it starts."""
    allowed, refused = 0x7FFF_0000, 0x0005_0000 | errno.EPERM
    steps = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, number),
        (0x06, 0, 0, refused),
        (0x06, 0, 0, allowed),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    no_new_privileges, set_filter, by_program = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_filter, by_program, program, 0, 0) == 0


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine not in BARRIER_CALL, reason="its number is not known")
def test_without_the_barrier_the_bias_is_revoked_after_a_wait(favored):
    def use():
        refuse_system_call(BARRIER_CALL[os.uname().machine])
        assert ctypes.CDLL(None).syscall(BARRIER_CALL[os.uname().machine], 0, 0, 0) == -1
        assert in_a_thread(lambda: (favored.try_it(), favored.give())) == (True, None)
        assert not favored.is_favored()
        assert favored.try_it()

    assert goes_well_in_child(use)


@pytest.mark.threads
@pytest.mark.parametrize("action", ["add", "add_around_unlocked_sections"])
def test_a_bias_that_is_revoked_at_any_moment_lets_no_two_threads_in(tools, action):
    """Both run without the interpreter lock: the favored thread from before the other's first try until after it."""
    for number in range(some(300)):
        lock = tools.Guarded()
        lock.allow_bias()
        adds = getattr(lock, action)
        start = threading.Barrier(2)

        def favor(lock=lock, adds=adds, start=start, number=number):
            lock.add(2000)
            start.wait()
            adds(5000 + 97 * number % 5000)

        def revoke(adds=adds, start=start):
            start.wait()
            adds(500)

        threads = [threading.Thread(target=work) for work in (favor, revoke, revoke)[:2]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        each = 2 if "unlocked" in action else 1
        assert lock.number == 2000 + each * (5000 + 97 * number % 5000 + 500)
