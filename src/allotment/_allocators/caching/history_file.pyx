cimport cython
from libc.errno cimport EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from allotment._allocators.upcalls cimport report
from allotment._core.edge.history_rows cimport is_new, next_untold, write_head, write_rows
from allotment._core.records.history cimport name_of, stack_frames
from allotment._core.records.spool cimport (
    BATCH, spool_clear, spool_close, spool_init, spool_return, spool_take)
from allotment._core.records.tenants cimport stack_of
from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.history_codes cimport (
    HEAD, LOST, MOST_OF_ROW, NAMES, NOTES, RECORDS, SNAPSHOT, STACKS, VERSION)
from allotment._core.tools.pointer_map cimport PointerMap, map_clear, map_init, map_put, map_reserve

import json
import os
import threading
import weakref

from allotment._core.edge.words import HISTORY_MAGIC
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment.errors import RequestError

try:
    import fcntl
except ImportError:     # Windows
    fcntl = None

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <io.h>
    #define allotment_write(file, bytes, count) _write(file, bytes, (unsigned int) (count))
    #else
    #include <unistd.h>
    #define allotment_write write
    #endif
    """
    long write "allotment_write"(int file, const void* content, size_t count) noexcept nogil

cdef enum Pause:
    IDLE                # nothing arrived for a while
    NAMES_NEEDED        # a batch has stacks or names that the file lacks
    FAILED              # the system refused to write

cdef enum:
    PATIENCE = 1000000  # microseconds; then it fetches an incomplete batch

cdef set open_files = set()


def finish_all() -> None:
    """Write the rest and end the files, at the end of the process."""
    for file in list(open_files):
        allocator = (<HistoryFile> file).allocator()
        if allocator is not None:
            allocator.history._end_file()


cdef bint put(int file, const unsigned char* content, size_t count) noexcept nogil:
    cdef long written
    while count > 0:
        written = write(file, content, min(count, <size_t> 1 << 30))
        if written < 0:
            if errno == EINTR:
                continue
            return False
        content += written
        count -= <size_t> written
    return True


def opened_as_it_is(path: str, flags: int) -> int:
    """An opener for `open` that keeps what another recorder has written to the file."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


cdef object opened_alone(object path):
    """Open an emptied file for writing; fail if another recorder of this machine writes to it."""
    file = open(path, "wb", buffering=0, opener=opened_as_it_is)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RequestError(
                    f"record_history: {os.fspath(path)} is being written by another recorder; give each its own file"
                ) from None
            except OSError:
                pass        # a file system without locks
        if file.seekable():
            file.truncate(0)
    except BaseException:
        file.close()
        raise
    return file


cdef bint number_in_file(PointerMap* told, uint32_t number) except -1:
    """Give a stack or name the file's next number; return False if it has one, or is 0: none."""
    if not is_new(told, number):
        return False
    if not map_reserve(told):
        raise MemoryError("the host has no memory for a history")
    map_put(told, number, <void*> (told.count + 1))
    return True


cdef class HistoryFile:
    """HistoryFile(path)\n--\n
    A file that a history is written to, from when it is started until it is finished.

    Raises OSError, and RequestError if another recorder writes to it.
    """

    def __cinit__(self, path: str | PathLike[str]):
        if not (spool_init(&self.spool) and map_init(&self.stacks) and map_init(&self.names)):
            raise MemoryError("the host has no memory for a history")
        self.buffer = <unsigned char*> malloc(HEAD + BATCH * MOST_OF_ROW)
        if self.buffer == NULL:
            raise MemoryError("the host has no memory for a history")
        self.path = os.fspath(path)
        self.notes = []
        self.lock = fork_safe_lock()
        self.file = opened_alone(path)
        self.descriptor = self.file.fileno()

    def __dealloc__(self):
        spool_clear(&self.spool)
        map_clear(&self.stacks)
        map_clear(&self.names)
        free(self.batch)
        free(self.buffer)

    cdef int start(self, object allocator, bytes snapshot) except -1:
        """Begin the file with the state at the begin of the recording, and write from now on."""
        with self.lock:
            if self.finishing:      # another thread has ended it already
                return 0
            self.allocator = weakref.ref(allocator)
            self.put_frame(SNAPSHOT, snapshot, 0)
            self.thread = threading.Thread(target=self._write, name="allotment-history", daemon=True)
            self.thread.start()
            open_files.add(self)
        return 0

    @cython.critical_section
    cdef int add_note(self, dict note) except -1:
        self.notes.append(note)
        return 0

    @cython.critical_section
    cdef list take_notes(self):
        cdef list notes = self.notes
        self.notes = []
        return notes

    cdef bint writes_to(self, object path) except -1:
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path))
        except (OSError, ValueError):       # the file does not exist, or is closed
            return False

    cdef int finish(self) except -1:
        """Write the rest and close. Raises the error of writing. pre: the trace no longer uses the file"""
        with self.lock:
            self.finishing = True
            if self.thread is None:     # it was never started
                spool_close(&self.spool)
                self.file.close()
        if self.thread not in (None, threading.current_thread()):
            spool_close(&self.spool)
            self.thread.join()
        open_files.discard(self)
        if self.error is not None:
            raise self.error
        return 0

    def _write(self):
        cdef int why = IDLE
        try:
            while True:
                with nogil:
                    why = self.drain()
                if why == NAMES_NEEDED:
                    self.tell_new_names()
                    continue
                if why == FAILED:
                    raise OSError(errno, os.strerror(errno), self.path)
                if self.finishing or self.spool.closed:
                    if self.spool.first != NULL:
                        continue        # it arrived between the last check and the end
                    break
                allocator = self.allocator()
                if allocator is not None:
                    allocator.history._flush()
                del allocator       # this thread may have the last reference
            self.tell_new_names()
        except BaseException as error:
            spool_close(&self.spool)
            self.error = error
            if not self.finishing:
                report(error, self)
        finally:
            self.file.close()

    cdef int drain(self) noexcept nogil:
        """Write full batches as long as that needs no interpreter. Return a Pause."""
        while True:
            if self.batch == NULL:
                self.batch = spool_take(&self.spool, PATIENCE)
            if self.batch == NULL:
                return IDLE
            if self.spool.lost > self.lost_told or self.untold_from(0) < self.batch.count:
                return NAMES_NEEDED
            if not self.put_batch():
                return FAILED

    cdef size_t untold_from(self, size_t first) noexcept nogil:
        return next_untold(self.batch.records, self.batch.count, first, &self.stacks, &self.names)

    cdef bint put_batch(self) noexcept nogil:
        cdef unsigned char* content = self.buffer + HEAD
        cdef size_t length = write_rows(self.batch.records, self.batch.count, &self.stacks, &self.names, content)
        write_head(self.buffer, RECORDS, content, length, self.batch.count)
        if not put(self.descriptor, self.buffer, HEAD + length):
            return False
        spool_return(&self.spool, self.batch)
        self.batch = NULL
        return True

    cdef int put_frame(self, uint32_t kind, bytes content, size_t records) except -1:
        cdef unsigned char head[HEAD]
        cdef bytes whole
        write_head(head, kind, content, len(content), records)
        whole = (HISTORY_MAGIC + bytes([VERSION]) if kind == SNAPSHOT else b"") + head[:HEAD] + content
        if not put(self.descriptor, whole, len(whole)):
            raise OSError(errno, os.strerror(errno), self.path)
        return 0

    cdef int tell_new_names(self) except -1:
        """Write what needs the interpreter: the batch's new stacks and names, annotations, what was lost."""
        cdef TraceRecord* record
        cdef size_t i
        cdef list notes = self.take_notes()
        cdef list stacks = [self.stacks.count + 1]      # the number of the first, as the frame begins with
        cdef list texts = [self.names.count + 1]
        if self.batch != NULL:
            i = self.untold_from(0)
            while i < self.batch.count:
                record = &self.batch.records[i]
                if number_in_file(&self.stacks, stack_of(record.stack)):
                    stacks.append([
                        [frame["name"], frame["filename"], frame["line"]] for frame in stack_frames(record.stack)])
                if number_in_file(&self.names, record.compile_context):
                    texts.append(name_of(record.compile_context))
                if number_in_file(&self.names, record.metadata):
                    texts.append(name_of(record.metadata))
                i = self.untold_from(i + 1)
        if len(stacks) > 1:
            self.put_frame(STACKS, json.dumps(stacks).encode(), 0)
        if len(texts) > 1:
            self.put_frame(NAMES, json.dumps(texts).encode(), 0)
        if notes:
            self.put_frame(NOTES, json.dumps(notes, default=str).encode(), 0)
        if self.spool.lost > self.lost_told:
            self.put_frame(LOST, b"", min(self.spool.lost - self.lost_told, <size_t> 0xFFFFFFFF))
            self.lost_told = self.spool.lost
        return 0
