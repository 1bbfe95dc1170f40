"""Planted bugs, one for each kind that a sanitizer must find, built with the engine and the same flags. A run without
reports proves something only if these are reported. Values that are read are also returned, because the compiler would
otherwise remove the access.
"""

from libc.stdlib cimport free, malloc

cdef volatile long unguarded = 0     # otherwise the compiler would write it once, at the end


def writes_past_the_end(int count):
    cdef char* memory = <char*> malloc(count)
    cdef char last
    memory[count] = 1
    last = memory[count]
    free(memory)
    return last


def reads_after_free(int count):
    cdef char* memory = <char*> malloc(count)
    memory[0] = 1
    free(memory)
    return memory[0]


def loses_memory(int count):
    cdef char* memory = <char*> malloc(count)
    memory[0] = 1
    return memory[0]


def overflows(int number):
    return number + 1


def counts_without_a_lock(long rounds):
    """A data race as soon as two threads run it."""
    global unguarded
    cdef long round
    with nogil:
        for round in range(rounds):
            unguarded += round
    return unguarded
