from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from allotment._core.records.trace cimport (
    ACTION_FREE_COMPLETED, ACTION_SEGMENT_FREE, ACTION_SEGMENT_UNMAP, TraceRecord)
from allotment.lab.replay.tape cimport Tape


cdef inline bint is_entry(const Tape* tape, int64_t i, const TraceRecord* record) noexcept nogil:
    return (tape.action[i] == record.action and tape.address[i] == record.address
            and tape.size[i] == record.size and tape.stream[i] == record.stream)


cdef inline bint is_release(int action) noexcept nogil:
    return action == ACTION_SEGMENT_FREE or action == ACTION_SEGMENT_UNMAP


cdef inline bint may_come_later(const Tape* tape, int64_t i, const TraceRecord* record) noexcept nogil:
    """Whether entry i belongs to the run in which `record` may stand anywhere.

    Frees that wait for different streams complete in no defined order; so are unused private pools released.
    """
    if record.action == ACTION_FREE_COMPLETED:
        return tape.action[i] == ACTION_FREE_COMPLETED
    return (is_release(record.action) and is_release(tape.action[i])
            and (record.pool_first != 0 or record.pool_second != 0))


cdef inline void bring_forward(Tape* tape, int64_t i) noexcept nogil:
    """Make entry i the next one."""
    cdef int64_t at = tape.at
    tape.action[at], tape.action[i] = tape.action[i], tape.action[at]
    tape.address[at], tape.address[i] = tape.address[i], tape.address[at]
    tape.size[at], tape.size[i] = tape.size[i], tape.size[at]
    tape.stream[at], tape.stream[i] = tape.stream[i], tape.stream[at]


cdef void tape_stop(Tape* tape, int action, uint64_t address, uint64_t size, uint64_t stream) noexcept nogil:
    """Note that the engine is about to differ from the next entry."""
    memset(&tape.got, 0, sizeof(TraceRecord))
    tape.got.action = action
    tape.got.address = address
    tape.got.size = size
    tape.got.stream = stream
    tape.differs = True
    tape.following = False


cdef void tape_hear(void* listener, const TraceRecord* record) noexcept nogil:
    """A tracker of the engine's trace; `listener` is the tape."""
    cdef Tape* tape = <Tape*> listener
    cdef int64_t i = tape.at
    if not tape.following:
        return
    while i < tape.count and not is_entry(tape, i, record):
        if not may_come_later(tape, i, record):
            i = tape.count
            break
        i += 1
    if i >= tape.count:
        tape.got = record[0]
        tape.differs = True
        tape.following = False
        return
    if i != tape.at:
        bring_forward(tape, i)
    tape.at += 1
