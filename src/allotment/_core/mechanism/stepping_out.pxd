"""Stepping out: no wait for others' work, and no function of others, under the engine's lock.

Work that is waited for may itself want the allocator: a function on a host stream that allocates, drops a buffer or
merely sets off a collection. A callback may do what it likes, also with another allocator, whose callbacks empty
this one. Each would wait for a lock that waits for it. So an operation that has come to such a point

    1  puts what it has in hand out of everybody's reach, and the rest in order
    2  steps out: the lock is free, others come and go
    3  waits, or calls
    4  steps in again, and looks up anew whatever it did not have in hand

A thread that is out may come back in from below: what it calls is a new operation like any other. As long as somebody
is out, the interpreter lock alone is no guard (see `is_guarded_already`): who comes back does so without it.

Asked under the lock is a device's function that the contract does not let wait.
"""

from cpython.pystate cimport PyThreadState

from allotment._core.model.model cimport Engine

# What `step_in` wants back: the interpreter lock is let go too, if the thread has it.
ctypedef PyThreadState* outing_t

# pre: inside with the lock, not under the interpreter lock alone
cdef outing_t step_out(Engine* engine) noexcept nogil
cdef void step_in(Engine* engine, outing_t outing) noexcept nogil
