"""The owners of locks, as pthread_atfork walks them."""

from allotment.backends.posix cimport (
    pthread_atfork, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock)

cdef struct Owners:
    pthread_mutex_t mutex
    ForkSteps* first

cdef Owners owners


cdef void fork_steps_add(ForkSteps* steps) noexcept nogil:
    pthread_mutex_lock(&owners.mutex)
    steps.previous = NULL
    steps.next = owners.first
    if steps.next != NULL:
        steps.next.previous = steps
    owners.first = steps
    pthread_mutex_unlock(&owners.mutex)


cdef void fork_steps_remove(ForkSteps* steps) noexcept nogil:
    pthread_mutex_lock(&owners.mutex)
    if steps.next != NULL:
        steps.next.previous = steps.previous
    if steps.previous != NULL:
        steps.previous.next = steps.next
    else:
        owners.first = steps.next
    pthread_mutex_unlock(&owners.mutex)


cdef void before_fork() noexcept nogil:
    cdef ForkSteps* steps
    pthread_mutex_lock(&owners.mutex)
    steps = owners.first
    while steps != NULL:
        steps.lock(steps.owner)
        steps = steps.next


cdef void after_fork() noexcept nogil:
    cdef ForkSteps* steps = owners.first
    while steps != NULL:
        steps.unlock(steps.owner)
        steps = steps.next
    pthread_mutex_unlock(&owners.mutex)


cdef void after_fork_in_child() noexcept nogil:
    cdef ForkSteps* steps = owners.first
    while steps != NULL:
        if steps.start_anew != NULL:
            steps.start_anew(steps.owner)
        steps = steps.next
    after_fork()


pthread_mutex_init(&owners.mutex, NULL)
pthread_atfork(before_fork, after_fork, after_fork_in_child)
