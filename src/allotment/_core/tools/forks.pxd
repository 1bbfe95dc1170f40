"""Locks that a fork leaves in order.

A child of fork has one thread: what any other held at that moment would be held for ever, over data in the middle of a
change. So whoever owns a lock makes it known here; a fork takes them all, waiting for those who have one, and gives
them back on both sides. In the child an owner can also leave what is the parent's, before anything is given back.

All are tried, and if one is taken the others are given back and it starts anew: so locks may nest in any order.

When a lock is taken depends on what may happen under it, and neither time would do for both kinds:

    long locks      in Python's hook, ahead of the fork (`fork_safe_lock`). Code under them may want the interpreter: a
                    device or a callback written in Python. So they are waited for with the interpreter lock let go,
                    and inside `fork` it is too late for that: Python keeps its import lock there, and from 3.13 on
                    its list of threads.
    short locks     inside `fork`, by `pthread_atfork`. Between hook and fork comes Python code of others (more hooks,
                    destructors of what a collection finds); on the forking thread it would wait for ever for a
                    short lock that the fork had already. A long lock knows its owner, and sees that thread come back.

A fork that bypasses Python passes by the second time only. It can still take the long locks that are free; one that is
taken stays so in its child. A long lock that the forking thread itself holds is left to it.
"""

from libc.stdint cimport uint64_t

cdef enum LockKind:
    LONG_LOCK               # a Lock
    SHORT_LOCK              # a Lock; nothing is waited for under it, except short ones
    SHORT_MUTEX             # the same as a pthread_mutex_t, which threads need to wait for conditions

cdef enum Taken:
    NOT_TAKEN
    AHEAD_OF_FORK
    IN_FORK

cdef struct ForkGuard:      # begins as zeros
    void (*start_anew)(void* owner) noexcept nogil      # called in the child, with all locks held; or NULL
    void* owner
    LockKind kind
    void* lock
    Taken taken             # by the fork that is under way
    ForkGuard* prev
    ForkGuard* next

cdef void guard_forks(ForkGuard* guard, LockKind kind, void* lock) noexcept nogil

# Nothing happens to one that was never made known.
cdef void unguard_forks(ForkGuard* guard) noexcept nogil

# Every long lock, ahead of a fork: False, and none is held, if somebody keeps one of them for longer. No long lock is
# made known between the two, except by the thread that forks: others wait. The caller has the interpreter lock.
cdef bint take_long_locks() noexcept
cdef void give_long_locks() noexcept

# How many forks lie between the first process and this one: tells a child from its parent.
cdef uint64_t fork_depth() noexcept nogil
