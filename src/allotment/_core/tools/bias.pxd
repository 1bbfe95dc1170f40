"""Bias: a lock that one thread uses alone is acquired and released by it without an atomic read-modify-write.

An atomic exchange waits until all earlier stores of the thread are done: about 6 ns, a quarter of an allocation and a
free. A lock whose bias is allowed (`bias_allow`) counts how often the same thread acquires it in succession, and then
favors that thread. The first acquisition by any other thread revokes the bias, for good: a lock that threads compete
for is an ordinary one from then on, and costs two loads more than without bias.

    favored     0: no bias is allowed; COUNTING; the favored thread's id; that id + 1: revoked
    inside      1 while the favored thread holds the lock through its bias. Only that thread writes it
    word        the ordinary lock's word (`lock.pxd`), whose lowest bit is acquired atomically

The favored thread F enters:                      Another thread O, which has just acquired the word:

    F1  inside = 1                                    O1  favored = F + 1
    F2  (the compiler keeps the order)                O2  barrier of all threads of the process
    F3  is favored still F? then F is inside          O3  is inside 0? then O is inside
        else inside = 0, and F acquires the word          else O releases the word, and tries again or gives up

and leaves with inside = 0.

**F and O are never both inside.** The barrier (Linux: membarrier) makes every running thread of the process execute a
full memory barrier between the call and its return; a thread that is not running executes one when it is switched. Let
m be that moment for F. If F3 comes after m, it sees O1, which came before, so F backs out. Otherwise F1, which comes
before F3 in the program, also comes before m, so its store is visible to O3: O sees 1, unless F has left meanwhile.

**The same holds for every later thread P.** P acquires the word after O has released it, so it sees O1, needs no
barrier, and checks `inside` as in O3. The same m separates F's entries: those after it back out, and those before it
are visible to O3, and so to P. There is no other favored thread: a thread becomes favored only if `favored` is
COUNTING, while it holds the word, and a revoked lock never returns to COUNTING. So nobody else ever writes `inside`,
however late a store of F comes. A late F1 can make O or P give up although nobody is inside, which is allowed: F backs
out at once.

**What one wrote the other sees.** F leaves with a release store, which O3 acquires. O leaves by releasing the word,
which F acquires once the bias is revoked. While it is not, no other thread has been inside since F became favored.

**The same thread again.** A callback or a signal handler that runs on F while F is inside finds `inside` 1, and does
not enter. One that runs before F1 enters and leaves again before F goes on. F, while it is favored, holds the word only
for the moment in which it becomes so; it stores `inside` 1 first.

**A fork** acquires the lock as any thread does. The child has the traces of threads that do not exist there, and
`lock_forget_other_threads` removes them: if another thread forked, `inside` may show a late F1; if F forked while it
was inside, the word may be held by an O that has not released it yet.

**A thread that gets F's id** after F's end inherits the bias, and sees F's writes, because the system synchronizes the
two where it recycles the id.

The word counts the threads that have lent the lock. Without bias only the holder changes that count, by plain stores.
F changes it while another thread may try the word, so F counts atomically, and a thread that gives up takes back its
bit atomically.

Without the system call no lock is ever favored. A program that forbids itself the call later (seccomp) leaves only
waiting: a processor makes its stores visible within nanoseconds, and at its next interrupt at the latest.
"""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #ifndef ALLOTMENT_BIAS
    #define ALLOTMENT_BIAS
    #include <stdint.h>
    #if defined(__linux__)
    #include <errno.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #endif
    #if defined(__linux__) && defined(__NR_membarrier) && defined(__GNUC__)
    enum { ALLOTMENT_BARRIER = 1 << 3, ALLOTMENT_REGISTER_BARRIER = 1 << 4 };  /* of linux/membarrier.h */
    __attribute__((unused, noinline)) static int allotment_barrier_is_ready(void) {
        return syscall(__NR_membarrier, ALLOTMENT_REGISTER_BARRIER, 0, 0) == 0;
    }
    __attribute__((unused, noinline)) static void allotment_barrier(void) {
        struct timespec several_interrupts = {0, 50000000};     /* and then what is left of them */
        if (syscall(__NR_membarrier, ALLOTMENT_BARRIER, 0, 0) == 0) return;
        if (allotment_barrier_is_ready() && syscall(__NR_membarrier, ALLOTMENT_BARRIER, 0, 0) == 0) return;
        while (nanosleep(&several_interrupts, &several_interrupts) != 0 && errno == EINTR) { }
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    }
    #else
    #define allotment_barrier_is_ready() 0
    #define allotment_barrier()
    #endif
    #if defined(_MSC_VER)
    #define allotment_bias_get(place) (*(volatile uint64_t*)(place))
    #define allotment_bias_get_acquire(place) (*(volatile uint64_t*)(place))
    #define allotment_bias_set(place, value) (*(volatile uint64_t*)(place) = (value))
    #define allotment_bias_set_release(place, value) (*(volatile uint64_t*)(place) = (value))
    #define allotment_bias_keep_order()
    #define allotment_bias_begin(place, value)
    #else
    #define allotment_bias_get(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define allotment_bias_get_acquire(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define allotment_bias_set(place, value) __atomic_store_n(place, value, __ATOMIC_RELAXED)
    #define allotment_bias_set_release(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
    #define allotment_bias_keep_order() __atomic_signal_fence(__ATOMIC_SEQ_CST)
    /* Only from 0: another thread may have begun long ago. */
    static inline void allotment_bias_begin(uint64_t* place, uint64_t value) {
        uint64_t nothing = 0;
        __atomic_compare_exchange_n(place, &nothing, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    #endif
    #endif
    """
    bint barrier_is_ready "allotment_barrier_is_ready"() noexcept nogil
    void barrier_of_all_threads "allotment_barrier"() noexcept nogil
    uint64_t bias_get "allotment_bias_get"(const uint64_t* place) noexcept nogil
    uint64_t bias_get_acquire "allotment_bias_get_acquire"(const uint64_t* place) noexcept nogil
    void bias_set "allotment_bias_set"(uint64_t* place, uint64_t value) noexcept nogil
    void bias_set_release "allotment_bias_set_release"(uint64_t* place, uint64_t value) noexcept nogil
    void bias_begin "allotment_bias_begin"(uint64_t* place, uint64_t value) noexcept nogil
    void keep_order "allotment_bias_keep_order"() noexcept nogil

cdef enum:
    COUNTING = 2        # no thread's id: those are addresses of words
    SUCCESSION = 1000   # acquisitions by one thread after which it is favored

cdef struct Bias:       # begins as zeros
    uint64_t favored
    uint64_t inside
    uint64_t latest     # the thread that acquired the lock last; while COUNTING, as the next
    uint64_t count      # in how many acquisitions in succession

cdef enum Passage:
    NO_PASSAGE          # the favored thread is inside, or trying
    BY_WORD
    BY_BIAS             # the calling thread is favored from now on, and inside


cdef inline void bias_allow(Bias* bias) noexcept nogil:
    """Let the lock favor a thread, if the system has what that needs. Any thread may call it, more than once."""
    if bias_get(&bias.favored) == 0 and barrier_is_ready():
        bias_begin(&bias.favored, COUNTING)


cdef inline bint bias_favors(const Bias* bias, uint64_t thread) noexcept nogil:
    return bias_get(&bias.favored) == thread


cdef inline bint bias_enter(Bias* bias, uint64_t thread) noexcept nogil:
    """F1 to F3. pre: `bias_favors` the calling thread, which is not inside"""
    bias_set(&bias.inside, 1)
    keep_order()
    if bias_get_acquire(&bias.favored) == thread:
        return True
    bias_set_release(&bias.inside, 0)
    return False


cdef inline bint bias_holds(const Bias* bias, uint64_t thread) noexcept nogil:
    """Whether the calling thread is inside through its bias, which may be revoked meanwhile."""
    return bias_get(&bias.inside) != 0 and (bias_get(&bias.favored) & ~(<uint64_t> 1)) == thread


cdef inline void bias_leave(Bias* bias) noexcept nogil:
    bias_set_release(&bias.inside, 0)


cdef inline Passage bias_pass(Bias* bias, uint64_t thread) noexcept nogil:
    """Whether a thread that has acquired the word is inside: O1 to O3. pre: the lock does not favor it"""
    cdef uint64_t favored = bias_get(&bias.favored)
    if favored == 0:
        return BY_WORD
    if favored & 1 == 0:
        return pass_unrevoked(bias, thread, favored)
    return BY_WORD if bias_get_acquire(&bias.inside) == 0 else NO_PASSAGE


cdef inline Passage pass_unrevoked(Bias* bias, uint64_t thread, uint64_t favored) noexcept nogil:
    if favored != COUNTING:
        bias_set(&bias.favored, favored + 1)
        barrier_of_all_threads()
        return BY_WORD if bias_get_acquire(&bias.inside) == 0 else NO_PASSAGE
    bias.count = bias.count + 1 if bias.latest == thread else 1
    bias.latest = thread
    if bias.count < SUCCESSION:
        return BY_WORD
    bias_set(&bias.inside, 1)
    keep_order()
    bias_set(&bias.favored, thread)
    return BY_BIAS


cdef inline bint bias_keeps_out(const Bias* bias) noexcept nogil:
    """Whether the favored thread is inside although the bias is revoked: to try the word is in vain."""
    return bias_get(&bias.inside) != 0 and bias_get(&bias.favored) & 1 != 0
