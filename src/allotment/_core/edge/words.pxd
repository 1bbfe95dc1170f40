"""The words of a snapshot: the names of what the engine keeps as numbers, and of the fields of a trace entry.

This is their only place. Whoever writes a snapshot, reads one or compares with one takes the words from here, in C or
in Python: the numbers of `Action` and `BlockState` are the engine's own.
"""

from allotment._core.records.trace cimport ACTION_COUNT

cdef enum Word:         # places in WORDS
    ACTION, ADDR, DEVICE_FREE, SIZE, STREAM, TIME_US, COMPILE_CONTEXT, USER_METADATA, POOL_ID, FRAMES, TENANT,
    INTERNAL_METADATA
    FIRST_ACTION        # here and on: the actions, in their order
    WORD_COUNT = FIRST_ACTION + ACTION_COUNT

cdef tuple WORDS
cdef tuple STATES       # by BlockState; of blocks that a snapshot shows, so without the unmapped
cdef str NO_CONTEXT     # the compile context of what was not compiled

cdef str action_name(int action)
cdef int action_number(str name) except -2
