"""The engine's mutex: one word, acquired with one atomic compare-and-exchange, released with one plain store.

A system mutex costs two atomic read-modify-writes for each pair of lock and unlock, as much as the whole cache hit that
it protects. Here the release is a store. A thread that has to wait looks again and again, each time after a longer
pause, then yields, then sleeps in short steps. The pauses let the holder's next acquisitions find the word in its own
cache: threads that all look at once would take it from each other at each of them, which costs ten times as much. A
late wake-up costs nothing that matters where the holder is in the driver.

The lowest bit of the word says that the lock is held. The bits above count the threads that have released the lock in
the middle of an operation and will acquire it again (`lock_lend`, `lock_reclaim`). So one load of the word tells that
no thread is inside and none will come back; two separate words could change between two loads.

A lock that one thread uses alone can do without the atomic operation: see `bias`. Its favored thread is the holder
while `bias.inside` is 1; `word` and `owner` do not tell. So only a lock without bias can be asked whether it is unused.

The lock knows its owner, because code that runs under it (a callback, a backend written in Python) can call the engine
again on the same thread. Such a call must be detected; waiting for the lock would deadlock.
"""

from cpython.pystate cimport PyThreadState
from libc.stdint cimport uint64_t

from allotment._core.tools.bias cimport (
    BY_BIAS, BY_WORD, NO_PASSAGE, Bias, Passage, bias_allow, bias_enter, bias_favors, bias_holds, bias_keeps_out,
    bias_leave, bias_pass)
from allotment._core.tools.interpreter cimport let_interpreter_go, take_interpreter_back

cdef extern from *:
    """
    #ifndef ALLOTMENT_LOCK
    #define ALLOTMENT_LOCK
    enum { ALLOTMENT_LOCK_SPINS = 16 };     /* rounds: 10 to 40 microseconds */
    #if defined(_MSC_VER)
    #include <intrin.h>
    #include <windows.h>
    static __inline int allotment_lock_take(volatile long* word) { return (_InterlockedOr(word, 1) & 1) == 0; }
    static __inline void allotment_lock_give(volatile long* word, long more) {
        _InterlockedExchange(word, (*word & ~1L) + more);
    }
    static __inline void allotment_lock_add(volatile long* word, long more) { _InterlockedExchangeAdd(word, more); }
    static __inline int allotment_lock_retake(volatile long* word) {
        long seen = *word;
        return (seen & 1) == 0 && _InterlockedCompareExchange(word, seen - 1, seen) == seen;
    }
    static __inline int allotment_lock_is_open(const volatile long* word) { return (*word & 1) == 0; }
    static __inline int allotment_lock_is_unused(volatile long* word) { return *word == 0; }
    static __inline long allotment_lock_out(volatile long* word) { return *word >> 1; }
    #define allotment_owner_set(place, value) (*(volatile unsigned __int64*)(place) = (value))
    #define allotment_owner_get(place) (*(volatile unsigned __int64*)(place))
    static __inline void allotment_lock_relax(int round) {
        if (round < ALLOTMENT_LOCK_SPINS)
            for (int pauses = 1 << (round < 6 ? round : 6); pauses > 0; pauses--) YieldProcessor();
        else if (round < ALLOTMENT_LOCK_SPINS + 32) SwitchToThread();
        else Sleep(1);
    }
    #else
    #include <sched.h>
    #include <time.h>
    /* From 0, as nearly always, in one instruction without a load before it. */
    static inline int allotment_lock_take(volatile long* word) {
        long seen = 0;
        return __builtin_expect(__atomic_compare_exchange_n(word, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED), 1)
            || ((seen & 1) == 0 && (__atomic_fetch_or(word, 1, __ATOMIC_ACQUIRE) & 1) == 0);
    }
    /* The holder undoes the acquisition: a thread that its bias lets in may change the count at this moment. */
    static inline void allotment_lock_add(volatile long* word, long more) {
        __atomic_fetch_add(word, more, __ATOMIC_RELEASE);
    }
    /* Only the holder changes the bits above the lowest, so a plain load and store will do. */
    static inline void allotment_lock_give(volatile long* word, long more) {
        __atomic_store_n(word, (__atomic_load_n(word, __ATOMIC_RELAXED) & ~1L) + more, __ATOMIC_RELEASE);
    }
    /* One thread fewer is outside, and the lock is held: minus 2 and plus 1. */
    static inline int allotment_lock_retake(volatile long* word) {
        long seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        return (seen & 1) == 0
            && __atomic_compare_exchange_n(word, &seen, seen - 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    }
    static inline int allotment_lock_is_open(const volatile long* word) {
        return (__atomic_load_n(word, __ATOMIC_RELAXED) & 1) == 0;
    }
    /* Acquire: a thread that sees the lock unused, and has another reason to come in, sees the last owner's writes. */
    static inline int allotment_lock_is_unused(volatile long* word) {
        return __atomic_load_n(word, __ATOMIC_ACQUIRE) == 0;
    }
    static inline long allotment_lock_out(volatile long* word) {
        return __atomic_load_n(word, __ATOMIC_RELAXED) >> 1;
    }
    #define allotment_owner_set(place, value) __atomic_store_n(place, value, __ATOMIC_RELAXED)
    #define allotment_owner_get(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    static inline void allotment_lock_relax(int round) {
        if (round < ALLOTMENT_LOCK_SPINS) {
            for (int pauses = 1 << (round < 6 ? round : 6); pauses > 0; pauses--)
    #if defined(__x86_64__) || defined(__i386__)
                __builtin_ia32_pause();
    #elif defined(__aarch64__)
                __asm__ __volatile__("yield");
    #else
                __asm__ __volatile__("");
    #endif
        } else if (round < ALLOTMENT_LOCK_SPINS + 32) {
            sched_yield();
        } else {
            struct timespec pause = {0, 20000};
            nanosleep(&pause, 0);
        }
    }
    #endif
    #endif
    """
    bint allotment_lock_take(long* word) noexcept nogil
    void allotment_lock_give(long* word, long more) noexcept nogil
    void allotment_lock_add(long* word, long more) noexcept nogil
    bint allotment_lock_retake(long* word) noexcept nogil
    bint allotment_lock_is_open(const long* word) noexcept nogil
    bint allotment_lock_is_unused(long* word) noexcept nogil
    long allotment_lock_out(long* word) noexcept nogil      # threads that will be back; others may hold it meanwhile
    void allotment_lock_relax(int round) noexcept nogil
    int ALLOTMENT_LOCK_SPINS
    void allotment_owner_set(uint64_t* place, uint64_t value) noexcept nogil
    uint64_t allotment_owner_get(uint64_t* place) noexcept nogil

cdef extern from *:
    """
    #include <pythread.h>
    #if defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
    /* Costs no call. Not Python's thread ident everywhere: pthread_self adds an offset on ARM. */
    #define allotment_this_thread() ((unsigned long) __builtin_thread_pointer())
    #else
    #define allotment_this_thread() PyThread_get_thread_ident()
    #endif
    """
    uint64_t this_thread "allotment_this_thread"() noexcept nogil

cdef enum:
    HELD = 1
    LENT = 2

cdef struct Lock:       # begins as zeros
    long word           # HELD, plus LENT for each thread that will be back
    uint64_t owner      # the thread that holds the word, 0 when free
    Bias bias


cdef inline void lock_allow_bias(Lock* lock) noexcept nogil:
    """Make the lock cheaper for programs that use it on one thread."""
    bias_allow(&lock.bias)


cdef inline bint lock_try(Lock* lock) noexcept nogil:
    cdef uint64_t thread = this_thread()
    if bias_favors(&lock.bias, thread):
        if bias_holds(&lock.bias, thread):
            return False
        if bias_enter(&lock.bias, thread):
            return True
    return allotment_lock_take(&lock.word) and pass_bias(lock, thread, -HELD)


cdef inline bint pass_bias(Lock* lock, uint64_t thread, long undo) noexcept nogil:
    """The rest of an acquisition. `undo` is what to add to the word if the favored thread is inside."""
    cdef Passage passage = bias_pass(&lock.bias, thread)
    if passage == BY_WORD:
        allotment_owner_set(&lock.owner, thread)
        return True
    allotment_lock_add(&lock.word, undo if passage == NO_PASSAGE else -HELD)
    return passage == BY_BIAS


cdef inline bint lock_looks_free(const Lock* lock) noexcept nogil:
    return allotment_lock_is_open(&lock.word) and not bias_keeps_out(&lock.bias)


cdef inline void lock_wait(Lock* lock) noexcept nogil:
    """Acquire the lock, however long that takes. pre: not held by this thread, interpreter lock not held."""
    cdef int round = 0
    while not (lock_looks_free(lock) and lock_try(lock)):
        allotment_lock_relax(round)
        round += 1


cdef inline void lock_wait_outside(Lock* lock) noexcept nogil:
    """The same for callers that may hold the interpreter lock. Releases it meanwhile: the owner of `lock` may need it.

    A fork does, between acquiring all locks and releasing them. Most owners only need some nanoseconds, which is less
    than it takes to release the interpreter lock, or to detach from a free-threaded interpreter.
    """
    cdef PyThreadState* state
    cdef int round
    for round in range(ALLOTMENT_LOCK_SPINS):
        if lock_looks_free(lock) and lock_try(lock):
            return
        allotment_lock_relax(round)
    state = let_interpreter_go()
    lock_wait(lock)
    take_interpreter_back(state)


cdef inline void lock_give(Lock* lock) noexcept nogil:
    if bias_holds(&lock.bias, this_thread()):
        bias_leave(&lock.bias)
        return
    allotment_owner_set(&lock.owner, 0)
    allotment_lock_give(&lock.word, 0)


cdef inline void lock_lend(Lock* lock) noexcept nogil:
    """Release the lock for a while, as `lock_reclaim` will follow."""
    if bias_holds(&lock.bias, this_thread()):
        allotment_lock_add(&lock.word, LENT)
        bias_leave(&lock.bias)
        return
    allotment_owner_set(&lock.owner, 0)
    allotment_lock_give(&lock.word, LENT)


cdef inline void lock_reclaim(Lock* lock) noexcept nogil:
    """Acquire a lent lock again. pre: as for `lock_wait`, unless the lock is free at once"""
    cdef uint64_t thread = this_thread()
    cdef int round = 0
    while True:
        if bias_favors(&lock.bias, thread) and bias_enter(&lock.bias, thread):
            allotment_lock_add(&lock.word, -LENT)
            return
        if allotment_lock_retake(&lock.word) and pass_bias(lock, thread, LENT - HELD):
            return
        allotment_lock_relax(round)
        round += 1


cdef inline bint lock_is_mine(Lock* lock) noexcept nogil:
    """Whether the calling thread holds the lock. No other thread writes this thread's id there."""
    cdef uint64_t thread = this_thread()
    return allotment_owner_get(&lock.owner) == thread or bias_holds(&lock.bias, thread)


cdef inline void lock_forget_other_threads(Lock* lock) noexcept nogil:
    """In a child of fork: forget what threads of the parent were about to do. pre: the calling thread holds the lock"""
    if not bias_holds(&lock.bias, this_thread()):
        bias_leave(&lock.bias)
    elif not allotment_lock_is_open(&lock.word):
        allotment_lock_add(&lock.word, -HELD)
