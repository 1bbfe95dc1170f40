cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from allotment._allocators.caching.copying cimport FORGET, RESTORE, SAVE, Job, Ring, Run, span_size
from allotment._allocators.caching.file_copy cimport file_copy
from allotment._allocators.caching.host_copy cimport HostCopy, host_copy
from allotment._core.contract.table cimport IS_HOST, Device
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.pausing cimport ExtentList

from allotment.errors import UnsupportedError

cdef enum:
    MUCH = 64 << 20             # several threads release that much memory to the system

cdef object NO_RECORDS = "the host has no memory for the allocator's own records"


@cython.final
cdef class Contents:
    """The contents of paused memory; allocators make one."""

    cdef int plan(self, Device device, const ExtentList* list) except -1:
        cdef size_t i
        self.device = device
        self.span = span_size()
        if not device.table.capabilities & IS_HOST and device.table.copy == NULL:
            raise UnsupportedError(
                f"{device.name} does not support copy, so that the contents of paused memory cannot be kept; "
                'pause with keep="nothing"', operation="copy")
        self.runs = <Run*> calloc(list.count + 1, sizeof(Run))
        if self.runs == NULL:
            raise MemoryError(NO_RECORDS)
        for i in range(list.count):
            self.runs[i] = Run(list.extents[i].address, self.total, list.extents[i].size)
            self.total += list.extents[i].size
        self.count = list.count
        return 0

    cdef int obtain_memory(self, Contents before, Ring ring) except -1:
        if before is not None and before.memory.fits(self.total):
            self.memory = before.memory
            before.memory = None
            return 0
        if before is not None:
            before.drop(ring)
        self.memory = host_copy(self.total, self.device.table.capabilities & IS_HOST != 0)
        return 0

    cdef int obtain_file(self, object folder) except -1:
        self.checksums = <uint64_t*> calloc(self.total // self.span + 1, sizeof(uint64_t))
        if self.checksums == NULL:
            raise MemoryError(NO_RECORDS)
        self.file = file_copy(folder, self.total, self.device.table.capabilities & IS_HOST != 0)
        return 0

    cdef int fill_job(self, Job* job) except -1:
        memset(job, 0, sizeof(Job))
        job.table = &self.device.table
        job.size = self.total
        job.span = self.span
        job.memory = self.memory.start if self.memory is not None else NULL
        job.descriptor = self.file.descriptor if self.file is not None else -1
        job.checksums = self.checksums
        job.direct = self.memory is not None and job.table.capabilities & IS_HOST != 0
        return 0

    cdef int save(self, Ring ring, object progress) except -1:
        cdef Job job
        self.fill_job(&job)
        job.task = SAVE
        job.runs = self.runs
        job.run_count = self.count
        job.total = self.total
        return ring.run(&job, progress)

    cdef int restore(self, Ring ring, const ExtentList* wanted, object progress) except -1:
        cdef Run* runs = <Run*> calloc(self.count + wanted.count + 1, sizeof(Run))
        cdef Job job
        if runs == NULL:
            raise MemoryError(NO_RECORDS)
        try:
            self.fill_job(&job)
            job.task = RESTORE
            job.runs = runs
            job.run_count = self.overlaps(wanted, runs)
            job.total = wanted.total
            return ring.run(&job, progress)
        finally:
            free(runs)

    cdef size_t overlaps(self, const ExtentList* wanted, Run* found) noexcept nogil:
        """pre: room for as many as there are runs and extents

        An extent may begin, end or lie wholly where nothing was saved: free memory of a pool that was first captured
        into while it slept.
        """
        cdef size_t count = 0
        cdef size_t run = 0
        cdef size_t i, at
        cdef address_t start, end
        for i in range(wanted.count):
            start, end = wanted.extents[i].address, wanted.extents[i].address + wanted.extents[i].size
            at = run
            while at < self.count and start < end:
                if not (self.runs[at].address < end and start < self.runs[at].address + self.runs[at].size):
                    at += 1
                    continue
                run = at
                start = max(start, self.runs[at].address)
                found[count].address = start
                found[count].offset = self.runs[at].offset + (start - self.runs[at].address)
                found[count].size = min(end, self.runs[at].address + self.runs[at].size) - start
                start += found[count].size
                count += 1
        return count

    cdef object view(self, address_t address, bytes_t size):
        cdef HostCopy memory = self.memory      # only once, because another thread may release it
        cdef size_t i
        if memory is None:
            return None
        for i in range(self.count):
            if address - self.runs[i].address < self.runs[i].size:
                if size > self.runs[i].size - (address - self.runs[i].address):
                    return None
                return memory.view(self.runs[i].offset + (address - self.runs[i].address), size)
        return None

    cdef int drop(self, Ring ring) except -1:
        """Release the memory or the file that the contents took."""
        cdef HostCopy memory = self.memory
        cdef Job job
        if memory is not None:
            try:
                if ring is not None and self.total >= MUCH:
                    self.fill_job(&job)
                    job.task = FORGET
                    ring.run(&job, None)
            finally:
                self.memory = None
                memory.close()
        if self.file is not None:
            self.file.close()
            self.file = None
        return 0

    def __dealloc__(self):
        free(self.runs)
        free(self.checksums)
