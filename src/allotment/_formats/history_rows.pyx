"""Reads rows of a history file into columns: see `history_codes` for the format. Nothing in them is trusted."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from allotment._core.records.tenants cimport stack_of
from allotment._core.records.trace cimport ACTION_COUNT
from allotment._core.tools cimport history_codes
from allotment._core.tools.history_codes cimport (
    ACTION_BITS, HAS_MORE, HEAD, LEAST_OF_ROW, SAME_CONTEXT, SAME_PLACE, SAME_POOL, VERSION, checksum, get_number,
    get_signed)

from enum import IntEnum


class FrameKind(IntEnum):
    """Content of a frame of a history file."""

    SNAPSHOT = history_codes.SNAPSHOT
    STACKS = history_codes.STACKS
    NAMES = history_codes.NAMES
    RECORDS = history_codes.RECORDS
    NOTES = history_codes.NOTES
    LOST = history_codes.LOST


FORM_VERSION: int = VERSION
HEAD_BYTES: int = HEAD
LEAST_ROW_BYTES: int = LEAST_OF_ROW


def checksum_of(content: bytes) -> int:
    """Return the checksum in the header of a frame with this content."""
    return checksum(content, len(content))


cdef class Columns:
    """Columns(count)\n--\n
    A history of `count` records, filled by `read`; `filled` is the number so far.
    """
    cdef readonly object action, address, size, stream, time_us, pool_first, pool_second, stack
    cdef readonly object compile_context, metadata
    cdef readonly size_t filled
    cdef uint8_t[::1] actions
    cdef uint64_t[::1] addresses, sizes, streams, firsts, seconds
    cdef int64_t[::1] times
    cdef int32_t[::1] stacks, contexts, notes

    def __cinit__(self, count: int):
        import numpy

        self.actions = self.action = numpy.zeros(count, dtype=numpy.uint8)
        self.addresses = self.address = numpy.zeros(count, dtype=numpy.uint64)
        self.sizes = self.size = numpy.zeros(count, dtype=numpy.uint64)
        self.streams = self.stream = numpy.zeros(count, dtype=numpy.uint64)
        self.times = self.time_us = numpy.zeros(count, dtype=numpy.int64)
        self.firsts = self.pool_first = numpy.zeros(count, dtype=numpy.uint64)
        self.seconds = self.pool_second = numpy.zeros(count, dtype=numpy.uint64)
        self.stacks = self.stack = numpy.zeros(count, dtype=numpy.int32)
        self.contexts = self.compile_context = numpy.zeros(count, dtype=numpy.int32)
        self.notes = self.metadata = numpy.zeros(count, dtype=numpy.int32)

    def read(self, rows: bytes) -> int:
        """Add complete rows as far as there is room; return how many were added."""
        cdef const unsigned char* at = rows
        cdef const unsigned char* end = at + len(rows)
        cdef size_t before = self.filled
        with nogil:
            while at != NULL and at < end and <Py_ssize_t> self.filled < self.actions.shape[0]:
                at = self.read_row(at, end, self.filled == before)
        return self.filled - before

    cdef const unsigned char* read_row(self, const unsigned char* at, const unsigned char* end,
                                       bint first) noexcept nogil:
        """Return the position after the row; NULL if it is incomplete or invalid."""
        cdef size_t i = self.filled
        cdef int flags = at[0]
        cdef int64_t later, moved, before
        cdef uint64_t number
        if flags & ACTION_BITS >= ACTION_COUNT:
            return NULL
        self.actions[i] = flags & ACTION_BITS
        at = get_signed(at + 1, end, &later)
        if at == NULL:
            return NULL
        before = 0 if first else self.times[i - 1]
        self.times[i] = <int64_t> (<uint64_t> before + <uint64_t> later)
        if (self.times[i] < before) != (later < 0):     # a time out of range: the row is damaged
            return NULL
        self.addresses[i] = 0 if first else self.addresses[i - 1]
        self.sizes[i] = 0 if first else self.sizes[i - 1]
        self.streams[i] = 0 if first else self.streams[i - 1]
        self.firsts[i] = 0 if first else self.firsts[i - 1]
        self.seconds[i] = 0 if first else self.seconds[i - 1]
        self.stacks[i] = 0 if first else self.stacks[i - 1]
        self.contexts[i] = self.notes[i] = 0
        if not flags & SAME_PLACE:
            at = get_signed(at, end, &moved)
            if at == NULL:
                return NULL
            self.addresses[i] += <uint64_t> moved
            at = get_number(at, end, &self.sizes[i])
            if at == NULL:
                return NULL
            if not flags & SAME_POOL:
                at = get_number(at, end, &self.streams[i])
                if at == NULL:
                    return NULL
                at = get_number(at, end, &self.firsts[i])
                if at == NULL:
                    return NULL
                at = get_number(at, end, &self.seconds[i])
                if at == NULL:
                    return NULL
        if not flags & SAME_CONTEXT:
            at = get_number(at, end, &number)
            if at == NULL:
                return NULL
            self.stacks[i] = <int32_t> stack_of(<uint32_t> number)
        if flags & HAS_MORE:
            if at == end:
                return NULL
            at = get_number(at + 1, end, &number)
            if at == NULL:
                return NULL
            self.contexts[i] = <int32_t> min(number, <uint64_t> 0x7FFFFFFF)
            at = get_number(at, end, &number)
            if at == NULL:
                return NULL
            self.notes[i] = <int32_t> min(number, <uint64_t> 0x7FFFFFFF)
        self.filled = i + 1
        return at
