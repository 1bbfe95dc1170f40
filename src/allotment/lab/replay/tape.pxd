"""A recorded history that a replay follows entry by entry.

The tape has two uses. It compares each entry that the engine reports with the next recorded one. And it answers what
the engine cannot decide itself (where the device put a segment, or that it refused one): the next recorded entry is the
answer.

At the first difference the tape stops following, because from there on the two histories are about different
memory.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from allotment._core.records.trace cimport (
    ACTION_FREE_COMPLETED, ACTION_OOM, ACTION_SEGMENT_FREE, ACTION_SEGMENT_UNMAP, TraceRecord)

cdef struct Tape:
    uint8_t* action             # the columns of the history; the tape swaps entries of a run where PyTorch
    uint64_t* address           # leaves their order undefined
    uint64_t* size
    uint64_t* stream
    int64_t count
    int64_t at                  # the entry that comes next
    bint following
    bint differs                # the entry `at` differed
    TraceRecord got             # the entry of the engine that differed

cdef void tape_hear(void* tape, const TraceRecord* record) noexcept nogil
cdef void tape_stop(Tape* tape, int action, uint64_t address, uint64_t size, uint64_t stream) noexcept nogil


cdef inline bint tape_next_is(const Tape* tape, int action) noexcept nogil:
    return tape.at < tape.count and tape.action[tape.at] == action


cdef inline bint tape_tells_of_refusal(const Tape* tape) noexcept nogil:
    """Whether the next recorded entry is what an allocator does after the device refused it memory."""
    return (tape_next_is(tape, ACTION_SEGMENT_FREE) or tape_next_is(tape, ACTION_SEGMENT_UNMAP)
            or tape_next_is(tape, ACTION_FREE_COMPLETED) or tape_next_is(tape, ACTION_OOM))
