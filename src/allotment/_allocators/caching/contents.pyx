cimport cython
from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from allotment._core.contract.raising cimport check_status
from allotment._core.contract.table cimport IS_HOST, OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.pausing cimport ExtentList

import os
from contextlib import suppress

from allotment.errors import DeviceError, UnsupportedError

cdef enum:
    THREADS_MOST = 8            # that have the system find pages
    PIECE_MOST = 64 << 20       # large enough for the bus to be busy, small enough for progress to be seen
    AT_ONCE = 8                 # pieces under way before they are waited for


@cython.final
cdef class Contents:
    """What was in paused memory; allocators make one."""

    cdef int plan(self, Device device, const ExtentList* list) except -1:
        """Cut extents into pieces."""
        cdef size_t count = 0
        cdef size_t i
        cdef bytes_t done
        cdef Piece* piece
        self.device = device
        for i in range(list.count):
            count += (list.extents[i].size + PIECE_MOST - 1) // PIECE_MOST
        self.pieces = <Piece*> calloc(count + 1, sizeof(Piece))
        if self.pieces == NULL:
            raise MemoryError("the host has no memory for the allocator's own records")
        for i in range(list.count):
            done = 0
            while done < list.extents[i].size:
                piece = &self.pieces[self.count]
                piece.address = list.extents[i].address + done
                piece.size = min(<bytes_t> PIECE_MOST, list.extents[i].size - done)
                done += piece.size
                self.count += 1
        self.total = list.total
        return 0

    cdef int obtain(self) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef bint is_host = table.capabilities & IS_HOST != 0
        cdef status_t status = OK
        cdef size_t i = 0
        if not is_host and table.copy == NULL:
            raise UnsupportedError(
                f"{self.device.name} does not support copy, so that the contents of paused memory cannot be kept; "
                'pause with keep="nothing"', operation="copy")
        if not is_host and self.obtain_registered():
            return 0
        with nogil:
            while status == OK and i < self.count:
                if is_host or table.pinned_allocate == NULL:
                    self.pieces[i].host = <address_t> malloc(self.pieces[i].size)
                    if self.pieces[i].host == 0:
                        break
                else:
                    status = table.pinned_allocate(table.self, self.pieces[i].size, &self.pieces[i].host)
                i += 1
        check_status(self.device, status, "pinned_allocate")
        if i < self.count:
            raise MemoryError(f"the host has no memory for {self.total} bytes of paused memory")
        return 0

    cdef bint obtain_registered(self) except -1:
        cdef address_t host
        cdef size_t i
        if not hasattr(self.device, "register_host") or self.count == 0:
            return False
        from allotment._allocators.registered_pages import RegisteredPages

        pages = RegisteredPages(self.device, min(<int> THREADS_MOST, os.cpu_count() or 1), None)
        try:
            host = pages.obtain(self.total)
        except DeviceError:
            return False
        self.pages = pages
        for i in range(self.count):
            self.pieces[i].host = host
            host += self.pieces[i].size
        return True

    cdef int save(self) except -1:
        return self.copy(self.pieces, self.count, self.total, True, None)

    cdef int restore(self, const ExtentList* wanted, object progress) except -1:
        cdef Piece* pieces = <Piece*> calloc(self.count + wanted.count + 1, sizeof(Piece))
        if pieces == NULL:
            raise MemoryError("the host has no memory for the allocator's own records")
        try:
            return self.copy(pieces, self.overlaps(wanted, pieces), wanted.total, False, progress)
        finally:
            free(pieces)

    cdef size_t overlaps(self, const ExtentList* wanted, Piece* found) noexcept nogil:
        """pre: room for as many as there are pieces and extents"""
        cdef size_t count = 0
        cdef size_t piece = 0
        cdef size_t i
        cdef address_t start
        cdef bytes_t left
        for i in range(wanted.count):
            start, left = wanted.extents[i].address, wanted.extents[i].size
            while left > 0 and piece < self.count:
                if start - self.pieces[piece].address >= self.pieces[piece].size:      # below it, it wraps around
                    piece += 1
                    continue
                found[count].address = start
                found[count].host = self.pieces[piece].host + (start - self.pieces[piece].address)
                found[count].size = min(left, self.pieces[piece].size - (start - self.pieces[piece].address))
                start += found[count].size
                left -= found[count].size
                count += 1
        return count

    cdef int copy(self, const Piece* pieces, size_t count, bytes_t total, bint saving, object progress) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef bint is_host = table.capabilities & IS_HOST != 0
        cdef bytes_t done = 0
        cdef status_t status = OK
        cdef address_t target, origin
        cdef size_t i
        while not is_host and self.stream_count < 2 and table.stream_create != NULL:
            with nogil:
                status = table.stream_create(table.self, &self.streams[self.stream_count])
            check_status(self.device, status, "stream_create")
            self.stream_count += 1
        for i in range(count):
            target, origin = pieces[i].address, pieces[i].host
            if saving:
                target, origin = origin, target
            with nogil:
                if is_host:
                    memcpy(<void*> target, <void*> origin, pieces[i].size)
                else:
                    status = table.copy(table.self, target, origin, pieces[i].size, table.device, table.device,
                                        self.streams[i % 2] if self.stream_count > 0 else 0)
            check_status(self.device, status, "copy")
            done += pieces[i].size
            if (i + 1) % AT_ONCE == 0 or i + 1 == count:
                self.wait()
                if progress is not None:
                    progress(done, total)
        return 0

    cdef int wait(self) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef status_t status = OK
        cdef int i
        for i in range(self.stream_count if table.stream_synchronize != NULL else 0):
            with nogil:
                status = table.stream_synchronize(table.self, self.streams[i])
            check_status(self.device, status, "stream_synchronize")
        return 0

    cdef void drop(self) noexcept:
        cdef DeviceTable* table = &self.device.table if self.device is not None else NULL
        cdef size_t i
        if table == NULL:
            return
        if self.pages is not None:
            with suppress(DeviceError):
                self.pages.release(self.pieces[0].host)
            self.pages = None
            self.count = 0
        for i in range(self.count):
            if self.pieces[i].host != 0:
                if table.capabilities & IS_HOST or table.pinned_allocate == NULL:
                    free(<void*> self.pieces[i].host)
                else:
                    with nogil:
                        table.pinned_free(table.self, self.pieces[i].host)
        for i in range(<size_t> self.stream_count if table.stream_destroy != NULL else 0):
            with nogil:
                table.stream_destroy(table.self, self.streams[i])
        self.stream_count = 0
        self.count = 0
        free(self.pieces)
        self.pieces = NULL

    def __del__(self):
        # A finalizer, because a deallocator may not call a device that is written in Python.
        self.drop()
