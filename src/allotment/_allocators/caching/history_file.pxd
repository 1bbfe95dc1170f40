"""A history on its way to a file: the engine fills a spool, and a thread empties it.

The thread needs the interpreter only to render stacks and names that are new; it makes and writes rows without it. Once
a second it fetches records that do not fill a batch, so a killed program loses a second at most. The thread keeps the
file alive, but not the allocator.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.records.spool cimport Batch, Spool
from allotment._core.tools.pointer_map cimport PointerMap

cdef class HistoryFile:
    cdef Spool spool
    cdef object path, file, allocator, thread, error
    cdef object lock                    # held to start and to finish
    cdef list notes                     # external annotations not yet written; its critical section guards it
    cdef int descriptor
    cdef unsigned char* buffer
    cdef Batch* batch                   # taken and not yet written
    cdef PointerMap stacks, names       # those in the file: the process's numbers -> the file's
    cdef uint64_t lost_told
    cdef bint finishing

    cdef int start(self, object allocator, bytes snapshot) except -1
    cdef int add_note(self, dict note) except -1
    cdef list take_notes(self)
    cdef bint writes_to(self, object path) except -1
    cdef int finish(self) except -1
    cdef int drain(self) noexcept nogil
    cdef size_t untold_from(self, size_t first) noexcept nogil
    cdef int put_frame(self, uint32_t kind, bytes content, size_t records) except -1
    cdef bint put_batch(self) noexcept nogil
    cdef int tell_new_names(self) except -1
