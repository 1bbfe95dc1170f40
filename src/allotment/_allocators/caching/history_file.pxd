"""A history on its way to a file: a spool that the engine fills, and a thread that empties it.

The thread needs the interpreter only to render stacks and names that no record had before; rows are made and written
without it. Once a second it asks for what is not a full batch yet, so a program that is killed loses a second at most.
It keeps the file alive, but not the allocator.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.records.spool cimport Batch, Spool

cdef class HistoryFile:
    cdef Spool spool
    cdef object path, file, allocator, thread, error
    cdef list notes                     # external annotations that are not written yet
    cdef int descriptor
    cdef unsigned char* buffer
    cdef Batch* batch                   # taken, and not written yet
    cdef uint32_t stacks_told, names_told
    cdef uint64_t lost_told
    cdef bint finishing

    cdef int start(self, object allocator, bytes snapshot) except -1
    cdef bint writes_to(self, object path) except -1
    cdef int finish(self) except -1
    cdef int drain(self) noexcept nogil
    cdef int put_frame(self, uint32_t kind, bytes content, size_t records) except -1
    cdef bint put_batch(self) noexcept nogil
    cdef int tell_new_names(self) except -1
