"""The words of a snapshot: names for the engine's numbers, and for the fields of a trace entry.

Code that writes, reads or compares snapshots, in C or in Python, takes the words from here; no other file defines them.
The numbers of `Action` and `BlockState` are the engine's own.
"""

from allotment._core.records.trace cimport ACTION_COUNT

cdef enum Word:         # indexes into WORDS
    ACTION, ADDR, DEVICE_FREE, SIZE, STREAM, TIME_US, COMPILE_CONTEXT, USER_METADATA, POOL_ID, FRAMES, TENANT,
    INTERNAL_METADATA
    FIRST_ACTION        # from here on: the actions, in their order
    WORD_COUNT = FIRST_ACTION + ACTION_COUNT

cdef tuple WORDS
cdef tuple STATES       # by BlockState; snapshots do not show unmapped blocks
cdef str NO_CONTEXT     # the compile context of code that was not compiled

cdef str action_name(int action)
cdef int action_number(str name) except -2
