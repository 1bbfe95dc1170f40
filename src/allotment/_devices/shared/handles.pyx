# cython: linetrace=False
# A line tracer takes the interpreter lock, and code under a scheduler's mutex must never wait for that.
"""Tables of records behind handles."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from allotment._core.tools.bits cimport highest_bit
from allotment._devices.shared.posix cimport RELEASE, atomic_store


cdef void handles_open(Handles* handles, size_t record_size) noexcept nogil:
    memset(handles, 0, sizeof(Handles))
    handles.record_size = record_size


cdef void handles_close(Handles* handles) noexcept nogil:
    for block in range(BLOCKS):
        free(handles.blocks[block])
        handles.blocks[block] = NULL


cdef void* handles_new(Handles* handles) noexcept nogil:
    cdef Handle* record
    if handles.first_free != 0:
        record = <Handle*> record_at(handles, handles.first_free)
        handles.first_free = record.next_free
    else:
        record = next_record(handles)
        if record == NULL:
            return NULL
    record.next_free = 0
    set_generation(record, record.generation + 1)
    return record


cdef void handles_retire(Handle* record) noexcept nogil:
    set_generation(record, record.generation + 1)


cdef void handles_recycle(Handles* handles, Handle* record) noexcept nogil:
    record.next_free = handles.first_free
    handles.first_free = record.index


cdef inline void set_generation(Handle* record, uint64_t generation) noexcept nogil:
    # The handle carries 32 bits; the parity survives the overflow.
    atomic_store(&record.generation, generation & <uint64_t> 0xFFFF_FFFF, RELEASE)


cdef Handle* next_record(Handles* handles) noexcept nogil:
    cdef uint64_t index = handles.count + 1
    cdef int bit = highest_bit(handles.count + (1 << FIRST_BLOCK_BITS))
    cdef int block = bit - FIRST_BLOCK_BITS
    if block >= BLOCKS:
        return NULL
    if handles.blocks[block] == NULL:
        handles.blocks[block] = <char*> calloc(<size_t> 1 << bit, handles.record_size)
        if handles.blocks[block] == NULL:
            return NULL
    cdef Handle* record = <Handle*> record_at(handles, index)
    record.index = <uint32_t> index
    # Published last: a thread that reads the count finds the block.
    atomic_store(&handles.count, index, RELEASE)
    return record
