from libc.stddef cimport size_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.placement.dense.structures cimport Clock, DenseChunk, LastFree
from allotment._core.tools.arrays cimport make_room_for


cdef void forget(DenseChunk* chunk, bytes_t begin, bytes_t end) noexcept nogil:
    """Drop what is known of these bytes. pre: there is room for one more"""
    cdef LastFree* known
    cdef size_t i = 0
    while i < chunk.last_free_count:
        known = &chunk.last_frees[i]
        if known.end <= begin or end <= known.begin:
            i += 1
        elif known.begin < begin and end < known.end:
            chunk.last_frees[chunk.last_free_count] = known[0]
            chunk.last_frees[chunk.last_free_count].begin = end
            chunk.last_free_count += 1
            known.end = begin
            i += 1
        elif known.begin < begin:
            known.end = begin
            i += 1
        elif end < known.end:
            known.begin = end
            i += 1
        else:
            chunk.last_free_count -= 1
            known[0] = chunk.last_frees[chunk.last_free_count]


cdef void witness_free(DenseChunk* chunk, bytes_t begin, bytes_t end, const Clock* clock) noexcept nogil:
    """Record that bytes of a chunk were freed. If host memory is short, forget what is known of the chunk."""
    if not make_room_for(<void**> &chunk.last_frees, &chunk.last_free_room, chunk.last_free_count + 2,
                         sizeof(LastFree)):
        chunk.last_free_count = 0
        return
    forget(chunk, begin, end)
    chunk.last_frees[chunk.last_free_count].begin = begin
    chunk.last_frees[chunk.last_free_count].end = end
    chunk.last_frees[chunk.last_free_count].clock = clock[0]
    chunk.last_free_count += 1
