cimport cython
from libc.stddef cimport size_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport BasicInspection
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.edge.invariants cimport check_engine
from allotment._core.engine cimport engine_base, engine_is_inside, engine_leave
from allotment._core.mechanism.shortage cimport largest_free_block
from allotment._core.model.model cimport Engine, Failure, PendingEvent, Range, StreamRecord
from allotment._core.records.stats cimport SMALL, stats_reset_accumulated
from allotment._core.tools.arguments cimport read_block, read_byte_count, read_place


@cython.final
cdef class Inspection(BasicInspection):
    """Inspection(allocator)\n--\n
    Figures, checks and findings, for tools and tests: `allocator.inspection`.

    Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

    def reset_accumulated_stats(self) -> None:
        """Restart the sums of all allocations and frees at 0. Safe to call from several threads."""
        self.allocator.enter()
        stats_reset_accumulated(&self.allocator.engine.stats)
        engine_leave(self.allocator.engine)

    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """Return (base, size) of the plain segment that contains a live block, an address or a `Buffer`.

        Raises AddressError for an address that is not the start of a live block, UnsupportedError for a block of an
        expandable segment.
        """
        cdef Failure failure
        cdef address_t base = 0
        cdef bytes_t size = 0
        cdef address_t wanted = read_block(block)
        cdef bint ok
        self.allocator.enter()
        ok = engine_base(self.allocator.engine, wanted, &base, &size, &failure)
        self.allocator.leave(ok, &failure)
        return base, size

    def cache_info(self, largest: int = 0) -> int:
        """Return the size of the largest free block, or `largest` if that is larger.

        With 0, the device's free memory takes its place, which calls the device. Examines the largest block of every
        pool and stream. Raises DeviceError.
        """
        cdef bytes_t found
        if read_byte_count(largest) == 0:
            largest = self.allocator.memory_info()[0]
        self.allocator.enter()
        found = largest_free_block(self.allocator.engine)
        engine_leave(self.allocator.engine)
        return max(largest, found)

    def expandable_ranges(self) -> tuple[int, int]:
        """Return (bytes, number) of the address ranges reserved for expandable segments."""
        cdef Range* range_
        cdef bytes_t size = 0
        cdef size_t count = 0
        self.allocator.enter()
        range_ = self.allocator.engine.first_range
        while range_ != NULL:
            if range_.page != 0:
                size += range_.size
                count += 1
            range_ = range_.next
        engine_leave(self.allocator.engine)
        return size, count

    def expandable_segment_sizes(self) -> list[tuple[int, bool, int]]:
        """Return (stream, is_small, mapped bytes) of each expandable segment of a stream other than 0."""
        cdef Range* range_
        cdef list sizes = []
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            range_ = self.allocator.engine.first_range
            while range_ != NULL:
                if range_.page != 0 and range_.free_list.stream.handle != 0:
                    is_small = range_.free_list.half.size_class == SMALL
                    sizes.append((range_.free_list.stream.handle, is_small, range_.mapped))
                range_ = range_.next
        finally:
            self.allocator.leave_making_objects(collects)
        return sizes

    def touch(self, address: Buffer | int, stream: Stream | int | None = None, *, write: bool = True) -> None:
        """Tell the sanitizer that work submitted to `stream` now writes, or only reads, memory at `address`.

        `address` may lie anywhere in a block. `stream` None means the calling thread itself, or the stream whose
        function it runs. Arrays from `array` and similar methods report NumPy's functions by themselves. Without
        `sanitize` this does nothing.
        """
        if self.allocator.sanitizer is not None:
            self.allocator.sanitizer.touched(
                read_place(address), None if stream is None else self.allocator.stream_handle(stream), writes=write)

    def races(self) -> list[Report]:
        """Return what the sanitizer has found so far, each with the stacks of both places; empty without `sanitize`.

        Each finding is also raised as a SanitizerWarning when it is made. The sanitizer checks freed memory when the
        memory leaves quarantine; `close` and a shortage of memory empty the quarantine.
        """
        return [] if self.allocator.sanitizer is None else list(self.allocator.sanitizer.reports)

    # --- for tools and tests ---

    def pending_events(self) -> list[tuple[int, int, int]]:
        """Return (stream, event, block address) of every event that is waited for, in queue order.

        Takes no lock when called from inside the allocator, by a scripted device that is queried about an event.
        """
        cdef list events = []
        cdef bint collects
        if engine_is_inside(self.allocator.engine):
            list_events(self.allocator.engine, events)
            return events
        collects = self.allocator.enter_making_objects()
        try:
            list_events(self.allocator.engine, events)
        finally:
            self.allocator.leave_making_objects(collects)
        return events

    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first invariant that does not hold.

        Checks everything that the allocator knows, under its lock: for tests.
        """
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            check_engine(self.allocator.engine)
        finally:
            self.allocator.leave_making_objects(collects)


cdef int list_events(Engine* engine, list events) except -1:
    """List (stream, event, block address) of every event that is waited for."""
    cdef StreamRecord* stream = engine.first_waiting
    cdef PendingEvent* pending
    while stream != NULL:
        pending = stream.first
        while pending != NULL:
            events.append((stream.handle, pending.event, pending.block.address))
            pending = pending.next
        stream = stream.next_waiting
    return 0
