# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a scheduler's mutex must never wait for that.
"""Workers of host streams."""

import atexit

from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pystate cimport PyInterpreterState, PyThreadState
from libc cimport errno
from libc.stdlib cimport calloc, free
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from allotment._core.contract.table cimport DEVICE_ERROR, OK, OUT_OF_MEMORY
from allotment._core.tools.forks cimport LONG_LOCK, SHORT_MUTEX, ForkGuard, fork_depth, guard_forks, unguard_forks
from allotment._core.tools.lock cimport Lock, lock_give, lock_wait
from allotment._devices.host.capture cimport node_set_clear
from allotment._devices.host.queue cimport Event, is_done, position_of, queue_of
from allotment._devices.host.work cimport needs_python, report_exception, task_drop, task_run
from allotment._devices.shared.handles cimport handles_close, handles_open, handles_recycle, record_at
from allotment._devices.shared.posix cimport (
    RELEASE, atomic_store, pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_t, pthread_cond_timedwait, pthread_cond_wait, pthread_condattr_destroy, pthread_condattr_init,
    pthread_condattr_setclock, pthread_condattr_t, pthread_create, pthread_equal, pthread_join, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_self, pthread_t)
from allotment._devices.shared.refusal cimport refuse, refuse_system

cdef extern from "Python.h" nogil:
    PyInterpreterState* PyInterpreterState_Main()
    PyThreadState* PyThreadState_New(PyInterpreterState* interpreter)
    void PyThreadState_Clear(PyThreadState* state)
    void PyThreadState_DeleteCurrent()
    void PyEval_RestoreThread(PyThreadState* state)

cdef extern from *:
    """
    static __thread void* allotment_working_queue;
    """
    void* working_queue "allotment_working_queue"       # of this thread, if it is a worker

cdef enum:
    IDLE_MILLISECONDS = 1000
    EXIT_MILLISECONDS = 100         # how often to check for Ctrl-C at exit

cdef struct Worker:
    Queue* queue
    pthread_t thread
    uint64_t fork_depth             # of the process that started it
    Worker* next

# All workers of the process. A thread may acquire its mutex under a scheduler's, never the other way round.
cdef struct ThreadPool:
    pthread_mutex_t mutex
    pthread_cond_t ended
    uint64_t working                # workers that have not ended
    Worker* to_join                 # ended workers
    Scheduler* schedulers
    bint is_leaving                 # the interpreter is ending
    ForkGuard fork_guard
    Lock python_states              # held while a thread state is created
    ForkGuard python_states_guard

cdef ThreadPool thread_pool


# The life of a scheduler

cdef Scheduler* scheduler_new() noexcept nogil:
    cdef Scheduler* scheduler = <Scheduler*> calloc(1, sizeof(Scheduler))
    if scheduler == NULL:
        return NULL
    pthread_mutex_init(&scheduler.mutex, NULL)
    condition_init(&scheduler.idle)
    handles_open(&scheduler.queues, sizeof(Queue))
    handles_open(&scheduler.events, sizeof(Event))
    queue_open(scheduler, &scheduler.default_queue)
    scheduler.references = 1
    scheduler.fork_guard.start_anew = leave_parent
    scheduler.fork_guard.owner = scheduler
    guard_forks(&scheduler.fork_guard, SHORT_MUTEX, &scheduler.mutex)
    pthread_mutex_lock(&thread_pool.mutex)
    scheduler.closed = thread_pool.is_leaving
    scheduler.next = thread_pool.schedulers
    thread_pool.schedulers = scheduler
    pthread_mutex_unlock(&thread_pool.mutex)
    return scheduler


cdef void scheduler_release(Scheduler* scheduler) noexcept nogil:
    pthread_mutex_lock(&scheduler.mutex)
    scheduler.orphaned = True
    close_scheduler(scheduler)
    pthread_mutex_unlock(&scheduler.mutex)
    report_kept_exceptions(scheduler)
    drop_scheduler(scheduler)


# pre: the mutex is held. Workers finish their work and end.
cdef void close_scheduler(Scheduler* scheduler) noexcept nogil:
    cdef uint64_t index
    scheduler.closed = True
    pthread_cond_signal(&scheduler.default_queue.arrived)
    for index in range(1, scheduler.queues.count + 1):
        pthread_cond_signal(&(<Queue*> record_at(&scheduler.queues, index)).arrived)


cdef void drop_scheduler(Scheduler* scheduler) noexcept nogil:
    cdef bint is_last
    cdef Scheduler** link = &thread_pool.schedulers
    pthread_mutex_lock(&thread_pool.mutex)
    scheduler.references -= 1
    is_last = scheduler.references == 0
    if is_last:
        while link[0] != scheduler:
            link = &link[0].next
        link[0] = scheduler.next
    pthread_mutex_unlock(&thread_pool.mutex)
    if is_last:
        free_scheduler(scheduler)


cdef void free_scheduler(Scheduler* scheduler) noexcept nogil:
    cdef uint64_t index
    unguard_forks(&scheduler.fork_guard)
    queue_free(&scheduler.default_queue)
    for index in range(1, scheduler.queues.count + 1):
        queue_free(<Queue*> record_at(&scheduler.queues, index))
    for index in range(1, scheduler.events.count + 1):
        node_set_clear(&(<Event*> record_at(&scheduler.events, index)).nodes)
    handles_close(&scheduler.queues)
    handles_close(&scheduler.events)
    pthread_cond_destroy(&scheduler.idle)
    pthread_mutex_destroy(&scheduler.mutex)
    free(scheduler)


# Queues

cdef void queue_open(Scheduler* scheduler, Queue* queue) noexcept nogil:
    queue.scheduler = scheduler
    queue.destroyed = False
    queue.inherited = False
    if not queue.initialised:
        condition_init(&queue.arrived)
        condition_init(&queue.progress)
        queue.initialised = True


cdef void queue_free(Queue* queue) noexcept nogil:
    node_set_clear(&queue.last_nodes)
    if queue.initialised:
        pthread_cond_destroy(&queue.arrived)
        pthread_cond_destroy(&queue.progress)


cdef status_t queue_put(Queue* queue, Work* work) noexcept nogil:
    cdef Scheduler* scheduler = queue.scheduler
    cdef status_t status
    if scheduler.closed:
        return refuse(DEVICE_ERROR, b"streams accept no more work: the interpreter is ending")
    if not queue.running:
        status = start_worker(queue)
        if status != OK:
            return status
    work.next = NULL
    if queue.last == NULL:
        queue.first = work
    else:
        queue.last.next = work
    queue.last = work
    queue.submitted += 1
    scheduler.pending += 1
    pthread_cond_signal(&queue.arrived)
    return OK


cdef void queue_end(Queue* queue) noexcept nogil:
    queue.destroyed = True
    if queue.running:
        pthread_cond_signal(&queue.arrived)
    else:
        handles_recycle(&queue.scheduler.queues, &queue.handle)


cdef void queue_await(Queue* queue, uint64_t position) noexcept nogil:
    cdef Queue* own = own_queue(queue.scheduler)
    if own != NULL:
        own.awaits = queue
    queue.waiting += 1
    while queue.completed < position:
        pthread_cond_wait(&queue.progress, &queue.scheduler.mutex)
    queue.waiting -= 1
    if own != NULL:
        own.awaits = NULL


cdef Queue* own_queue(const Scheduler* scheduler) noexcept nogil:
    cdef Queue* own = <Queue*> working_queue
    return own if own != NULL and own.scheduler == scheduler else NULL


cdef bint would_wait_for_itself(Queue* queue) noexcept nogil:
    # Follow the waits from the queue on. A search that returns to the caller's own queue has found a cycle.
    cdef Scheduler* scheduler = queue.scheduler
    cdef Queue* own = own_queue(scheduler)
    cdef Queue* found = NULL
    cdef Work* item
    if own == NULL:
        return False
    scheduler.searches += 1
    found_queue(queue, &found)
    while found != NULL:
        queue = found
        found = queue.next_found
        if queue == own:
            return True
        if queue.awaits != NULL:
            found_queue(queue.awaits, &found)
        item = queue.first
        while item != NULL:
            if item.wait_for != 0 and not is_done(scheduler, item.wait_for):
                found_queue(queue_of(scheduler, item.wait_for), &found)
            item = item.next
    return False


cdef inline void found_queue(Queue* queue, Queue** found) noexcept nogil:
    if queue.search != queue.scheduler.searches:
        queue.search = queue.scheduler.searches
        queue.next_found = found[0]
        found[0] = queue


cdef bint is_own_worker(const Queue* queue) noexcept nogil:
    return queue.running and pthread_equal(queue.worker, pthread_self())


cdef Queue* queue_of_caller(bint* has_more) noexcept nogil:
    cdef Queue* queue = <Queue*> working_queue
    if queue != NULL:
        pthread_mutex_lock(&queue.scheduler.mutex)
        has_more[0] = queue.submitted > queue.completed + 1
        pthread_mutex_unlock(&queue.scheduler.mutex)
    return queue


# Workers

cdef status_t start_worker(Queue* queue) noexcept nogil:
    cdef Worker* worker = <Worker*> calloc(1, sizeof(Worker))
    cdef int error
    if worker == NULL:
        return refuse(OUT_OF_MEMORY, b"no memory to start a stream's worker")
    worker.queue = queue
    pthread_mutex_lock(&thread_pool.mutex)
    worker.fork_depth = fork_depth()
    # The thread first acquires the scheduler's mutex, which this thread holds: so it sees what is written here.
    error = pthread_create(&worker.thread, NULL, work, worker)
    if error == 0:
        thread_pool.working += 1
        queue.scheduler.references += 1
        queue.worker = worker.thread
        queue.running = True
    pthread_mutex_unlock(&thread_pool.mutex)
    join_ended()
    if error != 0:
        free(worker)
        refuse_system(b"starting a stream's worker", error)
        return DEVICE_ERROR
    return OK


cdef void* work(void* argument) noexcept nogil:
    global working_queue
    cdef Worker* worker = <Worker*> argument
    cdef Queue* queue = worker.queue
    cdef Scheduler* scheduler = queue.scheduler
    cdef Work* item
    cdef PyObject* raised
    cdef PyThreadState* python = NULL       # kept from the first Python call on: creating one per call is slow
    working_queue = queue
    pthread_mutex_lock(&scheduler.mutex)
    while True:
        item = next_item(queue)
        if item == NULL:
            break
        if item.wait_for != 0:
            queue_await(queue_of(scheduler, item.wait_for), position_of(item.wait_for))
        else:
            pthread_mutex_unlock(&scheduler.mutex)
            if python == NULL and needs_python(&item.task):
                python = new_python_state()
            raised = task_run(&item.task)
            if worker.fork_depth != fork_depth():
                # The task forked, and this is the child. The worker was the parent's; its locks and objects do not
                # belong to the child.
                task_drop(&item.task)
                return NULL
            if raised != NULL:
                keep_exception(queue, raised)
            # Complete the item first: dropping the task can free a buffer, and so wait for an allocator that waits for
            # this thread.
            pthread_mutex_lock(&scheduler.mutex)
            complete_one(queue)
            pthread_mutex_unlock(&scheduler.mutex)
            task_drop(&item.task)
            free(item)
            pthread_mutex_lock(&scheduler.mutex)
            continue
        free(item)
        complete_one(queue)
    queue.running = False
    if queue.destroyed:
        handles_recycle(&scheduler.queues, &queue.handle)
    pthread_mutex_unlock(&scheduler.mutex)
    if python != NULL:
        PyEval_RestoreThread(python)
        PyThreadState_Clear(python)
        PyThreadState_DeleteCurrent()
    drop_scheduler(scheduler)
    pthread_mutex_lock(&thread_pool.mutex)
    worker.next = thread_pool.to_join
    thread_pool.to_join = worker
    thread_pool.working -= 1
    pthread_cond_broadcast(&thread_pool.ended)
    pthread_mutex_unlock(&thread_pool.mutex)
    return NULL


# Creates this thread's Python thread state, which the thread keeps until it ends; `with gil` finds and uses it. On its
# own, `with gil` would create one too, but another thread might fork in the middle of that, and the interpreter's list
# of threads would stay locked in the child. So a fork waits for this function, through a long lock, because newer
# Pythons hold that list when they fork, and creating a state waits for the list.
cdef PyThreadState* new_python_state() noexcept nogil:
    cdef PyThreadState* state
    lock_wait(&thread_pool.python_states)
    state = PyThreadState_New(PyInterpreterState_Main())
    lock_give(&thread_pool.python_states)
    return state


# Returns the queue's next item, waiting for one if needed; NULL when the worker should end.
cdef Work* next_item(Queue* queue) noexcept nogil:
    cdef Work* item
    cdef timespec deadline
    cdef bint is_late = False
    milliseconds_from_now(&deadline, IDLE_MILLISECONDS)
    while queue.first == NULL:
        if is_late or queue.destroyed or queue.scheduler.closed:
            return NULL
        is_late = pthread_cond_timedwait(&queue.arrived, &queue.scheduler.mutex, &deadline) == errno.ETIMEDOUT
    item = queue.first
    queue.first = item.next
    if queue.first == NULL:
        queue.last = NULL
    return item


cdef void complete_one(Queue* queue) noexcept nogil:
    cdef Scheduler* scheduler = queue.scheduler
    atomic_store(&queue.completed, queue.completed + 1, RELEASE)
    if queue.waiting != 0:
        pthread_cond_broadcast(&queue.progress)
    scheduler.pending -= 1
    if scheduler.pending == 0:
        pthread_cond_broadcast(&scheduler.idle)


# Keeps the first exception for a caller that synchronizes, if that can still happen.
cdef void keep_exception(Queue* queue, PyObject* exception) noexcept nogil:
    cdef bint is_kept
    pthread_mutex_lock(&queue.scheduler.mutex)
    is_kept = queue.exception == NULL and not queue.destroyed and not queue.scheduler.orphaned
    if is_kept:
        queue.exception = exception
    pthread_mutex_unlock(&queue.scheduler.mutex)
    if not is_kept:
        report_exception(exception)


cdef void report_kept_exceptions(Scheduler* scheduler) noexcept nogil:
    cdef uint64_t index
    report_kept_exception(scheduler, &scheduler.default_queue)
    for index in range(1, scheduler.queues.count + 1):
        report_kept_exception(scheduler, <Queue*> record_at(&scheduler.queues, index))


cdef void report_kept_exception(Scheduler* scheduler, Queue* queue) noexcept nogil:
    cdef PyObject* exception
    pthread_mutex_lock(&scheduler.mutex)
    exception = queue.exception
    queue.exception = NULL
    pthread_mutex_unlock(&scheduler.mutex)
    if exception != NULL:
        report_exception(exception)


cdef void join_ended() noexcept nogil:
    cdef Worker* worker
    cdef Worker* next
    pthread_mutex_lock(&thread_pool.mutex)
    worker = thread_pool.to_join
    thread_pool.to_join = NULL
    pthread_mutex_unlock(&thread_pool.mutex)
    while worker != NULL:
        next = worker.next
        pthread_join(worker.thread, NULL)
        free(worker)
        worker = next


# Exit

def _finish_at_exit() -> None:
    cdef Scheduler* scheduler = next_unfinished()
    while scheduler != NULL:
        try:
            while not finish_and_close(scheduler):
                PyErr_CheckSignals()
        finally:
            drop_scheduler(scheduler)
        scheduler = next_unfinished()
    leave()
    while not all_have_ended():
        PyErr_CheckSignals()


cdef void leave() noexcept nogil:
    pthread_mutex_lock(&thread_pool.mutex)
    thread_pool.is_leaving = True
    pthread_mutex_unlock(&thread_pool.mutex)


# Returns it with a reference that the caller owns.
cdef Scheduler* next_unfinished() noexcept nogil:
    cdef Scheduler* scheduler
    pthread_mutex_lock(&thread_pool.mutex)
    scheduler = thread_pool.schedulers
    while scheduler != NULL and scheduler.is_finishing:
        scheduler = scheduler.next
    if scheduler != NULL:
        scheduler.is_finishing = True
        scheduler.references += 1
    pthread_mutex_unlock(&thread_pool.mutex)
    return scheduler


# Waits a short time for all work; returns False if some is left.
cdef bint finish_and_close(Scheduler* scheduler) noexcept:
    cdef timespec deadline
    cdef bint is_idle
    with nogil:
        milliseconds_from_now(&deadline, EXIT_MILLISECONDS)
        pthread_mutex_lock(&scheduler.mutex)
        if scheduler.pending != 0:
            pthread_cond_timedwait(&scheduler.idle, &scheduler.mutex, &deadline)
        is_idle = scheduler.pending == 0
        if is_idle:
            close_scheduler(scheduler)
        pthread_mutex_unlock(&scheduler.mutex)
        if is_idle:
            report_kept_exceptions(scheduler)
    return is_idle


# Waits a short time for the workers to end, and joins them; returns False if some are left.
cdef bint all_have_ended() noexcept:
    cdef timespec deadline
    cdef bint have_ended
    with nogil:
        milliseconds_from_now(&deadline, EXIT_MILLISECONDS)
        pthread_mutex_lock(&thread_pool.mutex)
        if thread_pool.working != 0:
            pthread_cond_timedwait(&thread_pool.ended, &thread_pool.mutex, &deadline)
        have_ended = thread_pool.working == 0
        pthread_mutex_unlock(&thread_pool.mutex)
        join_ended()
    return have_ended


# Fork

# Leaks what the parent's queues, captures and exceptions own: the child cannot free their Python objects here.
cdef void leave_parent(void* owner) noexcept nogil:
    cdef Scheduler* scheduler = <Scheduler*> owner
    cdef Queue* queue
    cdef uint64_t index
    condition_init(&scheduler.idle)
    scheduler.pending = 0
    scheduler.captures = NULL
    scheduler.references = 0 if scheduler.orphaned else 1
    queue_leave_parent(&scheduler.default_queue)
    for index in range(1, scheduler.queues.count + 1):
        queue = <Queue*> record_at(&scheduler.queues, index)
        queue_leave_parent(queue)
        queue.inherited = True


cdef void queue_leave_parent(Queue* queue) noexcept nogil:
    condition_init(&queue.arrived)
    condition_init(&queue.progress)
    queue.first = queue.last = NULL
    queue.completed = queue.submitted
    queue.waiting = 0
    queue.awaits = NULL
    queue.running = False
    queue.exception = NULL
    queue.capture = NULL
    queue.last_nodes.count = 0


cdef void thread_pool_is_gone(void* owner) noexcept nogil:
    condition_init(&thread_pool.ended)
    thread_pool.working = 0
    thread_pool.to_join = NULL


# Conditions and time

cdef void condition_init(pthread_cond_t* condition) noexcept nogil:
    cdef pthread_condattr_t attributes
    pthread_condattr_init(&attributes)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    pthread_cond_init(condition, &attributes)
    pthread_condattr_destroy(&attributes)


cdef void milliseconds_from_now(timespec* deadline, long milliseconds) noexcept nogil:
    clock_gettime(CLOCK_MONOTONIC, deadline)
    deadline.tv_sec += milliseconds // 1000
    deadline.tv_nsec += milliseconds % 1000 * 1_000_000
    if deadline.tv_nsec >= 1_000_000_000:
        deadline.tv_sec += 1
        deadline.tv_nsec -= 1_000_000_000


pthread_mutex_init(&thread_pool.mutex, NULL)
condition_init(&thread_pool.ended)
thread_pool.fork_guard.start_anew = thread_pool_is_gone
guard_forks(&thread_pool.fork_guard, SHORT_MUTEX, &thread_pool.mutex)
guard_forks(&thread_pool.python_states_guard, LONG_LOCK, &thread_pool.python_states)
atexit.register(_finish_at_exit)
