"""Unlocked sections: the engine never blocks on other work, nor calls foreign code, under its lock.

Work that a thread waits for may itself need the allocator: for example a function on a host stream that allocates,
frees a buffer, or only triggers a garbage collection. A callback may do anything; it may even use another allocator,
whose callbacks empty this one. In both cases that code would wait for a lock whose holder waits for the code. So an
operation that reaches such a point

    1  puts what it works on out of reach for other threads, and leaves the rest consistent
    2  steps out: releases the lock, and other threads come and go
    3  waits, or calls
    4  steps in again, and looks up anew everything that it had not put out of reach

What a thread calls inside an unlocked section is a new operation like any other, and may enter the engine. Meanwhile
the interpreter lock does not suffice as a guard (see `interpreter_lock_suffices`), because the thread comes back
without it.

Device functions that the contract forbids to block may be called under the lock.
"""

from cpython.pystate cimport PyThreadState

from allotment._core.model.model cimport Engine

# The state that `end_unlocked` needs: `begin_unlocked` also releases the interpreter lock if the thread holds it.
ctypedef PyThreadState* unlocked_t

# pre: inside, holding the engine's lock and not only the interpreter lock
cdef unlocked_t begin_unlocked(Engine* engine) noexcept nogil
cdef void end_unlocked(Engine* engine, unlocked_t unlocked) noexcept nogil
