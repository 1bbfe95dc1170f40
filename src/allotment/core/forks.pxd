"""Locks that a fork leaves in order.

A child of fork has one thread: what any other held at that moment would be held for ever. So Python's fork takes every
lock that was made known here, waits for those who have one, and gives all back on both sides. It tries them all and
starts anew if one is taken, because locks can nest in any order (a pool of one allocator on memory of another); and
it waits without the interpreter lock, which somebody inside may want.

A lock that the forking thread itself holds is left to it. Forks that bypass Python are not seen.
"""

from allotment.core.lock cimport Lock

cdef struct ForkGuard:
    Lock* lock
    bint held               # by the fork that is under way
    ForkGuard* prev
    ForkGuard* next

# pre: the interpreter lock is not held
cdef void guard_forks(ForkGuard* guard, Lock* lock) noexcept nogil
cdef void unguard_forks(ForkGuard* guard) noexcept nogil
