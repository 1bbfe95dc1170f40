"""The allocator that leaves all caching to the device: `backend:cudaMallocAsync`.

It releases the interpreter lock for every request, since each one calls the device. The records have their own lock
(device_pool.pxd), which no thread holds during such a call.
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memset

from allotment._allocators.base cimport AllocatorBase, amount, device_given
from allotment._allocators.buffer cimport free_buffer
from allotment._allocators.parts cimport BasicInspection, BasicLimits, BasicSharing, Part
from allotment._allocators.sizes cimport whole_size
from allotment._allocators.stream_ordered.device_pool cimport (
    POOL_CLOSED, POOL_DONE, POOL_DONE_LATE, POOL_FULL, POOL_NO_HOST_MEMORY, POOL_NO_SUCH_BLOCK, POOL_OWN_STREAM,
    POOL_POSTPONED, POOL_REFUSED, POOL_TAKEN, DevicePool, PoolOutcome, PoolRefusal, pool_adds_up, pool_catch_up,
    pool_clear, pool_find, pool_give, pool_is_open, pool_join, pool_open, pool_retire, pool_size_of, pool_take,
    pool_use, routing_begin, routing_end)
from allotment._core.contract.raising cimport device_error, take_cause
from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_EVENTS, CAN_STREAM_ORDERED, OK, OUT_OF_MEMORY, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, device_t, stream_t
from allotment._core.mechanism.address_lookup cimport ELSEWHERE, IN_BLOCK, AddressLookup
from allotment._core.records.stats cimport Stats, stats_nested
from allotment._core.tools.arguments cimport (
    read_address, read_arguments, read_block, read_byte_count, read_pool_id, read_size)
from allotment._core.tools.weak_references cimport clear_weak_references_first

import warnings

from allotment import _logs as logs
from allotment import _settings as config
from allotment._allocators.current import note_allocator
from allotment.errors import (
    AddressError, CaptureError, DeviceError, InvariantError, OutOfMemoryError, OutOfMemoryFacts, PoolError,
    RequestError, UnsupportedError)

cdef bytes_t NO_LIMIT = ~(<bytes_t> 0)

cdef tuple IGNORED_SETTINGS = (
    "max_split_size", "max_non_split_rounding", "garbage_collection_threshold", "large_segment_size",
    "roundup_power2_divisions", "expandable_segments", "release_lock_on_device_malloc",
    "graph_capture_record_stream_reuse")


@cython.no_gc_clear     # a garbage collection must not clear the device before the memory has returned to it
@cython.final
cdef class AsyncAllocator(AllocatorBase):
    """AsyncAllocator(device="host", *, settings=None, limit=None)\n--\n
    An allocator that leaves all caching to the device's own stream-ordered pool.

    `make_allocator(device, settings="backend:cudaMallocAsync")` returns one of these. It has those operations of an
    `Allocator` that have a meaning here: no history, no private pools, no tags, because the device does not report its
    blocks. The pool is the device's default one, shared with all other users of it in the process. `limit` is the most
    bytes that may be in use at once through this allocator.

    Safe to use from several threads; every request calls the device, without the interpreter lock. When the last
    reference is dropped, all memory returns to the pool, including memory in use, which a ResourceWarning reports.
    Raises SettingsError, UnsupportedError if the device has no such pool, and DeviceError.
    """

    cdef DevicePool blocks
    cdef bytes_t total
    cdef bint warned_of_postponing

    def __cinit__(self, *args, **kwargs):
        cdef DeviceTable* table
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        device, settings, limit = read_arguments(AsyncAllocator, args, kwargs).values()
        settings = config.settings_of(settings or "", config.Settings(backend="cudaMallocAsync"))
        self.expect_backend(settings, "cudaMallocAsync")
        self.device = device_given(device)
        table = &self.device.table
        if not (table.capabilities & CAN_STREAM_ORDERED and table.capabilities & CAN_EVENTS
                and table.stream_create != NULL):
            raise UnsupportedError(
                f"{self.device.name} has no stream-ordered pool of its own, or no streams: use backend:native",
                operation="ordered_allocate")
        self.apply_settings(settings)
        self.current_settings = settings
        with nogil:
            outcome = pool_open(&self.blocks, table, &refusal)
        self.check(outcome, &refusal)
        if table.memory_info != NULL:
            _, self.total = self.memory_info()
        if settings.per_process_memory_fraction < 1.0:
            self.put_fraction(settings.per_process_memory_fraction)
        if limit is not None:
            self.limit = limit
        note_allocator(self)

    @cython.embedsignature(False)    # the class has it
    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
    ):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __del__(self):
        # A finalizer, because a deallocator must not call a device that is written in Python.
        cdef bytes_t live = self.blocks.used
        self.shut()
        self.warn_of(live)

    cdef int shut(self) except -1:
        with nogil:
            pool_retire(&self.blocks)
        return 0

    cdef bytes_t live_bytes(self) noexcept:
        return self.blocks.used

    def __dealloc__(self):
        with nogil:
            pool_clear(&self.blocks)

    cdef int check(self, PoolOutcome outcome, const PoolRefusal* refusal) except -1:
        if outcome == POOL_REFUSED:
            raise device_error(self.device, refusal.status, (<bytes> refusal.operation).decode())
        if outcome == POOL_NO_HOST_MEMORY:
            raise MemoryError("the host has no memory for the allocator's own records")
        return 0

    cdef int check_status(self, status_t status, str operation) except -1:
        if status != OK:
            raise device_error(self.device, status, operation)
        return 0

    cdef int require_open(self) except -1:
        """Raise if it is closed. A collection that clears an allocator may run other finalizers that still know it."""
        if not pool_is_open(&self.blocks):
            raise RequestError(f"the allocator on {self.device.name} is closed; make another one")
        return 0

    # --- its parts: see `parts` ---

    @property
    def pools(self) -> AsyncPools:
        """Captures: which requests belong to a graph."""
        return AsyncPools(self)

    @property
    def limits(self) -> BasicLimits:
        """How much of the device's memory may be in use through it."""
        return BasicLimits(self)

    @property
    def sharing(self) -> BasicSharing:
        """Other devices that use its memory."""
        return BasicSharing(self)

    @property
    def inspection(self) -> AsyncInspection:
        """Figures and checks, for tools and tests."""
        return AsyncInspection(self)

    # --- allocating and freeing ---

    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Return the address of `size` bytes for work on `stream`, a `Stream` or its handle. Size 0 returns 0.

        `stream` is by default the calling thread's current stream, else the default stream, 0. Every request calls the
        device. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from several threads.
        """
        cdef bytes_t wanted = 0
        cdef stream_t handle
        cdef address_t address = 0
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        size = whole_size(size)
        if not read_size(size, &wanted):
            raise OutOfMemoryError(self.too_large_facts(size))
        handle = self.stream_asked(stream)
        if wanted == 0:
            return 0
        self.require_open()
        with nogil:
            outcome = pool_take(&self.blocks, wanted, handle, &address, &refusal)
        if outcome == POOL_CLOSED:
            self.require_open()
        if outcome == POOL_FULL:
            raise self.out_of_memory(wanted, handle)
        if outcome == POOL_TAKEN:
            raise DeviceError(
                f"{self.device.name}: ordered_allocate returned {address:#x} for {wanted} bytes, where a block in use "
                "is", operation="ordered_allocate")
        self.check(outcome, &refusal)
        return address

    cdef object out_of_memory(self, bytes_t wanted, stream_t stream):
        cdef DeviceTable* table = &self.device.table
        cdef bytes_t free_bytes = 0, total = self.total, used = 0, used_high = 0, reserved = 0, reserved_high = 0
        cause = take_cause(table, OUT_OF_MEMORY)
        with nogil:
            if table.memory_info != NULL:
                table.memory_info(table.self, &free_bytes, &total)
            table.ordered_usage(table.self, &used, &used_high, &reserved, &reserved_high)
        error = OutOfMemoryError(OutOfMemoryFacts(
            device=self.device.name, device_index=table.device, requested=wanted, rounded=wanted, segment_size=wanted,
            device_free=free_bytes, device_total=total, limit=self.limit, allocated=self.blocks.used,
            reserved=reserved, private_free=0, largest_free=0, stream=stream, device_pool=True))
        error.__cause__ = cause
        logs.out_of_memory(error.facts)
        return error

    def free(self, address: Buffer | int, /) -> None:
        """Free a block in stream order: after the work submitted so far to its stream and to those recorded for it.

        A `Buffer` is closed. Freeing 0 does nothing. During a graph capture, memory allocated before it is freed after
        it (with one warning). Raises AddressError for an address that is not the start of a live block, and
        DeviceError. Safe to call from several threads.
        """
        cdef address_t given
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        if free_buffer(address, self):
            return
        given = read_address(address)
        if given == 0 or not pool_is_open(&self.blocks):
            return                      # everything has returned with the allocator itself
        with nogil:
            outcome = pool_give(&self.blocks, given, &refusal)
        if outcome == POOL_NO_SUCH_BLOCK:
            raise self.unknown(given)
        self.check(outcome, &refusal)
        if outcome == POOL_POSTPONED and not self.warned_of_postponing:
            self.warned_of_postponing = True
            warnings.warn(
                "memory that was allocated before a graph capture is freed during it; the free waits until the "
                "capture is over; this warning is not repeated")
        elif outcome == POOL_DONE_LATE:
            warnings.warn(
                f"memory at {given:#x}, which a graph allocated, is freed outside of its capture; unless the graph is "
                "done with it for good, its next replay uses memory that may be another's")

    cdef object unknown(self, address_t address):
        return AddressError(
            f"ptr not found in ptr_info: {address:#x} is not the start of a block in use on {self.device.name}; "
            "it was never allocated here, lies inside a block, or has been freed", address)

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        Warns, and does nothing, for the stream of the allocation. Raises AddressError, StreamError. Safe to call from
        several threads.
        """
        cdef address_t address = read_block(block)
        cdef stream_t handle = self.stream_handle(stream)
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        if address == 0:
            return
        with nogil:
            outcome = pool_use(&self.blocks, address, handle)
        if outcome == POOL_NO_SUCH_BLOCK:
            raise self.unknown(address)
        self.check(outcome, &refusal)
        if outcome == POOL_OWN_STREAM:
            warnings.warn(
                "record_stream was called with the stream that the block was allocated on; this is unnecessary and has "
                "no effect")

    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Wait for the device, then make its pool release everything that is not in use.

        Does nothing for a pool other than (0, 0): the graph owns its memory. Raises DeviceError. Safe to call from
        several threads.
        """
        cdef DeviceTable* table = &self.device.table
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        cdef uint64_t first, second
        cdef status_t synchronized, trimmed = OK
        read_pool_id(pool, &first, &second)
        self.require_open()
        if first != 0 or second != 0:
            return                      # a graph owns its memory, which ends with it
        with nogil:
            outcome = pool_catch_up(&self.blocks, &refusal)
            synchronized = table.device_synchronize(table.self)
            if synchronized == OK:
                trimmed = table.ordered_trim(table.self, 0)
        self.check_status(synchronized, "device_synchronize")
        self.check_status(trimmed, "ordered_trim")
        self.check(outcome, &refusal)

    # --- figures ---

    cdef str figures(self):
        # Only a call to the device could tell what the pool reserves.
        return f"{amount(self.blocks.used)} live, reserved by the device's own pool"

    cdef dict counters(self):
        cdef DeviceTable* table = &self.device.table
        cdef bytes_t used = 0, used_high = 0, reserved = 0, reserved_high = 0
        cdef Stats nothing
        cdef status_t status
        with nogil:
            status = table.ordered_usage(table.self, &used, &used_high, &reserved, &reserved_high)
        self.check_status(status, "ordered_usage")
        memset(&nothing, 0, sizeof(Stats))
        stats = stats_nested(&nothing)
        for metric in ("allocated_bytes", "active_bytes"):
            stats[metric]["all"].update(current=used, peak=used_high)
        stats["reserved_bytes"]["all"].update(current=reserved, peak=reserved_high)
        return stats

    def reset_peak_stats(self) -> None:
        """Reset the pool's peaks to the current values, for all users of the pool. Raises DeviceError."""
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        with nogil:
            status = table.ordered_reset_high(table.self)
        self.check_status(status, "ordered_reset_high")

    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *:
        cdef bint found
        with nogil:
            found = pool_find(&self.blocks, address, start, size)
        return IN_BLOCK if found else ELSEWHERE

    # --- limits and settings ---

    cdef bint find_limit(self, bytes_t* most) noexcept:
        most[0] = self.blocks.limit
        return self.blocks.limit != NO_LIMIT

    cdef int put_limit(self, bint limited, bytes_t most) except -1:
        self.blocks.limit = most if limited else NO_LIMIT
        return 0

    cdef bytes_t total_bytes(self) noexcept:
        return self.total

    cdef int apply_settings(self, object settings) except -1:
        """Apply the settings, most of which only the device could follow."""
        defaults = config.Settings()
        named = [name for name in IGNORED_SETTINGS if getattr(settings, name) != getattr(defaults, name)]
        if named:
            warnings.warn(f"backend:cudaMallocAsync ignores {', '.join(named)}: the device does its own caching")
        return 0

    # --- other devices ---

    cdef int reach_peer(self, device_t peer) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        with nogil:
            status = table.ordered_access(table.self, peer)
        return self.check_status(status, "ordered_access")


clear_weak_references_first(AsyncAllocator)


@cython.final
cdef class AsyncPools(Part):
    """AsyncPools(allocator)\n--\n
    Which requests of an `AsyncAllocator` are a captured graph's: its `pools`. The device keeps the memory apart.
    """

    cdef AsyncAllocator allocator

    def __cinit__(self, AsyncAllocator allocator not None):
        self.allocator = allocator

    def begin_allocate_to_pool(
        self,
        pool: PoolId,
        *,
        stream: int | None = None,
        thread: int | None = None,
        capture: int | None = None,
        accepts: Callable[[int], bool] | None = None,
    ) -> None:
        """Begin a capture: from now on, requests of streams that are being captured belong to the graph.

        The device knows which requests these are, so the conditions are ignored. With `capture`, the device's handle,
        several allocators on one device can take part in the same capture. Raises CaptureError if another capture is in
        progress in this process; UnsupportedError for memory reserved for a thread, or without captures.
        """
        cdef uint64_t first, second
        cdef capture_t handle = capture or 0
        cdef bint begun
        read_pool_id(pool, &first, &second)
        if thread is not None:
            raise UnsupportedError(
                "backend:cudaMallocAsync does not support a private pool for a thread: the device's pool cannot be "
                "divided; use backend:native", operation="pool")
        if not self.allocator.device.table.capabilities & CAN_CAPTURE:
            raise UnsupportedError(
                f"{self.allocator.device.name} does not support graph capture", operation="capture_begin")
        self.allocator.require_open()
        with nogil:
            begun = routing_begin(&self.allocator.blocks, first, second, handle)
        if not begun:
            raise CaptureError(
                "Only one capture at a time is allowed in a process with backend:cudaMallocAsync; "
                "end the other one first")

    def join_capture(self, stream: Stream | int) -> None:
        """Before the capture of `stream` ends, make it wait for every stream on which memory was freed in the capture.

        Raises StreamError, DeviceError.
        """
        cdef stream_t handle = self.allocator.stream_handle(stream)
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome = POOL_DONE
        self.allocator.require_open()
        if self.allocator.device.table.capabilities & CAN_CAPTURE:
            with nogil:
                outcome = pool_join(&self.allocator.blocks, handle, &refusal)
        self.allocator.check(outcome, &refusal)

    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the capture. Frees that it postponed are done now, or with the next call if others still serve it.

        Raises PoolError if it was not begun.
        """
        cdef uint64_t first, second
        cdef PoolRefusal unimportant
        cdef bint ended
        read_pool_id(pool, &first, &second)
        with nogil:
            ended = routing_end(&self.allocator.blocks, first, second)
            if ended:
                # The next request retries what is refused.
                pool_catch_up(&self.allocator.blocks, &unimportant)
        if not ended:
            raise PoolError(
                f"no requests are being routed to pool ({first}, {second}) on {self.allocator.device.name} "
                "(not currently recording to mempool_id)", reason="not_routed")

    def release(self, pool: PoolId) -> None:
        """Do nothing: a graph's memory ends with the graph. Raises PoolError for an invalid pool id."""
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)     # only checks the id: a graph owns its memory

    @property
    def caching(self) -> bool:
        """True: the device caches. Switching it off raises UnsupportedError."""
        return True

    @caching.setter
    def caching(self, on: bool) -> None:
        if not on:
            raise UnsupportedError(
                "backend:cudaMallocAsync does not support switching the cache off; use backend:native",
                operation="caching")


@cython.final
cdef class AsyncInspection(BasicInspection):
    """AsyncInspection(allocator)\n--\n
    Figures and checks of an `AsyncAllocator`: its `inspection`.
    """

    cdef AsyncAllocator allocator

    def __cinit__(self, AsyncAllocator allocator not None):
        self.allocator = allocator

    def reset_accumulated_stats(self) -> None:
        """Warn and do nothing: the device's pool accumulates nothing."""
        warnings.warn(
            "reset_accumulated_stats has no effect with backend:cudaMallocAsync: the device's pool accumulates nothing")

    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """Return (address, size) of a live block, an address or a `Buffer`. Raises AddressError."""
        cdef address_t wanted = read_block(block)
        cdef bytes_t size = 0
        cdef PoolOutcome outcome
        with nogil:
            outcome = pool_size_of(&self.allocator.blocks, wanted, &size)
        if outcome == POOL_NO_SUCH_BLOCK:
            raise self.allocator.unknown(wanted)
        return wanted, size

    def cache_info(self, largest: int = 0) -> int:
        """Return the size of the largest block that could be allocated, or `largest` if that is larger.

        Finds it by requesting all free memory from the device, then half of it, and so on, which is slow. Raises
        DeviceError.
        """
        cdef DeviceTable* table = &self.allocator.device.table
        cdef bytes_t least = read_byte_count(largest)
        cdef bytes_t guess = self.allocator.memory_info()[0]
        cdef bytes_t used = self.allocator.blocks.used
        cdef address_t address = 0
        cdef status_t status = OUT_OF_MEMORY
        self.allocator.require_open()
        guess = min(guess, self.allocator.blocks.limit - min(self.allocator.blocks.limit, used))
        with nogil:
            while guess > 0 and status == OUT_OF_MEMORY:
                status = table.ordered_allocate(table.self, guess, self.allocator.blocks.unifying, &address)
                if status == OUT_OF_MEMORY:
                    guess //= 2
            if guess > 0 and status == OK:
                status = table.ordered_free(table.self, address, self.allocator.blocks.unifying)
        if guess > 0:
            self.allocator.check_status(status, "ordered_allocate")
        return max(least, guess)

    def check_invariants(self) -> None:
        """Raise InvariantError if the records do not add up. For tests."""
        cdef bytes_t used, found
        cdef bint right
        with nogil:
            right = pool_adds_up(&self.allocator.blocks, &used, &found)
        if not right:
            raise InvariantError("used bytes", f"{used} are counted, the blocks have {found}")
