from cpython.pystate cimport PyThreadState
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from allotment._core.records.spool cimport BATCH, Batch, Bell, PyThread_type_lock, Spool, spool_is_behind
from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.forks cimport SHORT_LOCK, guard_forks, unguard_forks
from allotment._core.tools.interpreter cimport let_interpreter_go, take_interpreter_back
from allotment._core.tools.lock cimport lock_give, lock_try, lock_wait

cdef extern from "pythread.h" nogil:
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait)
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)

cdef enum:
    A_WHILE = 20000             # microseconds


cdef inline void take(Spool* spool) noexcept nogil:
    # No code blocks under this lock, so it is soon free, even for a thread that holds the interpreter lock.
    if not lock_try(&spool.lock):
        lock_wait(&spool.lock)


cdef bint bell_init(Bell* bell) noexcept nogil:
    bell.lock = PyThread_allocate_lock()
    if bell.lock == NULL:
        return False
    PyThread_acquire_lock(bell.lock, 1)
    return True


cdef void bell_clear(Bell* bell) noexcept nogil:
    if bell.lock == NULL:
        return
    if not bell.rung:
        PyThread_release_lock(bell.lock)
    PyThread_free_lock(bell.lock)


cdef inline void ring(Bell* bell) noexcept nogil:
    """pre: the spool is locked"""
    if not bell.rung:
        bell.rung = True
        PyThread_release_lock(bell.lock)


cdef void await_ring(Spool* spool, Bell* bell, long long patience_us) noexcept nogil:
    if PyThread_acquire_lock_timed(bell.lock, patience_us, 0) == 1:
        take(spool)
        bell.rung = False
        lock_give(&spool.lock)


cdef void start_anew(void* owner) noexcept nogil:
    (<Spool*> owner).closed = True


cdef bint spool_init(Spool* spool) noexcept nogil:
    """Return False without host memory. Either way the caller must call `spool_clear` later."""
    memset(spool, 0, sizeof(Spool))
    if not (bell_init(&spool.work) and bell_init(&spool.room)):
        return False
    spool.fork_guard.owner = spool
    spool.fork_guard.start_anew = start_anew
    guard_forks(&spool.fork_guard, SHORT_LOCK, &spool.lock)
    return True


cdef void drop(Batch* batch) noexcept nogil:
    cdef Batch* following
    while batch != NULL:
        following = batch.next
        free(batch)
        batch = following


cdef void spool_clear(Spool* spool) noexcept nogil:
    """pre: neither the trace nor a writer uses it any more"""
    unguard_forks(&spool.fork_guard)
    drop(spool.first)
    drop(spool.spare)
    free(spool.filling)
    bell_clear(&spool.work)
    bell_clear(&spool.room)
    memset(spool, 0, sizeof(Spool))


cdef void spool_close(Spool* spool) noexcept nogil:
    """Keep no further records, wake all waiting threads, and tell the writer."""
    take(spool)
    spool.closed = True
    ring(&spool.work)
    ring(&spool.room)
    lock_give(&spool.lock)


cdef Batch* empty_batch(Spool* spool) noexcept nogil:
    """pre: locked"""
    cdef Batch* batch = spool.spare
    if batch != NULL:
        spool.spare = batch.next
    else:
        batch = <Batch*> malloc(sizeof(Batch))
        if batch == NULL:
            return NULL
    batch.next = NULL
    batch.count = 0
    return batch


cdef void pass_on(Spool* spool) noexcept nogil:
    """Queue the filled batch for the writer. pre: locked, the batch is not empty"""
    cdef Batch* batch = spool.filling
    spool.filling = NULL
    if spool.closed:
        spool.lost += batch.count
        batch.next = spool.spare
        spool.spare = batch
        return
    batch.next = NULL
    if spool.last != NULL:
        spool.last.next = batch
    else:
        spool.first = batch
    spool.last = batch
    spool.full += 1
    ring(&spool.work)


cdef TraceRecord* spool_place(void* self) noexcept nogil:
    """Return the place of the next record; NULL if it cannot be kept."""
    cdef Spool* spool = <Spool*> self
    cdef Batch* batch = spool.filling
    if batch == NULL or batch.count == BATCH:
        take(spool)
        if batch != NULL:
            pass_on(spool)
        batch = spool.filling = NULL if spool.closed else empty_batch(spool)
        spool.lost += batch == NULL
        lock_give(&spool.lock)
        if batch == NULL:
            return NULL
    batch.count += 1
    return &batch.records[batch.count - 1]


cdef void spool_flush(Spool* spool) noexcept nogil:
    take(spool)
    if spool.filling != NULL and spool.filling.count > 0:
        pass_on(spool)
    lock_give(&spool.lock)


cdef void wait_for_room(Spool* spool) noexcept nogil:
    take(spool)
    spool.paced += 1
    lock_give(&spool.lock)
    if spool_is_behind(spool):
        await_ring(spool, &spool.room, A_WHILE)
    take(spool)
    spool.paced -= 1
    if spool.paced > 0:
        ring(&spool.room)
    lock_give(&spool.lock)


cdef bint spool_pace(Spool* spool) noexcept nogil:
    """Waits without the interpreter lock, which the writer may need."""
    cdef PyThreadState* state
    if spool_is_behind(spool):
        state = let_interpreter_go()
        wait_for_room(spool)
        take_interpreter_back(state)
    return not spool_is_behind(spool)


cdef Batch* spool_take(Spool* spool, long long patience_us) noexcept nogil:
    """Return the oldest full batch; NULL if none arrived within that time, or the spool was closed."""
    cdef Batch* batch
    if spool.first == NULL and not spool.closed:
        await_ring(spool, &spool.work, patience_us)
    take(spool)
    batch = spool.first
    if batch != NULL:
        spool.first = batch.next
        if spool.first == NULL:
            spool.last = NULL
        spool.full -= 1
        if spool.paced > 0 and not spool_is_behind(spool):
            ring(&spool.room)
    lock_give(&spool.lock)
    return batch


cdef void spool_return(Spool* spool, Batch* batch) noexcept nogil:
    take(spool)
    batch.next = spool.spare
    spool.spare = batch
    lock_give(&spool.lock)
