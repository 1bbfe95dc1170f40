from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.raising cimport described
from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_EVENTS, CAN_PINNED, DEVICE_ERROR, IS_HOST, OK, OUT_OF_MEMORY, Device, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, event_t, stream_t
from allotment._core.tools.arguments cimport read_arguments

import time
import warnings

from allotment._allocators.registered_pages import RegisteredPages
from allotment.errors import SettingsError, UnsupportedError

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
        self.name = f"pinned memory of {inner.name}"
        self.family = "pinned"
        self.table.self = <void*> self
        self.table.device = inner.table.device
        self.table.capabilities = IS_HOST | (inner.table.capabilities & (CAN_EVENTS | CAN_CAPTURE))
        self.reserve_size = settings.pinned_reserve_segment_size
        if settings.pinned_use_host_register or numa_node is not None:
            if not hasattr(inner, "register_host"):
                key = "pinned_use_cuda_host_register" if numa_node is None else "numa_node"
                raise SettingsError(
                    f"{key} is not supported on {inner.name}: it cannot pin memory that is there already",
                    key=key, value="True" if numa_node is None else str(numa_node), allowed="False")
            self.pages = RegisteredPages(inner, settings.pinned_num_register_threads, numa_node)
        fill_table(self)

    def __init__(self, inner: Any, settings: Any, numa_node: int | None):
        pass    # `__cinit__` has read them, so that an object is whole as soon as it is there

    cdef int obtain(self, bytes_t size, address_t* address) except -1:
        cdef DeviceTable* table = &self.inner.table
        cdef status_t status = OK
        cdef address_t found = 0
        started = time.perf_counter_ns()
        if self.reserve_size != 0 and self.reserve_end == 0:
            with nogil:
                status = table.pinned_allocate(table.self, self.reserve_size, &found)
            if status != OK:
                return status
            self.reserve_next, self.reserve_end = found, found + self.reserve_size
        if self.reserve_end - self.reserve_next >= whole_pages(size):
            address[0] = self.reserve_next
            self.reserve_next += whole_pages(size)
        elif self.pages is not None:
            found = self.pages.obtain(size)
            if found == 0:
                return OUT_OF_MEMORY
            address[0] = found
        else:
            with nogil:
                status = table.pinned_allocate(table.self, size, address)
        if status == OK:
            self.warn_of_unlocked()
            note_time(&self.obtaining, time.perf_counter_ns() - started)
        return status

    cdef int release(self, address_t address) except -1:
        cdef DeviceTable* table = &self.inner.table
        cdef status_t status = OK
        started = time.perf_counter_ns()
        if self.is_reserved(address):
            return OK                   # handed out once
        if self.pages is None or not self.pages.release(address):
            with nogil:
                status = table.pinned_free(table.self, address)
        if status == OK:
            note_time(&self.releasing, time.perf_counter_ns() - started)
        return status

    cdef int warn_of_unlocked(self) except -1:
        """Say once that the system lets this memory be swapped out."""
        if not self.warned and getattr(self.inner, "unlocked", 0):
            self.warned = True
            warnings.warn(
                f"{self.inner.name} cannot lock pinned memory in place: the system permits no more of it"
                " (ulimit -l); it may be swapped out", stacklevel=2)
        return 0

    cdef bint is_reserved(self, address_t address) noexcept:
        return address < self.reserve_end and address >= self.reserve_end - self.reserve_size


cdef bytes_t whole_pages(bytes_t size) noexcept:
    return (size + PAGE - 1) // PAGE * PAGE


cdef void note_time(Timing* timing, uint64_t nanoseconds) noexcept:
    cdef uint64_t took = nanoseconds // 1000
    timing.total += took
    timing.longest = max(timing.longest, took)
    timing.shortest = took if timing.count == 0 else min(timing.shortest, took)
    timing.count += 1


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
    return &(<PinnedMemory> self).inner.table


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept with gil:
    cdef PinnedMemory memory = <PinnedMemory> self
    memory.last_error = None
    try:
        return memory.obtain(size, address)
    except MemoryError as error:
        memory.last_error = error
        return OUT_OF_MEMORY
    except BaseException as error:
        memory.last_error = error
        return DEVICE_ERROR


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept with gil:
    cdef PinnedMemory memory = <PinnedMemory> self
    memory.last_error = None
    try:
        return memory.release(address)
    except BaseException as error:
        memory.last_error = error
        return DEVICE_ERROR


cdef size_t describe(void* self, char* text, size_t capacity) noexcept with gil:
    cdef PinnedMemory memory = <PinnedMemory> self
    cdef size_t length
    cdef bytes words
    try:
        if memory.last_error is None:
            words = described(&memory.inner.table).encode()
        else:
            words = str(memory.last_error).encode()
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
    return behind(self).capture_status(behind(self).self, stream, capture)


cdef status_t capture_relaxed(void* self, bint relaxed) noexcept nogil:
    return behind(self).capture_relaxed(behind(self).self, relaxed)


cdef status_t clear_error(void* self) noexcept nogil:
    return behind(self).clear_error(behind(self).self)
