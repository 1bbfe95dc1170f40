from allotment.core.lock cimport Lock, allotment_lock_relax, lock_give, lock_is_mine, lock_try, lock_wait

import os

cdef Lock registry              # guards the list; held throughout a fork
cdef ForkGuard* first = NULL


cdef void guard_forks(ForkGuard* guard, Lock* lock) noexcept nogil:
    global first
    guard.lock = lock
    guard.held = False
    guard.prev = NULL
    lock_wait(&registry)
    guard.next = first
    if first != NULL:
        first.prev = guard
    first = guard
    lock_give(&registry)


cdef void unguard_forks(ForkGuard* guard) noexcept nogil:
    """Nothing happens to one that was never made known."""
    global first
    if guard.lock == NULL:
        return
    lock_wait(&registry)
    if guard.next != NULL:
        guard.next.prev = guard.prev
    if guard.prev != NULL:
        guard.prev.next = guard.next
    else:
        first = guard.next
    lock_give(&registry)
    guard.lock = NULL


cdef void give_all() noexcept nogil:
    cdef ForkGuard* guard = first
    while guard != NULL:
        if guard.held:
            guard.held = False
            lock_give(guard.lock)
        guard = guard.next
    lock_give(&registry)


cdef bint take_all() noexcept nogil:
    """False, and nothing is held, if somebody has one of them."""
    cdef ForkGuard* guard
    if not lock_try(&registry):
        return False
    guard = first
    while guard != NULL:
        if not lock_is_mine(guard.lock):
            guard.held = lock_try(guard.lock)
            if not guard.held:
                give_all()
                return False
        guard = guard.next
    return True


def _before_fork():
    cdef int round = 0
    while not take_all():
        with nogil:
            allotment_lock_relax(round)
        round += 1


def _after_fork():
    give_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
