cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.raising cimport described
from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_EVENTS, CAN_PINNED, DEVICE_ERROR, IS_HOST, NOT_READY, OK, OUT_OF_MEMORY, Device, DeviceTable,
    status_t)
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, event_t, stream_t
from allotment._core.tools.arguments cimport read_arguments
from allotment._core.tools.forks cimport SHORT_LOCK, guard_forks, unguard_forks
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment._core.tools.lock cimport lock_give, lock_try, lock_wait_outside
from allotment._core.tools.weak_references cimport clear_weak_references_first

import warnings

from allotment._allocators.registered_pages import RegisteredPages
from allotment.errors import SettingsError, UnsupportedError

cdef extern from *:
    """
    #if defined(_WIN32)
    #include <windows.h>
    static __inline uint64_t allotment_steady_ns(void) {
        LARGE_INTEGER now, pace;
        QueryPerformanceCounter(&now);
        QueryPerformanceFrequency(&pace);
        return (uint64_t) ((double) now.QuadPart * 1e9 / (double) pace.QuadPart);
    }
    #else
    #include <time.h>
    static inline uint64_t allotment_steady_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
    }
    #endif
    """
    uint64_t allotment_steady_ns() noexcept nogil

cdef enum:
    PAGE = 4096


cdef class PinnedMemory(Device):
    """PinnedMemory(inner, settings, numa_node)\n--\n
    Pinned memory of a device, as a device of its own."""

    def __cinit__(self, *args, **kwargs):
        cdef Device inner
        inner, settings, numa_node = read_arguments(PinnedMemory, args, kwargs).values()
        if not inner.table.capabilities & CAN_PINNED:
            raise UnsupportedError(f"{inner.name} does not support pinned memory")
        self.inner = inner
        self.device = &inner.table
        self.name = f"pinned memory of {inner.name}"
        self.family = "pinned"
        self.table.self = <void*> self
        self.table.device = inner.table.device
        self.table.capabilities = IS_HOST | (inner.table.capabilities & (CAN_EVENTS | CAN_CAPTURE))
        self.reserve_size = settings.pinned_reserve_segment_size
        self.numa_node = numa_node
        if settings.pinned_use_host_register or numa_node is not None:
            self.register_pages(True, settings.pinned_num_register_threads)
        self.may_be_unlocked = hasattr(inner, "unlocked")
        guard_forks(&self.fork_guard, SHORT_LOCK, &self.lock)
        fill_table(self)

    def __init__(self, inner: Any, settings: Any, numa_node: int | None):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __dealloc__(self):
        unguard_forks(&self.fork_guard)

    cdef int register_pages(self, bint on, object threads) except -1:
        """Whether new segments are registered pages from now on; those of a node always are."""
        if not on:
            self.registers = self.numa_node is not None
            return 0
        if not hasattr(self.inner, "register_host"):
            key = "pinned_use_cuda_host_register" if self.numa_node is None else "numa_node"
            raise SettingsError(
                f"{key} is not supported on {self.inner.name}: it cannot pin existing memory",
                key=key, value="True" if self.numa_node is None else str(self.numa_node), allowed="False")
        if self.pages is None:
            self.pages = RegisteredPages(self.inner, threads, self.numa_node)
            self.uses_pages = True
        else:
            self.pages.threads = threads
        self.registers = True
        return 0

    cdef status_t obtain(self, bytes_t size, address_t* address) noexcept nogil:
        cdef uint64_t started = allotment_steady_ns()
        cdef status_t status = OK
        if self.reserve_size != 0:
            status = self.set_reserve_aside()
            if status != OK:
                return status
        if not self.take_from_reserve(size, address):
            status = obtain_pages(self, size, address) if self.registers else self.ask_device(size, address)
        if status == OK:
            if self.may_be_unlocked and not self.warned:
                warn_of_unlocked(self)
            self.note_time(&self.obtaining, started)
        return status

    cdef status_t set_reserve_aside(self) noexcept nogil:
        """If several threads come at the same time, the first to return keeps its segment."""
        cdef address_t found = 0
        cdef status_t status
        if self.reserve_end != 0:
            return OK
        status = self.ask_device(self.reserve_size, &found)
        if status != OK:
            return status
        enter(&self.lock)
        if self.reserve_end == 0:
            self.reserve_next = found
            self.reserve_end = found + self.reserve_size
            found = 0
        lock_give(&self.lock)
        return OK if found == 0 else self.device.pinned_free(self.device.self, found)

    cdef bint take_from_reserve(self, bytes_t size, address_t* address) noexcept nogil:
        cdef bint fits
        if self.reserve_size == 0:
            return False
        enter(&self.lock)
        fits = self.reserve_end - self.reserve_next >= whole_pages(size)
        if fits:
            address[0] = self.reserve_next
            self.reserve_next = self.reserve_next + whole_pages(size)
        lock_give(&self.lock)
        return fits

    cdef status_t ask_device(self, bytes_t size, address_t* address) noexcept nogil:
        """Relaxed: any thread may be capturing, and the driver would invalidate its capture because of this call."""
        cdef DeviceTable* table = self.device
        cdef status_t status
        if table.capture_relaxed != NULL:
            table.capture_relaxed(table.self, True)
        status = table.pinned_allocate(table.self, size, address)
        if table.capture_relaxed != NULL:
            table.capture_relaxed(table.self, False)
        return status

    cdef status_t release(self, address_t address) noexcept nogil:
        cdef uint64_t started = allotment_steady_ns()
        cdef status_t status = NOT_READY
        if self.is_reserved(address):
            return OK                   # allocated once
        if self.uses_pages:
            status = release_pages(self, address)
        if status == NOT_READY:
            status = self.device.pinned_free(self.device.self, address)
        if status == OK:
            self.note_time(&self.releasing, started)
        return status

    cdef void note_time(self, Timing* timing, uint64_t started) noexcept nogil:
        cdef uint64_t took = (allotment_steady_ns() - started) // 1000
        enter(&self.lock)
        timing.total += took
        timing.longest = max(timing.longest, took)
        timing.shortest = took if timing.count == 0 else min(timing.shortest, took)
        timing.count += 1
        lock_give(&self.lock)

    cdef bint is_reserved(self, address_t address) noexcept nogil:
        return address < self.reserve_end and address >= self.reserve_end - self.reserve_size


cdef inline void enter(Lock* lock) noexcept nogil:
    if not lock_try(lock):
        lock_wait_outside(lock)


cdef void remember(PinnedMemory memory, object error) noexcept:
    with cython.critical_section(memory):
        memory.last_error = error


cdef status_t obtain_pages(PinnedMemory memory, bytes_t size, address_t* address) noexcept with gil:
    remember(memory, None)
    try:
        address[0] = memory.pages.obtain(size)
        return OK if address[0] != 0 else OUT_OF_MEMORY
    except MemoryError as error:
        remember(memory, error)
        return OUT_OF_MEMORY
    except BaseException as error:
        remember(memory, error)
        return DEVICE_ERROR


cdef status_t release_pages(PinnedMemory memory, address_t address) noexcept with gil:
    """NOT_READY means that they are not registered pages."""
    remember(memory, None)
    try:
        return OK if memory.pages.release(address) else NOT_READY
    except BaseException as error:
        remember(memory, error)
        return DEVICE_ERROR


cdef void warn_of_unlocked(PinnedMemory memory) noexcept with gil:
    """Warn once that the system may swap this memory out."""
    if memory.warned or interpreter_ends() or not memory.inner.unlocked:
        return
    memory.warned = True
    try:
        warnings.warn(
            f"{memory.inner.name} cannot lock pinned memory in place: the system permits no more of it"
            " (ulimit -l); it may be swapped out", stacklevel=2)
    except Warning as error:            # warnings are errors here
        remember(memory, error)


clear_weak_references_first(PinnedMemory)


cdef bytes_t whole_pages(bytes_t size) noexcept nogil:
    return (size + PAGE - 1) // PAGE * PAGE


cdef dict timing_dict(const Timing* timing):
    return {"total": timing.total, "max": timing.longest, "min": timing.shortest, "count": timing.count,
            "avg": timing.total // timing.count if timing.count else 0}


# The contract

cdef void fill_table(PinnedMemory memory):
    cdef DeviceTable* inner = &memory.inner.table
    memory.table.segment_allocate = segment_allocate
    memory.table.segment_free = segment_free
    if inner.stream_synchronize != NULL:
        memory.table.stream_synchronize = stream_synchronize
    if inner.device_synchronize != NULL:
        memory.table.device_synchronize = device_synchronize
    if inner.event_record != NULL:
        memory.table.event_create = event_create
        memory.table.event_destroy = event_destroy
        memory.table.event_record = event_record
        memory.table.event_query = event_query
        memory.table.event_synchronize = event_synchronize
    if inner.capture_status != NULL:
        memory.table.capture_status = capture_status
    if inner.capture_relaxed != NULL:
        memory.table.capture_relaxed = capture_relaxed
    if inner.clear_error != NULL:
        memory.table.clear_error = clear_error
    memory.table.describe = describe


cdef inline DeviceTable* behind(void* self) noexcept nogil:
    return (<PinnedMemory> self).device


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    return (<PinnedMemory> self).obtain(size, address)


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    return (<PinnedMemory> self).release(address)


cdef size_t describe(void* self, char* text, size_t capacity) noexcept with gil:
    cdef PinnedMemory memory = <PinnedMemory> self
    cdef size_t length
    cdef bytes words
    try:
        with cython.critical_section(memory):
            error = memory.last_error
        words = (described(&memory.inner.table) if error is None else str(error)).encode()
    except BaseException:
        words = b"no words for it"
    length = min(capacity, <size_t> len(words))
    text[:length] = words[:length]
    return length


cdef status_t stream_synchronize(void* self, stream_t stream) noexcept nogil:
    return behind(self).stream_synchronize(behind(self).self, stream)


cdef status_t device_synchronize(void* self) noexcept nogil:
    return behind(self).device_synchronize(behind(self).self)


cdef status_t event_create(void* self, event_t* event) noexcept nogil:
    return behind(self).event_create(behind(self).self, event)


cdef status_t event_destroy(void* self, event_t event) noexcept nogil:
    return behind(self).event_destroy(behind(self).self, event)


cdef status_t event_record(void* self, event_t event, stream_t stream) noexcept nogil:
    return behind(self).event_record(behind(self).self, event, stream)


cdef status_t event_query(void* self, event_t event) noexcept nogil:
    return behind(self).event_query(behind(self).self, event)


cdef status_t event_synchronize(void* self, event_t event) noexcept nogil:
    return behind(self).event_synchronize(behind(self).self, event)


cdef status_t capture_status(void* self, stream_t stream, capture_t* capture) noexcept nogil:
    if stream == host_stream():     # of a request, in the mode "tight", which no device knows
        capture[0] = 0
        return OK
    return behind(self).capture_status(behind(self).self, stream, capture)


cdef status_t capture_relaxed(void* self, bint relaxed) noexcept nogil:
    return behind(self).capture_relaxed(behind(self).self, relaxed)


cdef status_t clear_error(void* self) noexcept nogil:
    return behind(self).clear_error(behind(self).self)
