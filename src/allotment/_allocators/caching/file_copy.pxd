"""A file that the contents of paused memory lie in.

It has no name, so it is gone as soon as nobody has it open: after the resume, and when the process is killed. It is
read and written past the system's cache of files (direct I/O) where the file system can do that.
"""

from allotment._core.contract.types cimport bytes_t

cdef class FileCopy:
    cdef int descriptor
    cdef bint is_open

    cdef void close(self) noexcept

# Checks the folder and its free space first. Raises RequestError, UnsupportedError, OSError.
cdef FileCopy file_copy(object folder, bytes_t size)
