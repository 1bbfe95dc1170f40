# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a short lock must never wait for that.
from cpython.pystate cimport PyThreadState
from libc.stdint cimport uint64_t

from allotment._core.tools.interpreter cimport let_interpreter_go, take_interpreter_back
from allotment._core.tools.lock cimport (
    Lock, allotment_lock_relax, allotment_owner_get, allotment_owner_set, lock_forget_other_threads, lock_give,
    lock_is_mine, lock_try, lock_wait, this_thread)

cdef extern from *:
    """
    #if defined(_WIN32)
    #define allotment_at_fork(before, in_parent, in_child) 0
    #define allotment_mutex_try(mutex) 1
    #define allotment_mutex_give(mutex)
    #else
    #include <pthread.h>
    #define allotment_at_fork pthread_atfork
    #define allotment_mutex_try(mutex) (pthread_mutex_trylock((pthread_mutex_t*) (mutex)) == 0)
    #define allotment_mutex_give(mutex) pthread_mutex_unlock((pthread_mutex_t*) (mutex))
    #endif
    """
    int at_fork "allotment_at_fork"(void (*before)() noexcept nogil, void (*in_parent)() noexcept nogil,
                                    void (*in_child)() noexcept nogil)
    bint mutex_try "allotment_mutex_try"(void* mutex) noexcept nogil
    void mutex_give "allotment_mutex_give"(void* mutex) noexcept nogil

cdef enum:
    PATIENCE = 100              # attempts; the later ones pause first

cdef Lock registry              # guards the list, and is itself a short lock
cdef ForkGuard* first = NULL
cdef uint64_t depth = 0
cdef uint64_t forking = 0       # thread that holds the long locks for a fork; changed under the registry's lock


cdef void guard_forks(ForkGuard* guard, LockKind kind, void* lock) noexcept nogil:
    global first
    guard.kind = kind
    guard.lock = lock
    guard.prev = NULL
    lock_wait(&registry)
    while kind == LONG_LOCK and forking != 0 and forking != this_thread():
        lock_give(&registry)        # the fork would miss a long lock registered now, while a thread may hold that lock
        wait_for_fork()
        lock_wait(&registry)
    guard.next = first
    if first != NULL:
        first.prev = guard
    first = guard
    lock_give(&registry)


cdef void wait_for_fork() noexcept nogil:
    """Wait until no fork is in progress. Releases the interpreter lock, which the fork needs."""
    cdef PyThreadState* state = let_interpreter_go()
    cdef int round = 0
    while allotment_owner_get(&forking) != 0:
        allotment_lock_relax(round)
        round += 1
    take_interpreter_back(state)


cdef void unguard_forks(ForkGuard* guard) noexcept nogil:
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


cdef uint64_t fork_depth() noexcept nogil:
    return depth


cdef bint take(ForkGuard* guard, Taken time) noexcept nogil:
    """Return False if another thread holds it."""
    if guard.kind == LONG_LOCK and lock_is_mine(<Lock*> guard.lock):
        return True
    if not (mutex_try(guard.lock) if guard.kind == SHORT_MUTEX else lock_try(<Lock*> guard.lock)):
        return False
    guard.taken = time
    return True


cdef bint take_all(Taken time) noexcept nogil:
    """Acquire every lock due at this time, and the registry. Return False, holding nothing, if one of them is held."""
    cdef ForkGuard* guard
    if not lock_try(&registry):
        return False
    guard = first
    while guard != NULL:
        if guard.kind == LONG_LOCK and time == IN_FORK:
            take(guard, time)           # best effort: its holder may need the interpreter lock, which is held
        elif (guard.kind == LONG_LOCK) == (time == AHEAD_OF_FORK) and not take(guard, time):
            give_all(time)
            return False
        guard = guard.next
    return True


cdef void give_all(Taken time) noexcept nogil:
    """pre: the registry's lock is held; releases it too"""
    cdef ForkGuard* guard = first
    while guard != NULL:
        # Ahead of a fork the registry is unlocked, so another thread's fork may have taken some locks.
        if guard.taken == time and (time == IN_FORK or lock_is_mine(<Lock*> guard.lock)):
            guard.taken = NOT_TAKEN
            if guard.kind == SHORT_MUTEX:
                mutex_give(guard.lock)
            else:
                lock_give(<Lock*> guard.lock)
        guard = guard.next
    lock_give(&registry)


cdef bint take_long_locks() noexcept:
    cdef int round
    for round in range(PATIENCE):
        if take_all(AHEAD_OF_FORK):
            allotment_owner_set(&forking, this_thread())
            lock_give(&registry)
            return True
        with nogil:
            allotment_lock_relax(round)
    return False


cdef void give_long_locks() noexcept:
    lock_wait(&registry)
    allotment_owner_set(&forking, 0)
    give_all(AHEAD_OF_FORK)


cdef void before_fork() noexcept nogil:
    cdef int round = 0
    while not take_all(IN_FORK):
        allotment_lock_relax(round)
        round += 1


cdef void after_fork() noexcept nogil:
    give_all(IN_FORK)


cdef void after_fork_in_child() noexcept nogil:
    global depth
    cdef ForkGuard* guard = first
    depth += 1
    while guard != NULL:
        if guard.kind != SHORT_MUTEX and lock_is_mine(<Lock*> guard.lock):
            lock_forget_other_threads(<Lock*> guard.lock)
        if guard.start_anew != NULL:
            guard.start_anew(guard.owner)
        guard = guard.next
    after_fork()


if at_fork(before_fork, after_fork, after_fork_in_child) != 0:
    raise MemoryError("the host has no memory to register fork handlers")
