"""The contents of paused memory, kept on the host or in a file until it is resumed.

`copying` moves it there and back; `host_copy` and `file_copy` are where it can be. By default nothing is kept beyond
the last use of it: what is taken at a pause is given back at the resume.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.caching.copying cimport Job, Ring, Run
from allotment._allocators.caching.file_copy cimport FileCopy
from allotment._allocators.caching.host_copy cimport HostCopy
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.pausing cimport ExtentList

cdef class Contents:
    cdef Device device
    cdef Run* runs              # all blocks in use when it was paused, adjacent ones as one
    cdef size_t count
    cdef bytes_t total
    cdef bytes_t span
    cdef HostCopy memory        # one of these two, or None: not allocated
    cdef FileCopy file
    cdef uint64_t* checksums    # of the file
    cdef bint keep_host         # `memory` is for the next pause too

    cdef int plan(self, Device device, const ExtentList* list) except -1
    # Memory for all of it: that of a pause before (or None), if it fits; or a file in a folder.
    cdef int obtain_memory(self, Contents before, Ring ring) except -1
    cdef int obtain_file(self, object folder) except -1
    cdef int fill_job(self, Job* job) except -1
    cdef int save(self, Ring ring, object progress) except -1
    # Only what is in `wanted`: a part of what was planned, in the same order. The rest may have no memory any more
    cdef int restore(self, Ring ring, const ExtentList* wanted, object progress) except -1
    cdef size_t overlaps(self, const ExtentList* wanted, Run* found) noexcept nogil
    cdef object view(self, address_t address, bytes_t size)     # of contents in memory; None if not all is there
    cdef int drop(self, Ring ring) except -1
