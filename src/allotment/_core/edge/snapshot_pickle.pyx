cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from allotment._core.edge.snapshot cimport internal_metadata, user_metadata
from allotment._core.edge.words cimport (
    ACTION, ADDR, COMPILE_CONTEXT, DEVICE_FREE, FIRST_ACTION, FRAMES, INTERNAL_METADATA, NO_CONTEXT, POOL_ID, SIZE,
    STREAM, TENANT, TIME_US, USER_METADATA, WORD_COUNT, WORDS)
from allotment._core.records.history cimport name_of, stack_frames
from allotment._core.records.tenants cimport stack_of, tenant_name, tenant_of
from allotment._core.records.trace cimport ACTION_OOM, TraceRecord
from allotment._core.tools.pickle_codes cimport (
    APPEND, APPENDS, BINGET, BININT, BININT1, BINPUT, BINUNICODE, EMPTY_DICT, EMPTY_LIST, FRAME, LONG1, LONG_BINGET,
    LONG_BINPUT, MARK, PROTO, SETITEM, SETITEMS, STOP, TUPLE2)

import pickle

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)
    int PyBUF_READ

cdef enum:
    PIECE = 1 << 20             # bytes written to the file at a time
    SPARE = 512                 # always available: enough for one entry without new values
    FRAME_HEADER = 9
    PROTOCOL = 4


@cython.final
cdef class PickleWriter:
    cdef object file
    cdef uint8_t* data          # the current frame, with its header
    cdef size_t used, room
    cdef uint32_t words         # bit per word that was written
    cdef dict numbers           # text, pool id or number of a stack -> memo number

    def __cinit__(self, file):
        self.file = file
        self.numbers = {}
        self.used = FRAME_HEADER
        self.make_room(0)
        file.write(bytes([PROTO, PROTOCOL]))

    def __dealloc__(self):
        free(self.data)

    cdef int make_room(self, size_t more) except -1:
        """Make room for `more` bytes, besides SPARE."""
        cdef size_t room = self.used + more + SPARE
        cdef uint8_t* larger
        if room <= self.room:
            return 0
        room = max(room, 2 * self.room, <size_t> PIECE + 2 * SPARE)
        larger = <uint8_t*> realloc(self.data, room)
        if larger == NULL:
            raise MemoryError("the host has no memory for a snapshot")
        self.data = larger
        self.room = room
        return 0

    cdef int flush(self) except -1:
        """Write everything so far to the file as one frame."""
        cdef size_t used = self.used
        self.used = 0
        self.byte(FRAME)
        self.number(used - FRAME_HEADER, 8)
        self.file.write(PyMemoryView_FromMemory(<char*> self.data, used, PyBUF_READ))
        return 0

    cdef inline void byte(self, uint8_t value) noexcept:
        self.data[self.used] = value
        self.used += 1

    cdef inline void number(self, uint64_t value, int length) noexcept:
        cdef int i
        for i in range(length):
            self.data[self.used + i] = <uint8_t> (value >> (8 * i))
        self.used += length

    cdef inline void integer(self, uint64_t value) noexcept:
        if value < 0x100:
            self.byte(BININT1)
            self.number(value, 1)
        elif value < 0x80000000:
            self.byte(BININT)
            self.number(value, 4)
        else:
            self.byte(LONG1)
            self.byte(8 + <uint8_t> (value >> 63))
            self.number(value, 8)
            if value >> 63:
                self.byte(0)

    cdef int bytes_(self, bytes content, size_t begin, size_t end) except -1:
        self.make_room(end - begin)
        memcpy(self.data + self.used, <const char*> content + begin, end - begin)
        self.used += end - begin
        return 0

    cdef int utf8(self, str text) except -1:
        cdef bytes encoded = text.encode("utf-8", "surrogatepass")
        self.byte(BINUNICODE)
        self.number(len(encoded), 4)
        return self.bytes_(encoded, 0, len(encoded))

    cdef int plain(self, object value) except -1:
        """Write any value. Its memo numbers start at 0, as ours do, so it ends references to earlier values."""
        cdef bytes pickled = pickle.dumps(value, protocol=3)        # the last protocol without frames
        self.numbers.clear()
        self.words = 0
        return self.bytes_(pickled, 2, len(pickled) - 1)            # without PROTO and STOP

    # Repeated values. Each method writes the value or its memo number.

    cdef inline void get(self, uint32_t number) noexcept:
        if number < 0x100:
            self.byte(BINGET)
            self.number(number, 1)
        else:
            self.byte(LONG_BINGET)
            self.number(number, 4)

    cdef inline int word(self, int word) except -1:
        if (self.words >> word) & 1:
            self.get(word)
            return 0
        self.words |= <uint32_t> 1 << word
        self.utf8(WORDS[word])
        self.byte(BINPUT)
        self.number(word, 1)
        return 0

    cdef uint32_t known(self, object key) except? 0:
        """Write the memo number of a value; return 0 if it has none yet."""
        number = self.numbers.get(key)
        if number is None:
            return 0
        self.get(number)
        return number

    cdef uint32_t put(self, object key) except? 0:
        """Assign a memo number to the value just written."""
        cdef uint32_t number = WORD_COUNT + <uint32_t> len(self.numbers)
        self.numbers[key] = number
        self.byte(LONG_BINPUT)
        self.number(number, 4)
        return number

    cdef uint32_t text(self, str text) except? 0:
        cdef uint32_t number = self.known(text)
        if number == 0:
            self.utf8(text)
            number = self.put(text)
        return number

    cdef uint32_t pool_id(self, uint64_t first, uint64_t second) except? 0:
        cdef uint32_t number = self.known((first, second))
        if number == 0:
            self.integer(first)
            self.integer(second)
            self.byte(TUPLE2)
            number = self.put((first, second))
        return number

    cdef uint32_t frames(self, uint32_t context) except? 0:
        cdef uint32_t number = self.known(stack_of(context))
        if number != 0:
            return number
        self.byte(EMPTY_LIST)
        number = self.put(stack_of(context))
        self.byte(MARK)
        for frame in stack_frames(context):
            self.byte(EMPTY_DICT)
            self.byte(MARK)
            self.text("name")
            self.text(frame["name"])
            self.text("filename")
            self.text(frame["filename"])
            self.text("line")
            self.byte(BININT)
            self.number(<uint64_t> <int32_t> frame["line"], 4)
            self.byte(SETITEMS)
            self.make_room(0)
        self.byte(APPENDS)
        return number

    cdef int trace(self, const TraceRecord* records, size_t count, object rules) except -1:
        # A value equal to the previous entry's needs no lookup: a local variable has its number.
        cdef uint32_t compile_context = 0
        cdef uint32_t metadata = 0
        cdef uint32_t pool_id = 0
        cdef uint32_t frames = 0
        cdef bint names_pools = rules.trace_names_pools
        cdef const TraceRecord* last = records
        cdef const TraceRecord* record
        cdef size_t i
        self.byte(EMPTY_LIST)
        self.byte(MARK)
        for i in range(count):
            record = &records[i]
            if self.used >= PIECE:
                self.flush()
            self.make_room(0)
            self.byte(EMPTY_DICT)
            self.byte(MARK)
            self.word(ACTION)
            self.word(FIRST_ACTION + record.action)
            self.word(DEVICE_FREE if record.action == ACTION_OOM else ADDR)
            self.integer(record.address)
            self.word(SIZE)
            self.integer(record.size)
            self.word(STREAM)
            self.integer(record.stream)
            self.word(TIME_US)
            self.integer(record.time_us)
            self.word(COMPILE_CONTEXT)
            if compile_context != 0 and record.compile_context == last.compile_context:
                self.get(compile_context)
            else:
                compile_context = self.text(name_of(record.compile_context) or NO_CONTEXT)
            self.word(USER_METADATA)
            if (metadata != 0 and record.metadata == last.metadata
                    and record.exact_address == last.exact_address):
                self.get(metadata)
            else:
                metadata = self.text(user_metadata(record, rules))
            if names_pools:
                self.word(POOL_ID)
                if (pool_id != 0 and record.pool_first == last.pool_first
                        and record.pool_second == last.pool_second):
                    self.get(pool_id)
                else:
                    pool_id = self.pool_id(record.pool_first, record.pool_second)
            if stack_of(record.stack) != 0:
                self.word(FRAMES)
                if frames != 0 and record.stack == last.stack:
                    self.get(frames)
                else:
                    frames = self.frames(record.stack)
            if record.exact_address and internal_metadata(record, rules):
                self.word(INTERNAL_METADATA)
                self.text(internal_metadata(record, rules))
            if tenant_of(record.stack) != 0:
                self.word(TENANT)
                self.text(tenant_name(record.stack))
            self.byte(SETITEMS)
            last = record
        self.byte(APPENDS)
        return 0


cdef int write_snapshot(object file, dict snapshot, const TraceRecord* records, size_t count, object rules) except -1:
    """Write the pickle of `snapshot` with these records in it. pre: its history of the last device is empty"""
    cdef PickleWriter writer = PickleWriter(file)
    writer.byte(EMPTY_DICT)
    for key, value in snapshot.items():
        writer.plain(key)
        if key == "device_traces":
            writer.plain(value[:len(value) - 1])
            writer.trace(records, count, rules)
            writer.byte(APPEND)
        else:
            writer.plain(value)
        writer.byte(SETITEM)
    writer.byte(STOP)
    writer.flush()
    return 0
