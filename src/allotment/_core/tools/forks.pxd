"""Locks that survive a fork in a consistent state.

A child of fork has one thread. A lock that another thread held at that moment would stay locked for ever, over data in
the middle of a change. So every owner of a lock registers the lock here. A fork acquires all registered locks, waiting
for their holders, and releases them in parent and child. In the child an owner can also discard the parent's state,
before any lock is released.

The fork tries all locks; if one is held, it releases the others and starts again. So locks may nest in any order.

When the fork acquires a lock depends on what may run under the lock. Neither time would work for both kinds:

    long locks      in Python's hook, ahead of the fork (`fork_safe_lock`). Code under them may need the interpreter: a
                    device or a callback written in Python. So the fork waits for them without the interpreter lock.
                    Inside `fork` that is impossible: Python keeps its import lock there, and from 3.13 on its list
                    of threads.
    short locks     inside `fork`, by `pthread_atfork`. Python code of others runs between hook and fork (more hooks,
                    destructors that a collection runs). On the forking thread it would deadlock on a short lock that
                    the fork already holds. A long lock knows its owner and lets that thread reenter.

A fork that bypasses Python runs only the second step. It can still acquire the long locks that are free; a held one
stays locked in its child. A long lock that the forking thread itself holds stays with that thread.
"""

from libc.stdint cimport uint64_t

cdef enum LockKind:
    LONG_LOCK               # a Lock
    SHORT_LOCK              # a Lock; code under it blocks on nothing but other short locks
    SHORT_MUTEX             # the same as a pthread_mutex_t, which condition variables need

cdef enum Taken:
    NOT_TAKEN
    AHEAD_OF_FORK
    IN_FORK

cdef struct ForkGuard:      # begins as zeros
    void (*start_anew)(void* owner) noexcept nogil      # called in the child, with all locks held; or NULL
    void* owner
    LockKind kind
    void* lock
    Taken taken             # by the current fork
    ForkGuard* prev
    ForkGuard* next

cdef void guard_forks(ForkGuard* guard, LockKind kind, void* lock) noexcept nogil

# Does nothing for a guard that was never registered.
cdef void unguard_forks(ForkGuard* guard) noexcept nogil

# Acquires every long lock, ahead of a fork. Returns False, holding none, if a thread keeps one of them for too long.
# Between the two calls only the forking thread can register a long lock; other threads wait. pre: interpreter lock held
cdef bint take_long_locks() noexcept
cdef void give_long_locks() noexcept

# The number of forks between the first process and this one: tells a child from its parent.
cdef uint64_t fork_depth() noexcept nogil
