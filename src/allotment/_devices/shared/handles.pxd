"""Handles that detect when they are stale, and records that never move.

A handle is a number that stands for a record:

    63         32 31          0
    | generation |   index    |     index >= 1, generation odd while the record lives

Retiring a record increments its generation. So a handle kept too long differs from the next user's handle of the same
record, and a made-up number differs from both. Records are stored in blocks that double in size and are never moved or
freed while the table lives: `record_of` takes no lock, whatever other threads add meanwhile.

A record is any struct that begins with a `Handle`. Its other fields are zero at its first use and unchanged afterwards:
the next user finds the values of a retired record (a position that must never go back, an initialised condition).

Except for `record_of` and `record_at`, callers ensure that only one thread at a time uses a table.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.tools.bits cimport highest_bit
from allotment._devices.shared.posix cimport ACQUIRE, atomic_load

cdef enum:
    FIRST_BLOCK_BITS = 6            # the first block has 64 records
    BLOCKS = 26                     # so at most 2**32 indices

cdef struct Handle:
    uint64_t generation             # odd: in use
    uint32_t index
    uint32_t next_free              # index of the next free record; 0 is "none"

cdef struct Handles:
    char* blocks[BLOCKS]
    size_t record_size
    uint64_t count                  # existing records; their indices are 1 .. count
    uint32_t first_free


cdef void handles_open(Handles* handles, size_t record_size) noexcept nogil
cdef void handles_close(Handles* handles) noexcept nogil

# Returns a record with a new generation; NULL when memory is short.
cdef void* handles_new(Handles* handles) noexcept nogil

# Makes the handle stale; the record is not reused before it is recycled.
cdef void handles_retire(Handle* record) noexcept nogil
cdef void handles_recycle(Handles* handles, Handle* record) noexcept nogil


cdef inline uint64_t handle_of(const Handle* record) noexcept nogil:
    return (record.generation << 32) | record.index


# The record with this index. pre: it exists
cdef inline void* record_at(const Handles* handles, uint64_t index) noexcept nogil:
    cdef uint64_t place = index - 1 + (1 << FIRST_BLOCK_BITS)
    cdef int bit = highest_bit(place)
    return handles.blocks[bit - FIRST_BLOCK_BITS] + (place - (<uint64_t> 1 << bit)) * handles.record_size


# The record that a handle used to stand for, which may have another user by now; NULL if the handle is current or
# unknown.
cdef inline void* former_record_of(const Handles* handles, uint64_t handle) noexcept nogil:
    cdef uint64_t index = handle & <uint64_t> 0xFFFF_FFFF
    if index == 0 or index > atomic_load(&handles.count, ACQUIRE):
        return NULL
    cdef Handle* record = <Handle*> record_at(handles, index)
    cdef uint64_t generation = handle >> 32
    cdef uint64_t age = (atomic_load(&record.generation, ACQUIRE) - generation) & <uint64_t> 0xFFFF_FFFF
    return record if generation & 1 == 1 and 0 < age < <uint64_t> 0x8000_0000 else NULL


# The record that a handle stands for; NULL if it is stale or was never issued.
cdef inline void* record_of(const Handles* handles, uint64_t handle) noexcept nogil:
    cdef uint64_t index = handle & <uint64_t> 0xFFFF_FFFF
    if index == 0 or index > atomic_load(&handles.count, ACQUIRE):
        return NULL
    cdef Handle* record = <Handle*> record_at(handles, index)
    cdef uint64_t generation = atomic_load(&record.generation, ACQUIRE)
    if generation & 1 == 0 or generation != handle >> 32:
        return NULL
    return record
