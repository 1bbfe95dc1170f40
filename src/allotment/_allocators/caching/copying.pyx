cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport CAN_EVENTS, IS_HOST, OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t

import _thread
import os

from allotment.errors import FormatError

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #if defined(_MSC_VER)
    #include <intrin.h>
    #define allotment_count_add(place, value) \\
        ((uint64_t) _InterlockedExchangeAdd64((volatile long long*) (place), (long long) (value)))
    #define allotment_count_load(place) (*(volatile uint64_t*) (place))
    #define allotment_count_store(place, value) (*(volatile uint64_t*) (place) = (value))
    #else
    #define allotment_count_add(place, value) __atomic_fetch_add((place), (value), __ATOMIC_RELAXED)
    #define allotment_count_load(place) __atomic_load_n((place), __ATOMIC_RELAXED)
    #define allotment_count_store(place, value) __atomic_store_n((place), (value), __ATOMIC_RELAXED)
    #endif

    /* Four lanes of multiply and rotate, as xxHash has them: faster than any disk, and any changed bit shows. */
    static uint64_t allotment_rotate(uint64_t value, int by) { return (value << by) | (value >> (64 - by)); }
    static uint64_t allotment_checksum(const char* data, size_t size) {
        const uint64_t first = 0x9E3779B185EBCA87ULL, second = 0xC2B2AE3D27D4EB4FULL;
        uint64_t lanes[4] = {first + second, second, 0, 0 - first}, word, sum;
        size_t i = 0;
        for (; i + 32 <= size; i += 32)
            for (int lane = 0; lane < 4; lane++) {
                memcpy(&word, data + i + 8 * lane, 8);
                lanes[lane] = allotment_rotate(lanes[lane] + word * second, 31) * first;
            }
        sum = size;
        for (int lane = 0; lane < 4; lane++) sum = allotment_rotate(sum ^ lanes[lane], 27) * first + second;
        for (; i < size; i++) sum = allotment_rotate(sum ^ (unsigned char) data[i] * first, 11) * second;
        sum ^= sum >> 29;
        return sum * second;
    }

    #if defined(_WIN32)
    #define ALLOTMENT_NO_FILES 1
    static int allotment_write_at(int file, const char* data, size_t size, uint64_t offset) { return 1; }
    static int allotment_read_at(int file, char* data, size_t size, uint64_t offset) { return 1; }
    static void allotment_forget_pages(void* start, size_t size) {}
    #else
    #include <errno.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #define ALLOTMENT_NO_FILES 0
    /* 0 or errno. */
    static int allotment_write_at(int file, const char* data, size_t size, uint64_t offset) {
        while (size > 0) {
            ssize_t count = pwrite(file, data, size, (off_t) offset);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) return count < 0 ? errno : EIO;
            data += count; size -= (size_t) count; offset += (uint64_t) count;
        }
        return 0;
    }
    /* 0, errno, or -1: the file ends before. */
    static int allotment_read_at(int file, char* data, size_t size, uint64_t offset) {
        while (size > 0) {
            ssize_t count = pread(file, data, size, (off_t) offset);
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) return count < 0 ? errno : -1;
            data += count; size -= (size_t) count; offset += (uint64_t) count;
        }
        return 0;
    }
    static void allotment_forget_pages(void* start, size_t size) { madvise(start, size, MADV_DONTNEED); }
    #endif

    /* Traced code calls Python at every line, which needs one thread. */
    #if defined(CYTHON_TRACE_NOGIL) && CYTHON_TRACE_NOGIL
    #define ALLOTMENT_COPIES_ALONE 1
    #else
    #define ALLOTMENT_COPIES_ALONE 0
    #endif
    """
    uint64_t count_add "allotment_count_add"(uint64_t* place, uint64_t value) noexcept nogil
    uint64_t count_load "allotment_count_load"(const uint64_t* place) noexcept nogil
    void count_store "allotment_count_store"(uint64_t* place, uint64_t value) noexcept nogil
    uint64_t checksum "allotment_checksum"(const char* data, size_t size) noexcept nogil
    int write_at "allotment_write_at"(int file, const char* data, size_t size, uint64_t offset) noexcept nogil
    int read_at "allotment_read_at"(int file, char* data, size_t size, uint64_t offset) noexcept nogil
    void forget_pages "allotment_forget_pages"(void* start, size_t size) noexcept nogil
    bint COPIES_ALONE "ALLOTMENT_COPIES_ALONE"

cdef enum:
    ALIGNMENT = 4096            # of direct I/O
    AT_ONCE = 8                 # spans that one thread copies before it looks for progress and signals

cdef size_t lanes_most
cdef bytes_t span_now


def choose(*, lanes: int = 16, span: int = 2 << 20) -> None:
    """Set how memory is copied, for measurements and tests; called without arguments, as it was.

    `lanes`: threads at most, each with two buffers of `span` bytes.
    """
    global lanes_most, span_now
    lanes_most, span_now = lanes, span


# More threads than the bus needs: each of them faults in pages, and copies into them, at some 4 GB/s.
choose()


cdef bytes_t span_size() noexcept:
    return span_now


# --- one span ----------------------------------------------------------------------------------------------

cdef inline bint failed(Side* side, status_t status, const char* operation) noexcept nogil:
    """Record a device's failure; always returns False."""
    side.status = status
    side.operation = operation
    return False


cdef inline bint take_span(Job* job, size_t* span) noexcept nogil:
    if count_load(&job.stop) != 0:
        return False
    span[0] = count_add(&job.next, 1)
    return span[0] < job.end


cdef inline bytes_t size_of_span(const Job* job, size_t span) noexcept nogil:
    return min(job.span, job.size - span * job.span)


cdef inline char* buffer_of(const Job* job, const Side* side, size_t span, int turn) noexcept nogil:
    return job.memory + span * job.span if job.direct else side.buffers[turn]


cdef size_t first_run_in(const Job* job, bytes_t offset) noexcept nogil:
    """Return the first run that ends behind an offset."""
    cdef size_t low = 0
    cdef size_t high = job.run_count
    cdef size_t middle
    while low < high:
        middle = (low + high) // 2
        if job.runs[middle].offset + job.runs[middle].size <= offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint wait_for(Job* job, Side* side, int turn) noexcept nogil:
    """Wait for the copies between the device and a buffer."""
    cdef status_t status
    if not side.recorded[turn]:
        return True
    side.recorded[turn] = False
    status = job.table.event_synchronize(job.table.self, side.events[turn])
    return status == OK or failed(side, status, b"event_synchronize")


cdef bint move_span(Job* job, Side* side, size_t span, int turn) noexcept nogil:
    """Start copies between the device and a buffer."""
    cdef bytes_t start = span * job.span
    cdef bytes_t end = start + size_of_span(job, span)
    cdef char* buffer = buffer_of(job, side, span, turn)
    cdef DeviceTable* table = job.table
    cdef status_t status = OK
    cdef size_t i = first_run_in(job, start)
    cdef bytes_t low, high
    cdef address_t device, host
    while i < job.run_count and job.runs[i].offset < end:
        low = max(job.runs[i].offset, start)
        high = min(job.runs[i].offset + job.runs[i].size, end)
        device = job.runs[i].address + (low - job.runs[i].offset)
        host = <address_t> <uintptr_t> (buffer + (low - start))
        if table.capabilities & IS_HOST:
            if job.task == SAVE:
                memcpy(<void*> <uintptr_t> host, <const void*> <uintptr_t> device, high - low)
            else:
                memcpy(<void*> <uintptr_t> device, <const void*> <uintptr_t> host, high - low)
        else:
            status = table.copy(
                table.self, host if job.task == SAVE else device, device if job.task == SAVE else host, high - low,
                table.device, table.device, job.stream)
        if status != OK:
            return failed(side, status, b"copy")
        i += 1
    if turn < side.event_count:
        status = table.event_record(table.self, side.events[turn], job.stream)
        side.recorded[turn] = status == OK
    return status == OK or failed(side, status, b"event_record")


cdef bint put_away(Job* job, Side* side, size_t span, int turn) noexcept nogil:
    """Store a buffer, whose copies are done, in its place."""
    cdef bytes_t start = span * job.span
    cdef bytes_t size = size_of_span(job, span)
    cdef bytes_t padded = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    cdef char* buffer = side.buffers[turn]
    if job.direct:
        pass
    elif job.memory != NULL:
        memcpy(job.memory + start, buffer, size)
    else:
        memset(buffer + size, 0, padded - size)
        job.checksums[span] = checksum(buffer, size)
        side.error = write_at(job.descriptor, buffer, padded, start)
        if side.error != 0:
            return False
    count_add(&job.done, size)
    return True


cdef bint fetch(Job* job, Side* side, size_t span, int turn) noexcept nogil:
    """Load a buffer from its place; of a copy in memory, only what is needed."""
    cdef bytes_t start = span * job.span
    cdef bytes_t size = size_of_span(job, span)
    cdef bytes_t padded = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    cdef char* buffer = side.buffers[turn]
    cdef size_t i = first_run_in(job, start)
    cdef bytes_t low, high
    if job.memory == NULL:
        side.error = read_at(job.descriptor, buffer, padded, start)
        side.changed = side.error < 0 or (side.error == 0 and checksum(buffer, size) != job.checksums[span])
        return side.error == 0 and not side.changed
    while i < job.run_count and job.runs[i].offset < start + size:
        low = max(job.runs[i].offset, start)
        high = min(job.runs[i].offset + job.runs[i].size, start + size)
        memcpy(buffer + (low - start), job.memory + low, high - low)
        i += 1
    return True


cdef bytes_t wanted_in(const Job* job, size_t span) noexcept nogil:
    """Return how many bytes of a span are in runs."""
    cdef bytes_t start = span * job.span
    cdef bytes_t end = start + size_of_span(job, span)
    cdef size_t i = first_run_in(job, start)
    cdef bytes_t found = 0
    while i < job.run_count and job.runs[i].offset < end:
        found += min(job.runs[i].offset + job.runs[i].size, end) - max(job.runs[i].offset, start)
        i += 1
    return found


# --- one thread --------------------------------------------------------------------------------------------

cdef bint prepare(Job* job, Side* side) noexcept nogil:
    """Make the buffers and streams that a thread lacks."""
    cdef DeviceTable* table = job.table
    cdef bint is_host = table.capabilities & IS_HOST != 0
    cdef address_t found = 0
    cdef status_t status
    cdef uintptr_t base
    if side.memory == NULL and not job.direct:
        if not is_host and table.pinned_allocate != NULL and table.pinned_allocate(
                table.self, 2 * job.span + ALIGNMENT, &found) == OK:
            side.memory = <void*> <uintptr_t> found
            side.pinned = True
        else:
            side.memory = malloc(2 * job.span + ALIGNMENT)      # copies are slower without them, and as correct
            side.pinned = False
        if side.memory == NULL:
            side.error = 12     # ENOMEM
            return False
        base = (<uintptr_t> side.memory + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        side.buffers[0] = <char*> base
        side.buffers[1] = <char*> (base + job.span)
    while table.capabilities & CAN_EVENTS and not is_host and side.event_count < 2:
        status = table.event_create(table.self, &side.events[side.event_count])
        if status != OK:
            return failed(side, status, b"event_create")
        side.event_count += 1
    return True


cdef bint make_stream(Job* job, Side* side) noexcept nogil:
    """Give a job a stream for its copies, which a thread's side keeps for the next job."""
    cdef DeviceTable* table = job.table
    cdef status_t status
    if table.capabilities & IS_HOST or table.stream_create == NULL:
        return True
    if not side.has_stream:
        status = table.stream_create(table.self, &side.stream)
        if status != OK:
            return failed(side, status, b"stream_create")
        side.has_stream = True
    job.stream = side.stream
    return True


cdef bint save_spans(Job* job, Side* side) noexcept nogil:
    cdef size_t span = 0
    cdef size_t before = 0
    cdef bint is_before = False     # a span whose copies are in progress, in the other buffer
    cdef bint is_next
    cdef int turn = 0
    while True:
        is_next = take_span(job, &span)
        if is_next and not move_span(job, side, span, turn):
            return False
        if is_before and not (wait_for(job, side, 1 - turn) and put_away(job, side, before, 1 - turn)):
            return False
        if not is_next:
            return True
        is_before = True
        before = span
        turn = 1 - turn


cdef bint restore_spans(Job* job, Side* side) noexcept nogil:
    cdef size_t span = 0
    cdef int turn = 0
    cdef bytes_t wanted
    while take_span(job, &span):
        wanted = wanted_in(job, span)
        if wanted == 0:
            continue
        if not wait_for(job, side, turn):
            return False
        if not job.direct and not fetch(job, side, span, turn):
            return False
        if not move_span(job, side, span, turn):
            return False
        count_add(&job.done, wanted)
        turn = 1 - turn
    return True


cdef void forget_spans(Job* job) noexcept nogil:
    cdef size_t span = 0
    while take_span(job, &span):
        forget_pages(job.memory + span * job.span, size_of_span(job, span))


cdef void work(Job* job, Side* side) noexcept nogil:
    """Do spans until none is left. No copy is under way in the end, nor after a failure if the device can tell."""
    cdef bint ok
    side.status = OK
    side.error = 0
    side.changed = False
    side.recorded[0] = side.recorded[1] = False
    if job.task == FORGET:
        forget_spans(job)
        return
    if not prepare(job, side):
        count_store(&job.stop, 1)
        return
    ok = save_spans(job, side) if job.task == SAVE else restore_spans(job, side)
    if not (ok and wait_for(job, side, 0) and wait_for(job, side, 1)):
        drain_copies(job, side)
        count_store(&job.stop, 1)


cdef void drain_copies(Job* job, Side* side) noexcept nogil:
    """After a failure, wait for the copies under way: the caller frees the memory that they read and write."""
    cdef DeviceTable* table = job.table
    if table.capabilities & IS_HOST or table.stream_synchronize == NULL:
        return
    if table.stream_synchronize(table.self, job.stream) != OK:
        side.lost = table.device_synchronize == NULL or table.device_synchronize(table.self) != OK


# --- threads and buffers -----------------------------------------------------------------------------------

@cython.final
cdef class Lane:
    """What one thread copies with: two buffers, an event for each, and a stream if a job began with this lane."""

    cdef void close(self) noexcept:
        cdef DeviceTable* table = &self.device.table if self.device is not None else NULL
        cdef int turn
        if table == NULL or self.side.lost:
            return
        for turn in range(self.side.event_count):
            with nogil:
                table.event_destroy(table.self, self.side.events[turn])
        self.side.event_count = 0
        if self.side.has_stream and table.stream_destroy != NULL:
            with nogil:
                table.stream_destroy(table.self, self.side.stream)
        self.side.has_stream = False
        if self.side.pinned:
            with nogil:
                table.pinned_free(table.self, <address_t> <uintptr_t> self.side.memory)
        else:
            free(self.side.memory)
        self.side.memory = NULL
        self.side.pinned = False

    def __del__(self):
        # A finalizer, because a deallocator may not call a device that is written in Python.
        self.close()


cdef object error_of(const Job* job, Lane lane):
    """Return why a lane stopped, or None. Runs on the thread that used the lane: the device reports by thread."""
    cdef Side* side = &lane.side
    if side.status != OK:
        return device_error(lane.device, side.status, (<bytes> side.operation).decode())
    if side.changed:
        return FormatError(
            "the file that paused memory was written to has been changed; its contents are lost, and the memory stays "
            "paused")
    if side.error != 0 and job.descriptor < 0:
        return MemoryError("the host has no memory for the buffers that paused memory is copied through")
    if side.error != 0:
        return OSError(side.error, "the file for paused memory: " + os.strerror(side.error))
    return None


cdef class _Worker:
    """A thread's part of a job."""

    cdef Job* job
    cdef Lane lane
    cdef object done            # SimpleQueue: gets the error, or None

    def __call__(self):
        try:
            with nogil:
                work(self.job, &self.lane.side)
            self.done.put(error_of(self.job, self.lane))
        except BaseException as error:
            count_store(&self.job.stop, 1)
            self.done.put(error)


@cython.final
cdef class Ring:
    """The buffers of an allocator, which its pauses and resumes use one after the other."""

    cdef Lane idle_lane(self):
        try:
            return self.idle.pop()
        except IndexError:          # also if another thread has just taken the last one
            return None

    cdef int close_idle(self) except -1:
        cdef Lane lane = self.idle_lane()
        if lane is not None:
            lane.close()
        return 0

    cdef list take(self, size_t count, bytes_t span):
        cdef list taken = []
        cdef Lane lane
        while len(taken) < count:
            lane = self.idle_lane()
            if lane is not None and lane.span != span:
                lane.close()
                lane = None
            if lane is None:
                lane = Lane.__new__(Lane)
                lane.device = self.device
                lane.span = span
            taken.append(lane)
        return taken

    cdef int give(self, list lanes) except -1:
        cdef Lane lane
        for lane in lanes:
            if not (self.closed or lane.side.lost):
                self.idle.append(lane)
        while len(self.idle) > <Py_ssize_t> lanes_most:
            self.close_idle()
        return 0

    cdef int close(self) except -1:
        self.closed = True
        while self.idle:
            self.close_idle()
        return 0

    cdef int run(self, Job* job, object progress) except -1:
        cdef size_t spans = (job.size + job.span - 1) // job.span
        cdef size_t count = 1 if COPIES_ALONE else min(spans // 2, lanes_most, <size_t> processors())
        cdef list lanes
        cdef Lane first
        job.next = job.done = job.stop = 0
        job.end = spans
        if spans == 0:
            return 0
        lanes = self.take(max(count, <size_t> 1), job.span)
        first = lanes[0]
        try:
            first.side.status = OK
            with nogil:
                make_stream(job, &first.side)
            if first.side.status != OK:
                raise error_of(job, first)
            if count <= 1:
                self.run_here(job, first, progress)
            else:
                self.run_in_threads(job, lanes, progress)
        finally:
            self.give(lanes)
        return 0

    cdef int run_here(self, Job* job, Lane lane, object progress) except -1:
        cdef uint64_t spans = job.end
        while True:
            job.end = min(min(job.next, job.end) + AT_ONCE, spans)
            job.next = min(job.next, job.end)
            with nogil:
                work(job, &lane.side)
            error = error_of(job, lane)
            if error is not None:
                raise error
            PyErr_CheckSignals()
            if progress is not None:
                progress(job.done, job.total)
            if job.end == spans:
                return 0
            job.next = job.end

    cdef int run_in_threads(self, Job* job, list lanes, object progress) except -1:
        from queue import Empty, SimpleQueue    # imported late: few programs need it

        cdef object done = SimpleQueue()
        cdef object failure = None
        cdef size_t running = 0
        cdef uint64_t reported = 0
        cdef _Worker worker
        cdef Lane lane
        for lane in lanes:
            worker = _Worker.__new__(_Worker)
            worker.job, worker.lane, worker.done = job, lane, done
            try:
                _thread.start_new_thread(worker, ())
            except RuntimeError:            # no further threads: those that run do all of it
                break
            except BaseException as error:  # running threads use `job`, and must end first
                count_store(&job.stop, 1)
                failure = error
                break
            running += 1
        if running == 0 and failure is None:
            return self.run_here(job, lanes[0], progress)
        while running > 0:
            try:
                if progress is None or count_load(&job.stop) != 0:
                    error = done.get()      # lets a signal through
                else:
                    error = done.get(timeout=0.05)
                running -= 1
                failure = error if failure is None else failure
            except Empty:
                pass
            except BaseException as error:
                count_store(&job.stop, 1)
                failure = error if failure is None else failure
            try:
                if progress is not None and count_load(&job.stop) == 0 and count_load(&job.done) != reported:
                    reported = count_load(&job.done)
                    progress(reported, job.total)
            except BaseException as error:
                count_store(&job.stop, 1)
                failure = error if failure is None else failure
        if failure is not None:
            raise failure
        return 0


cdef Ring new_ring(Device device):
    cdef Ring made = Ring.__new__(Ring)
    made.device = device
    made.idle = []
    return made


cdef int processors() except -1:
    """Return how many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
