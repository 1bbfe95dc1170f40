"""The allocator that leaves all caching to the device: `backend:cudaMallocAsync`.

The interpreter lock is let go for every call, since each one asks the device; the records have a lock of their
own (core/device_pool.pxd), which is never held meanwhile.
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memset

from allotment._allocators.device_calls cimport copy_memory, memory_info
from allotment._allocators.stream_ordered.device_pool cimport (
    POOL_DONE, POOL_DONE_LATE, POOL_FULL, POOL_NO_HOST_MEMORY, POOL_NO_SUCH_BLOCK, POOL_OWN_STREAM, POOL_POSTPONED,
    POOL_REFUSED, DevicePool, PoolOutcome, PoolRefusal, pool_catch_up, pool_clear, pool_give, pool_join, pool_open,
    pool_retire, pool_size_of, pool_sum, pool_take, pool_use, routing_begin, routing_end)
from allotment._core.contract.raising cimport device_error, take_cause
from allotment._core.contract.table cimport (
    CAN_CAPTURE, CAN_EVENTS, CAN_STREAM_ORDERED, OK, OUT_OF_MEMORY, Device, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.records.stats cimport Stats, stats_flat, stats_nested
from allotment._core.tools.arguments cimport read_address, read_device_index, read_pool_id, read_stream

import operator
import warnings

from allotment import _settings as config
from allotment import _texts as texts
from allotment._allocators.buffer import Buffer
from allotment._allocators.current import note_allocator
from allotment._devices import open_device
from allotment.errors import (
    AddressError, CaptureError, InvariantError, OutOfMemoryError, OutOfMemoryFacts, PoolError, RequestError,
    SizeError, UnsupportedError)

cdef object ABSURD_SIZE = 1 << 60       # requests from here on are refused unseen
cdef bytes_t NO_LIMIT = ~(<bytes_t> 0)

cdef tuple IGNORED_SETTINGS = (
    "max_split_size", "max_non_split_rounding", "garbage_collection_threshold", "large_segment_size",
    "roundup_power2_divisions", "expandable_segments", "release_lock_on_device_malloc",
    "graph_capture_record_stream_reuse")

# Why an operation of an `Allocator` has no meaning here, and what to use instead.
cdef str UNSEEN = "the blocks are the device's, which does not tell about them: see `stats`, or use backend:native"
cdef str UNDIVIDED = "the device's pool cannot be divided: use backend:native"
cdef str UNASKED = "nobody is asked before memory is out: catch OutOfMemoryError, or use backend:native"
cdef dict REASONS = {
    **dict.fromkeys(("snapshot", "dump_snapshot", "segments", "record_history", "record_annotation",
                     "attach_trace_tracker", "expandable_segment_sizes", "pending_events"), UNSEEN),
    **dict.fromkeys(("pool", "create_or_incref_pool", "close_pool", "pool_use_count", "pool_reserved_bytes",
                     "set_use_on_oom", "set_no_split", "check_pool_live_allocations", "checkpoint_pool",
                     "restore_pool"), UNDIVIDED),
    **dict.fromkeys(("tenant", "tenants"),
                    "the device does not tell who has what: make an allocator for each, or use backend:native"),
    **dict.fromkeys(("attach_out_of_memory_observer", "add_free_memory_callback", "remove_free_memory_callback"),
                    UNASKED),
    "share": "memory of the device's pool has no handle for other processes: use backend:native",
}


cdef object unsupported(str operation):
    reason = REASONS.get(operation, "use backend:native")
    if reason is UNSEEN:
        return UnsupportedError(
            f"Calling {operation} with backend:cudaMallocAsync is not meaningful. Here {reason}", operation=operation)
    return UnsupportedError(f"backend:cudaMallocAsync does not support {operation}; {reason}", operation=operation)


@cython.no_gc_clear     # a collection must not take the device away before the memory went back to it
@cython.final
cdef class AsyncAllocator:
    cdef DevicePool blocks
    cdef readonly Device device
    cdef object current_settings
    cdef bytes_t total
    cdef bint warned_of_postponing
    cdef object __weakref__

    def __cinit__(self, device="host", *, settings=None, limit=None):
        cdef DeviceTable* table
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        settings = config.settings_of(settings or "", config.Settings(backend="cudaMallocAsync"))
        self.device = device if isinstance(device, Device) else open_device(device)
        table = &self.device.table
        if not (table.capabilities & CAN_STREAM_ORDERED and table.capabilities & CAN_EVENTS
                and table.stream_create != NULL):
            raise UnsupportedError(
                f"{self.device.name} has no stream-ordered pool of its own, or no streams: use backend:native",
                operation="ordered_allocate")
        self.current_settings = settings
        warn_of_ignored(settings)
        with nogil:
            outcome = pool_open(&self.blocks, table, &refusal)
        self.check(outcome, &refusal)
        if table.memory_info != NULL:
            _, self.total = self.memory_info()
        if settings.per_process_memory_fraction < 1.0:
            self.memory_fraction = settings.per_process_memory_fraction
        if limit is not None:
            self.limit = limit
        note_allocator(self)

    def __del__(self):
        # A finalizer, because a deallocator may not call a device that is written in Python.
        with nogil:
            pool_retire(&self.blocks)

    def __dealloc__(self):
        with nogil:
            pool_clear(&self.blocks)

    def __repr__(self):
        return f"<AsyncAllocator on {self.device.name}>"

    def __getattr__(self, name):
        from allotment._allocators.caching.allocator import Allocator

        if name.startswith("_") or not hasattr(Allocator, name):
            raise AttributeError(f"'AsyncAllocator' object has no attribute {name!r}")

        def refuse(*args, **kwargs):
            raise unsupported(name)

        return refuse

    @property
    def name(self):
        return "cudaMallocAsync"

    @property
    def initialized(self):
        return True

    cdef int check(self, PoolOutcome outcome, const PoolRefusal* refusal) except -1:
        if outcome == POOL_REFUSED:
            raise device_error(&self.device.table, refusal.status, (<bytes> refusal.operation).decode())
        if outcome == POOL_NO_HOST_MEMORY:
            raise MemoryError("the host has no memory for the allocator's own records")
        return 0

    cdef int check_status(self, status_t status, str operation) except -1:
        if status != OK:
            raise device_error(&self.device.table, status, operation)
        return 0

    cdef int require_open(self) except -1:
        """A collection that takes an allocator may yet run others' finalizers, which know it."""
        if self.blocks.device == NULL:
            raise RequestError("this allocator is gone: it has given everything back")
        return 0

    # --- allocating and freeing ---

    def malloc(self, size, stream=0):
        cdef bytes_t wanted = self.wanted_bytes(size)
        cdef stream_t handle = read_stream(stream, self.device)
        cdef address_t address = 0
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        if wanted == 0:
            return 0
        self.require_open()
        with nogil:
            outcome = pool_take(&self.blocks, wanted, handle, &address, &refusal)
        if outcome == POOL_FULL:
            raise self.out_of_memory(wanted, handle)
        self.check(outcome, &refusal)
        return address

    cdef bytes_t wanted_bytes(self, object given) except? 0:
        size = operator.index(given)
        if size < 0:
            raise SizeError(f"a request cannot have {size} bytes", size)
        if size >= ABSURD_SIZE:
            raise OutOfMemoryError(self.facts(size, 0, 0, 0, self.total, True))
        return size

    cdef object out_of_memory(self, bytes_t wanted, stream_t stream):
        cdef DeviceTable* table = &self.device.table
        cdef bytes_t free_bytes = 0, total = self.total, used = 0, used_high = 0, reserved = 0, reserved_high = 0
        cause = take_cause(table, OUT_OF_MEMORY)
        with nogil:
            if table.memory_info != NULL:
                table.memory_info(table.self, &free_bytes, &total)
            table.ordered_usage(table.self, &used, &used_high, &reserved, &reserved_high)
        error = OutOfMemoryError(self.facts(wanted, stream, reserved, free_bytes, total, False))
        error.__cause__ = cause
        return error

    cdef object facts(self, object wanted, stream_t stream, bytes_t reserved, bytes_t device_free, bytes_t device_total,
                      bint absurd):
        return OutOfMemoryFacts(
            device=self.device.name, device_index=self.device.table.device, requested=wanted, rounded=wanted,
            segment_size=wanted, device_free=device_free, device_total=device_total, limit=self.limit,
            allocated=self.blocks.used, reserved=reserved, private_free=0, largest_free=0, stream=stream,
            absurd=absurd, device_pool=True)

    def free(self, address, /):
        cdef address_t given = read_address(address)
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        if given == 0 or self.blocks.device == NULL:
            return                      # with the allocator itself everything has gone back
        with nogil:
            outcome = pool_give(&self.blocks, given, &refusal)
        if outcome == POOL_NO_SUCH_BLOCK:
            raise self.unknown(given)
        self.check(outcome, &refusal)
        if outcome == POOL_POSTPONED and not self.warned_of_postponing:
            self.warned_of_postponing = True
            warnings.warn(
                "memory that was allocated before a graph capture is freed during it; that has to wait until the "
                "capture is over, and is not mentioned again")
        elif outcome == POOL_DONE_LATE:
            warnings.warn(
                f"memory at {given:#x}, which a graph allocated, is freed outside of its capture; unless the graph is "
                "done with it for good, its next replay uses memory that is somebody else's")

    cdef object unknown(self, address_t address):
        return AddressError(
            f"ptr not found in ptr_info: {address:#x} is not the start of a block in use on {self.device.name}; "
            "it was never allocated here, lies inside a block, or has been freed", address)

    def empty(self, size, stream=0):
        return Buffer(self, self.malloc(size, stream), size, stream)

    def record_stream(self, block, stream):
        cdef address_t address = read_address(getattr(block, "address", block))
        cdef stream_t handle = read_stream(stream, self.device)
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

    def empty_cache(self, pool=(0, 0)):
        cdef DeviceTable* table = &self.device.table
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome
        cdef uint64_t first, second
        cdef status_t synchronized, trimmed = OK
        read_pool_id(pool, &first, &second)
        self.require_open()
        if first != 0 or second != 0:
            return                      # a graph's memory is the graph's own, and goes with it
        with nogil:
            outcome = pool_catch_up(&self.blocks, &refusal)
            synchronized = table.device_synchronize(table.self)
            if synchronized == OK:
                trimmed = table.ordered_trim(table.self, 0)
        self.check_status(synchronized, "device_synchronize")
        self.check_status(trimmed, "ordered_trim")
        self.check(outcome, &refusal)

    # --- figures ---

    def nested_stats(self):
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

    def stats(self):
        return stats_flat(self.nested_stats())

    def reset_peak_stats(self):
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        with nogil:
            status = table.ordered_reset_high(table.self)
        self.check_status(status, "ordered_reset_high")

    def reset_accumulated_stats(self):
        warnings.warn(
            "reset_accumulated_stats has no effect with backend:cudaMallocAsync: the device's pool accumulates nothing")

    def summary(self, abbreviated=False):
        return texts.memory_summary(self.stats(), self.device.name, abbreviated=abbreviated)

    def memory_info(self):
        return memory_info(self.device)

    def base_allocation(self, address):
        cdef address_t wanted = read_address(address)
        cdef bytes_t size = 0
        cdef PoolOutcome outcome
        with nogil:
            outcome = pool_size_of(&self.blocks, wanted, &size)
        if outcome == POOL_NO_SUCH_BLOCK:
            raise self.unknown(wanted)
        return wanted, size

    def cache_info(self, largest=0):
        cdef DeviceTable* table = &self.device.table
        cdef bytes_t guess = self.memory_info()[0]
        cdef bytes_t used = self.blocks.used
        cdef address_t address = 0
        cdef status_t status = OUT_OF_MEMORY
        self.require_open()
        guess = min(guess, self.blocks.limit - min(self.blocks.limit, used))
        with nogil:
            while guess > 0 and status == OUT_OF_MEMORY:
                status = table.ordered_allocate(table.self, guess, self.blocks.unifying, &address)
                if status == OUT_OF_MEMORY:
                    guess //= 2
            if guess > 0 and status == OK:
                status = table.ordered_free(table.self, address, self.blocks.unifying)
        if guess > 0:
            self.check_status(status, "ordered_allocate")
        return max(largest, guess)

    # --- limits and settings ---

    @property
    def limit(self):
        return self.blocks.limit if self.blocks.limit != NO_LIMIT else None

    @limit.setter
    def limit(self, limit):
        self.blocks.limit = NO_LIMIT if limit is None else config.parse_size(limit)

    @property
    def memory_fraction(self):
        return self.blocks.limit / <double> self.total if self.blocks.limit != NO_LIMIT else 1.0

    @memory_fraction.setter
    def memory_fraction(self, fraction):
        cdef double part = fraction
        if not 0.0 <= part <= 1.0:
            raise RequestError(f"a memory fraction lies between 0 and 1, which {fraction} does not")
        if self.total == 0:
            raise UnsupportedError(f"{self.device.name} cannot tell how much memory it has", operation="memory_info")
        self.blocks.limit = <bytes_t> (part * <double> self.total) if part < 1.0 else NO_LIMIT

    @property
    def caching(self):
        return True

    @caching.setter
    def caching(self, on):
        if not on:
            raise unsupported("caching")

    @property
    def settings(self):
        return self.current_settings

    def configure(self, text, *, lenient=False):
        error = None
        if lenient:
            settings, error = config.parse_leniently(text, self.current_settings)
        else:
            settings = config.Settings.parse(text, self.current_settings)
        self.current_settings = settings
        warn_of_ignored(settings)
        if error is not None:
            raise error

    # --- captures ---

    def begin_allocate_to_pool(self, pool, *, stream=None, thread=None, capture=None, accepts=None):
        cdef uint64_t first, second
        cdef bint begun
        read_pool_id(pool, &first, &second)
        if thread is not None:
            raise unsupported("pool")
        if not self.device.table.capabilities & CAN_CAPTURE:
            raise UnsupportedError(f"{self.device.name} cannot capture", operation="capture_begin")
        self.require_open()
        with nogil:
            begun = routing_begin(&self.blocks, first, second)
        if not begun:
            raise CaptureError("Only one capture at a time is allowed in a process.")

    def join_capture(self, stream):
        cdef stream_t handle = read_stream(stream, self.device)
        cdef PoolRefusal refusal
        cdef PoolOutcome outcome = POOL_DONE
        self.require_open()
        if self.device.table.capabilities & CAN_CAPTURE:
            with nogil:
                outcome = pool_join(&self.blocks, handle, &refusal)
        self.check(outcome, &refusal)

    def end_allocate_to_pool(self, pool):
        cdef uint64_t first, second
        cdef PoolRefusal unimportant
        cdef bint ended
        read_pool_id(pool, &first, &second)
        with nogil:
            ended = routing_end(&self.blocks, first, second)
            if ended:
                pool_catch_up(&self.blocks, &unimportant)   # what is refused is tried again by the next request
        if not ended:
            raise PoolError("no requests are being routed to this pool (not currently recording to mempool_id)")

    def release_pool(self, pool):
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)     # and no more: a graph's memory is the graph's own

    # --- other devices ---

    def enable_peer_access(self, peer):
        cdef DeviceTable* table = &self.device.table
        cdef device_t other = read_device_index(operator.index(peer), self.device)
        cdef status_t status
        with nogil:
            status = table.ordered_access(table.self, other)
        self.check_status(status, "ordered_access")

    def copy(self, destination, source, size, stream=0, *, source_device=None):
        copy_memory(self.device, destination, source, size, source_device, read_stream(stream, self.device))

    # --- for tools and tests ---

    def check_invariants(self):
        cdef bytes_t total
        with nogil:
            total = pool_sum(&self.blocks)
        if total != self.blocks.used:
            raise InvariantError("used bytes", f"{self.blocks.used} are counted, the blocks have {total}")
        if self.blocks.under_way != 0:
            raise InvariantError("blocks under way", f"{self.blocks.under_way}, and nobody is at work")


cdef int warn_of_ignored(object settings) except -1:
    defaults = config.Settings()
    named = [name for name in IGNORED_SETTINGS if getattr(settings, name) != getattr(defaults, name)]
    if named:
        warnings.warn(f"backend:cudaMallocAsync ignores {', '.join(named)}: the device does its own caching")
    return 0
