"""The engine's mutex: one holder at a time, and the holder is known."""

import threading

import pytest

from helpers.threads import in_a_thread


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
def test_a_thread_that_waits_gets_the_lock_when_it_is_given_back(tools):
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
