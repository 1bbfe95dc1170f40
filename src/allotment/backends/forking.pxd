"""Locks put in order around fork.

A child of `fork` has one thread, the one that forked, and a copy of every lock as it was at that moment: one
that another thread held would stay locked for ever, over data that was being changed. So each owner of a lock
registers three steps, and none of its data is in the middle of a change when the copy is made.
"""

cdef struct ForkSteps:
    void* owner
    void (*lock)(void* owner) noexcept nogil            # before the fork: take the owner's lock
    void (*unlock)(void* owner) noexcept nogil          # after it, in both processes: let it go
    void (*start_anew)(void* owner) noexcept nogil      # in the child, before that: leave the parent's things; or NULL
    ForkSteps* next
    ForkSteps* previous


# pre: the owner's lock is not held. Locks are taken from the owner added last to the one added first, so under its own
# lock an owner may only take that of one that was added before it.
cdef void fork_steps_add(ForkSteps* steps) noexcept nogil
cdef void fork_steps_remove(ForkSteps* steps) noexcept nogil
