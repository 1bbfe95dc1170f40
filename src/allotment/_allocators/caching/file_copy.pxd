"""A file that holds the contents of paused memory.

It has no name, so it is gone as soon as nobody has it open: after the resume, and when the process is killed. Children
of a fork have it open too. If they cannot use the device, this process empties the file before it closes it.

It is read and written past the system's cache of files (direct I/O) where the file system can do that.
"""

from allotment._core.contract.types cimport bytes_t

cdef class FileCopy:
    cdef int descriptor
    cdef bint is_open
    cdef int emptied_by         # the process that empties it when it closes it; 0: no process

    cdef void close(self) noexcept

# Checks the folder and its free space first. Raises RequestError, UnsupportedError, OSError.
cdef FileCopy file_copy(object folder, bytes_t size, bint for_children)
