"""The object users hold: one engine on one device, made safe and pleasant for Python.

The interpreter lock and the engine's lock are never waited for in a circle: code that holds the
interpreter lock only *tries* the engine's; if that fails it lets the interpreter go first. A request
that hits the cache keeps the interpreter lock throughout, and as long as nobody can come in without that
(see `is_guarded_already`) needs no other; one that has to ask the device takes the engine's and lets it go.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject, newfunc
from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from allotment._allocators.caching.pool_states cimport arrange_state, state_of_segments
from allotment._allocators.device_calls cimport copy_memory, enable_peer, memory_info
from allotment._allocators.pluggable.allocator cimport PluggableAllocator
from allotment._allocators.upcalls cimport (
    call_filter, call_free_memory, call_raw_alloc, call_raw_delete, call_trackers, drop_reference)
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t, thread_t
from allotment._core.edge.checkpoint cimport AddressList, checkpoint_restore, checkpoint_take, pool_addresses
from allotment._core.edge.invariants cimport check_engine
from allotment._core.edge.outcome cimport failure_error
from allotment._core.edge.sharing cimport SharedHandle, share_block
from allotment._core.edge.snapshot cimport segment_dicts, trace_dicts
from allotment._core.edge.snapshot_pickle cimport write_snapshot
from allotment._core.edge.walk cimport Arrangement, arrangement_clear, walk_segments
from allotment._core.edge.words cimport action_number
from allotment._core.engine cimport (
    asks_nobody, engine_add_peer, engine_allocate, engine_allocate_missed, engine_base, engine_create,
    engine_destroy, engine_empty_cache, engine_end_routing, engine_enter, engine_free, engine_free_at_once,
    engine_is_inside, engine_leave, engine_record_stream, engine_retire, engine_try_enter, is_guarded_already,
    release_block, serve_from_cache)
from allotment._core.mechanism.address_map cimport address_take
from allotment._core.mechanism.frees cimport free_later, free_special, is_freed_at_once
from allotment._core.mechanism.pool cimport (
    pool_create_or_incref, pool_find, pool_release, pool_set_no_split, pool_set_use_on_oom, route_begin)
from allotment._core.mechanism.shortage cimport largest_free_block
from allotment._core.model.model cimport (
    FILTER_ALL, FILTER_CAPTURE, FILTER_FUNCTION, FILTER_STREAM, FILTER_THREAD, NO_FAILURE, Block, Engine, Failure,
    Filter, FreeMemoryCallback, PendingEvent, Placement, Range, RawAllocator, Request, StreamRecord)
from allotment._core.model.sizes cimport Tuning
from allotment._core.model.tuning cimport fill_tuning
from allotment._core.placement.registry cimport placement_named
from allotment._core.records.history cimport capture_stack
from allotment._core.records.stats cimport SMALL, stats_flat, stats_nested, stats_reset_accumulated, stats_reset_peak
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST, tenant_name
from allotment._core.records.trace cimport (
    TraceRecord, trace_clear, trace_copy, trace_listen, trace_track)
from allotment._core.tools.arguments cimport read_address, read_callable, read_identity, read_pool_id, read_stream
from allotment._core.tools.numbers cimport int_value, is_plain_int

import operator
import os
import time

from allotment import _settings as config
from allotment import _texts as texts
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import Pool, PoolState
from allotment._allocators.current import note_allocator
from allotment._allocators.files import replaced
from allotment._core.edge.snapshot import assembled
from allotment._devices import open_device
from allotment.errors import (
    AddressError, AllotmentError, CheckpointError, OutOfMemoryError, OutOfMemoryFacts, PoolError, RequestError,
    SizeError)

cdef object ABSURD_SIZE = 1 << 60

cdef dict CONTEXT_LEVELS = {None: NEVER, "state": STATE, "alloc": ALLOC, "all": EVERYTHING}
cdef size_t NO_END = <size_t> 1 << 62


cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define allotment_has_interpreter_lock() 0
    #else
    #define allotment_has_interpreter_lock() 1
    #endif
    """
    bint has_interpreter_lock "allotment_has_interpreter_lock"() noexcept


# --- the allocator -------------------------------------------------------------------------------------------

@cython.no_gc_clear     # a collection must not take the device away before the memory went back to it
@cython.final
cdef class Allocator:
    def __cinit__(self, device="host", *, settings=None, limit=None):
        cdef const Placement* placement
        cdef Tuning tuning
        cdef Failure failure
        self.observers = []
        self.callbacks = []
        self.trackers = []
        self.annotations = []
        self.most_annotations = 1
        self.forgotten_pools = []
        settings = config.from_environment() if settings is None else config.settings_of(settings)
        placement = placement_named(settings.placement)
        self.device = device if isinstance(device, Device) else open_device(device)
        self.current_settings = settings
        fill_tuning(&tuning, settings)
        with nogil:
            self.engine = engine_create(&self.device.table, &tuning, placement, &failure)
        if self.engine == NULL:
            raise failure_error(self.device, &failure)
        self.engine.interpreter_guards = has_interpreter_lock() and not tuning.release_lock
        if settings.per_process_memory_fraction < 1.0:
            self.memory_fraction = settings.per_process_memory_fraction
        if limit is not None:
            self.limit = limit
        note_allocator(self)

    def __del__(self):
        # A finalizer, because a deallocator may not call a device that is written in Python.
        cdef Engine* engine = self.engine
        if engine != NULL and not self.shared_by_pointer:
            self.enter()
            with nogil:
                engine_retire(engine)
                engine_leave(engine)

    def __dealloc__(self):
        cdef Engine* engine = self.engine
        if engine == NULL or self.shared_by_pointer:
            return
        with nogil:
            trace_track(&engine.trace, NULL, NULL)
            engine_destroy(engine)

    def __repr__(self):
        return f"<Allocator on {self.device.name}>"

    @property
    def initialized(self):
        return True

    # The lock rule: see the top of this file.
    cdef int enter(self) except -1:
        cdef Engine* engine = self.engine
        if self.forgotten_pools and not engine_is_inside(engine):
            self.close_forgotten_pools()
        if engine_try_enter(engine):
            return 0
        if engine_is_inside(engine):
            raise RequestError("the allocator was called from inside itself; a callback may only free")
        self.wait_outside()
        return 0

    cdef void wait_outside(self) noexcept:
        """Enter, letting the interpreter lock go to wait for it."""
        cdef Engine* engine = self.engine
        engine.outside += 1
        with nogil:
            engine_enter(engine)
        engine.outside -= 1

    cdef int leave(self, bint ok, const Failure* failure) except -1 nogil:
        """Leave the engine, and raise what an operation in it failed with."""
        engine_leave(self.engine)
        if not ok:
            with gil:
                raise self.failed(failure)
        return 0

    cdef object failed(self, const Failure* failure):
        return failure_error(self.device, failure)

    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF:
        return read_stream(stream, self.device)

    # --- allocating and freeing ---

    # Plain methods: Cython's richer function objects cost a third of an empty call more.

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def malloc(self, size, stream=0):
        return self.allocate(size, stream, 0, 0)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address, /):
        cdef Engine* engine = self.engine
        cdef long long value = 0
        cdef uint32_t context
        cdef Block* block
        if not is_plain_int(address) or not int_value(address, &value) or value < 0:
            value = checked_address(address)
        if value == 0:
            return
        context = capture_stack() if self.level >= EVERYTHING else 0
        if is_guarded_already(engine):
            block = address_take(engine, value)
            if is_freed_at_once(block):
                release_block(engine, block, context)
            else:
                self.release_special(block, value, context)
        else:
            self.release_inside(value, context)

    def empty(self, size, stream=0):
        return Buffer(self, self.malloc(size, stream), size, stream)

    def record_stream(self, block, stream):
        cdef address_t address = read_address(getattr(block, "address", block))
        cdef stream_t handle = self.stream_handle(stream)
        cdef Failure failure
        cdef bint ok
        if address == 0:
            return
        self.enter()
        ok = engine_record_stream(self.engine, address, handle, &failure)
        self.leave(ok, &failure)

    def empty_cache(self, pool=(0, 0)):
        cdef uint64_t first, second
        cdef uint32_t context = capture_stack() if self.level >= EVERYTHING else 0
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = engine_empty_cache(self.engine, first, second, context, &failure)
            self.leave(ok, &failure)

    cdef object allocate(self, object size, object stream, thread_t thread, uint32_t tenant):
        cdef Engine* engine = self.engine
        cdef Request request
        cdef Block* block
        cdef long long wanted = 0
        cdef long long handle = 0
        if not is_plain_int(size) or not int_value(size, &wanted) or wanted <= 0 or (wanted >> ABSURD_POWER) != 0:
            wanted = self.checked_size(size)
            if wanted == 0:
                return 0
        if not is_plain_int(stream) or not int_value(stream, &handle) or handle < 0:
            handle = <long long> self.stream_handle(stream)
        request.size = wanted
        request.stream = <stream_t> handle
        request.thread = thread
        request.context = tenant | capture_stack() if self.level >= STATE else tenant
        if is_guarded_already(engine) and asks_nobody(engine) and not engine.uncached:
            # The hot path: a hit is served under the interpreter lock alone.
            block = serve_from_cache(engine, &request)
            if block != NULL:
                return block.address
            if request.failure.reason == NO_FAILURE:
                return self.allocate_after_miss(&request)
            self.raise_out_of_memory(self.failed(&request.failure))
        return self.allocate_inside(&request)

    cdef object allocate_after_miss(self, Request* request):
        """Ask the device, without the interpreter. pre: begun under the interpreter lock alone"""
        cdef Engine* engine = self.engine
        cdef address_t address
        engine_try_enter(engine)    # succeeds: nobody else can be inside
        with nogil:
            address = engine_allocate_missed(engine, request)
            engine_leave(engine)
        if address == 0:
            self.raise_out_of_memory(self.failed(&request.failure))
        return address

    cdef object allocate_inside(self, Request* request):
        """A request from beginning to end, under the engine's lock."""
        cdef Engine* engine = self.engine
        cdef address_t address
        self.enter()
        with nogil:
            address = engine_allocate(engine, request)
            engine_leave(engine)
        if address == 0:
            self.raise_out_of_memory(self.failed(&request.failure))
        return address

    cdef long long checked_size(self, object given) except -1:
        """A size that is not an ordinary int: raises for one that no request can have."""
        size = operator.index(given)
        if 0 <= size < ABSURD_SIZE:
            return size
        if size < 0:
            raise SizeError(f"a request cannot have {size} bytes", size)
        raise OutOfMemoryError(OutOfMemoryFacts(
            device=self.device.name, device_index=self.device.table.device, requested=size, rounded=size,
            segment_size=size, device_free=0, device_total=self.engine.total_memory, limit=None, allocated=0,
            reserved=0, private_free=0, largest_free=0, stream=0, absurd=True))

    cdef int raise_out_of_memory(self, object error) except -1:
        """Tell the observers first, if that is what it is."""
        self.close_forgotten_pools()
        if isinstance(error, OutOfMemoryError):
            for observer in self.observers:
                observer(error.facts)
        raise error

    cdef int release_address(self, address_t address) except -1:
        """pre: address != 0"""
        cdef Engine* engine = self.engine
        cdef uint32_t context = capture_stack() if self.level >= EVERYTHING else 0
        cdef Block* block
        if not is_guarded_already(engine):
            return self.release_inside(address, context)
        block = address_take(engine, address)
        if not is_freed_at_once(block):
            return self.release_special(block, address, context)
        engine_free_at_once(engine, block, context)
        return 0

    cdef int release_special(self, Block* block, address_t address, uint32_t context) except -1:
        """Ask the device, without the interpreter. pre: guarded by the interpreter lock alone"""
        cdef Engine* engine = self.engine
        cdef Failure failure
        cdef bint ok
        engine_try_enter(engine)    # succeeds: nobody else can be inside
        with nogil:
            ok = free_special(engine, block, address, context, &failure)
            self.leave(ok, &failure)
        return 0

    cdef int release_inside(self, address_t address, uint32_t context) except -1:
        """A free from beginning to end, under the engine's lock."""
        cdef Engine* engine = self.engine
        cdef Failure failure
        cdef bint ok
        if not engine_try_enter(engine):
            if engine_is_inside(engine):
                if not free_later(engine, address):
                    raise MemoryError("the host has no memory to remember a free")
                return 0
            self.wait_outside()
        with nogil:
            ok = engine_free(engine, address, context, &failure)
            self.leave(ok, &failure)
        return 0

    # --- figures ---

    def nested_stats(self):
        self.enter()
        try:
            return stats_nested(&self.engine.stats)
        finally:
            engine_leave(self.engine)

    def stats(self):
        return stats_flat(self.nested_stats())

    def reset_peak_stats(self):
        self.enter()
        stats_reset_peak(&self.engine.stats)
        engine_leave(self.engine)

    def reset_accumulated_stats(self):
        self.enter()
        stats_reset_accumulated(&self.engine.stats)
        engine_leave(self.engine)

    def summary(self, abbreviated=False):
        return texts.memory_summary(self.stats(), self.device.name, abbreviated=abbreviated)

    def memory_info(self):
        return memory_info(self.device)

    def base_allocation(self, address):
        cdef Failure failure
        cdef address_t base = 0
        cdef bytes_t size = 0
        cdef address_t wanted = read_address(address)
        cdef bint ok
        self.enter()
        ok = engine_base(self.engine, wanted, &base, &size, &failure)
        self.leave(ok, &failure)
        return base, size

    def cache_info(self, largest=0):
        cdef bytes_t found
        if largest == 0:
            largest = self.memory_info()[0]
        self.enter()
        found = largest_free_block(self.engine)
        engine_leave(self.engine)
        return max(largest, found)

    def expandable_segment_sizes(self):
        cdef Range* range_
        cdef list sizes = []
        self.enter()
        range_ = self.engine.first_range
        while range_ != NULL:
            if range_.page != 0 and range_.shelf.stream.handle != 0:
                sizes.append((range_.shelf.stream.handle, range_.shelf.rack.size_class == SMALL, range_.mapped))
            range_ = range_.next
        engine_leave(self.engine)
        return sizes

    def tenant(self, name):
        from allotment._allocators.caching.tenants import Tenant

        return Tenant(self, name)

    def tenants(self):
        cdef bytes_t[TENANTS_MOST][3] sums
        cdef Range* range_
        cdef Block* block
        cdef uint32_t who
        memset(sums, 0, sizeof(sums))
        self.enter()
        with nogil:
            range_ = self.engine.first_range
            while range_ != NULL:
                block = range_.head
                while block != NULL:
                    if block.allocated:
                        who = block.context >> TENANT_SHIFT
                        sums[who][0] += 1
                        sums[who][1] += block.size
                        sums[who][2] += block.requested
                    block = block.next
                range_ = range_.next
            engine_leave(self.engine)
        return {
            tenant_name(who << TENANT_SHIFT) or "": {
                "blocks": sums[who][0], "allocated_bytes": sums[who][1], "requested_bytes": sums[who][2]}
            for who in range(TENANTS_MOST) if sums[who][0] != 0
        }

    # --- limits and settings ---

    @property
    def memory_fraction(self):
        if not self.engine.limited:
            return 1.0
        return <double> self.engine.limit / <double> self.engine.total_memory

    @memory_fraction.setter
    def memory_fraction(self, fraction):
        cdef double part = fraction
        if not 0.0 <= part <= 1.0:
            raise RequestError(f"a memory fraction lies between 0 and 1, which {fraction} does not")
        self.enter()
        self.engine.limited = part < 1.0
        self.engine.limit = <bytes_t> (part * <double> self.engine.total_memory)
        engine_leave(self.engine)

    @property
    def limit(self):
        return self.engine.limit if self.engine.limited else None

    @limit.setter
    def limit(self, limit):
        cdef bytes_t most = 0 if limit is None else config.parse_size(limit)
        self.enter()
        self.engine.limited = limit is not None
        self.engine.limit = most
        engine_leave(self.engine)

    @property
    def caching(self):
        return not self.engine.uncached

    @caching.setter
    def caching(self, on):
        self.engine.uncached = not on

    @property
    def settings(self):
        return self.current_settings

    def configure(self, text, *, lenient=False):
        cdef Tuning tuning
        error = None
        if lenient:
            settings, error = config.parse_leniently(text, self.current_settings)
        else:
            settings = config.Settings.parse(text, self.current_settings)
        fill_tuning(&tuning, settings)
        self.enter()
        self.engine.tuning = tuning
        if tuning.release_lock:
            # From now on threads come back from the device without the interpreter lock.
            self.engine.interpreter_guards = False
        engine_leave(self.engine)
        self.current_settings = settings
        if error is not None:
            raise error

    # --- listening ---

    def add_free_memory_callback(self, callback):
        cdef FreeMemoryCallback* added
        cdef FreeMemoryCallback** link
        read_callable(callback, "a free-memory callback")
        added = <FreeMemoryCallback*> malloc(sizeof(FreeMemoryCallback))
        if added == NULL:
            raise MemoryError("the host has no memory for the allocator's own records")
        added.run = call_free_memory
        added.self = <void*> callback
        added.next = NULL
        self.callbacks.append(callback)
        self.enter()
        link = &self.engine.callbacks
        while link[0] != NULL:
            link = &link[0].next
        link[0] = added
        engine_leave(self.engine)

    def remove_free_memory_callback(self, callback):
        cdef FreeMemoryCallback** link
        cdef FreeMemoryCallback* removed
        if callback not in self.callbacks:
            raise RequestError(f"{callback!r} is not among the free-memory callbacks")
        callback = self.callbacks.pop(self.callbacks.index(callback))
        self.enter()
        link = &self.engine.callbacks
        while link[0].self != <void*> callback:
            link = &link[0].next
        removed = link[0]
        link[0] = removed.next
        engine_leave(self.engine)
        free(removed)

    def attach_out_of_memory_observer(self, observer):
        self.observers.append(read_callable(observer, "an observer"))

    def attach_trace_tracker(self, tracker):
        read_callable(tracker, "a tracker")
        self.enter()
        # The engine points at this list, which lives as long as it does; a new one leaves a running call its own.
        self.trackers.append(tracker)
        trace_track(&self.engine.trace, call_trackers, <void*> self.trackers)
        engine_leave(self.engine)

    def record_history(self, enabled="all", context="all", *, stacks="python", max_entries=None,
                       clear_history=False, skip_actions=None):
        cdef Engine* engine = self.engine
        cdef size_t most = NO_END if max_entries is None else min(max(max_entries, 1), NO_END)
        cdef uint32_t skip = 0
        if enabled not in (None, "state", "all"):
            raise RequestError(f"expected state to be 'state', 'all' or None, not {enabled!r}")
        if context not in CONTEXT_LEVELS:
            raise RequestError(f"expected context to be 'state', 'alloc', 'all' or None, not {context!r}")
        if stacks not in ("python", "all"):
            raise RequestError(f"expected stacks to be 'python' or 'all', not {stacks!r}")
        for name in skip_actions or ():
            if action_number(name) < 0:
                raise RequestError(f"unknown trace action {name!r}")
            skip |= (<uint32_t> 1) << action_number(name)
        if enabled == "state":
            most = 1
        self.enter()
        if enabled is None or clear_history:
            trace_clear(&engine.trace)
            self.annotations.clear()
        engine.trace.skip = skip
        self.level = CONTEXT_LEVELS[context] if enabled is not None else NEVER
        engine.trace.attach_stacks = self.level >= ALLOC
        trace_listen(&engine.trace, enabled is not None, most)
        self.most_annotations = most
        engine_leave(engine)

    def _resize_history_in_place(self):
        """Another `max_entries` leaves entries where they are, as PyTorch does: for comparing with what it recorded."""
        self.engine.trace.in_place = True

    def record_annotation(self, pairs):
        if self.engine.trace.history:
            self.annotations.append({**pairs, "device": self.device.table.device, "time_us": time.time_ns() // 1000})
            del self.annotations[:-self.most_annotations]

    # --- snapshots ---

    def segments(self, pool=(0, 0)):
        cdef Arrangement arrangement
        cdef uint64_t first, second
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = walk_segments(self.engine, first, second, &arrangement)
            engine_leave(self.engine)
        try:
            if not ok:
                raise MemoryError("the host has no memory for a snapshot")
            return segment_dicts(&arrangement, self.device.table.device)
        finally:
            arrangement_clear(&arrangement)

    cdef TraceRecord* copy_history(self, size_t* count) except NULL:
        """The records of the history, oldest first, for the caller to free."""
        cdef TraceRecord* copies
        self.enter()
        count[0] = self.engine.trace.stored
        copies = <TraceRecord*> malloc((count[0] + 1) * sizeof(TraceRecord))
        if copies != NULL:
            trace_copy(&self.engine.trace, copies)
        engine_leave(self.engine)
        if copies == NULL:
            raise MemoryError("the host has no memory for a snapshot")
        return copies

    cdef list history(self):
        """The trace as dictionaries, oldest first."""
        cdef size_t count = 0
        cdef TraceRecord* copies = self.copy_history(&count)
        try:
            return trace_dicts(copies, count)
        finally:
            free(copies)

    def snapshot(self, pool=(0, 0), include_traces=True):
        annotations = [dict(annotation) for annotation in self.annotations]
        traces = self.history() if include_traces else []
        device = self.device.table.device
        return assembled(
            self.segments(pool), {device: traces}, device + 1, self.current_settings.as_pytorch_dict(), annotations)

    def dump_snapshot(self, path):
        cdef size_t count = 0
        cdef TraceRecord* copies
        with replaced(path) as file:
            copies = self.copy_history(&count)
            try:
                write_snapshot(file, self.snapshot(include_traces=False), copies, count)
            finally:
                free(copies)

    # --- private pools ---

    def pool(self, *, use_on_oom=False, no_split=False, allocator=None, placement=None):
        return Pool(self, use_on_oom=use_on_oom, no_split=no_split, allocator=allocator, placement=placement)

    def create_or_incref_pool(self, pool, allocator=None, placement=None):
        cdef const Placement* table = NULL
        cdef uint64_t first, second
        cdef RawAllocator raw
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        if placement is None and allocator is not None:
            placement = "torch"     # the one that can do with segments of somebody else's
        if placement is not None:
            table = placement_named(placement)
        if isinstance(allocator, PluggableAllocator):
            raw = (<PluggableAllocator> allocator).raw_allocator(self.device.table.device)
        else:
            raw.allocate = call_raw_alloc
            raw.free = call_raw_delete
            raw.drop = drop_reference
            raw.self = <void*> allocator
        self.enter()
        ok = pool_create_or_incref(self.engine, first, second, NULL if allocator is None else &raw, table, &failure)
        if ok and allocator is not None:
            Py_INCREF(allocator)
        self.leave(ok, &failure)

    def release_pool(self, pool):
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        ok = pool_release(self.engine, first, second, &failure)
        self.leave(ok, &failure)

    def close_pool(self, pool):
        if engine_is_inside(self.engine):
            # A collection that runs while the engine is at work finds pools that nobody refers to any more.
            self.forgotten_pools.append(pool)
            return
        self.set_use_on_oom(pool, False)
        self.release_pool(pool)
        self.empty_cache(pool)

    cdef int close_forgotten_pools(self) except -1:
        while self.forgotten_pools:
            try:
                self.close_pool(self.forgotten_pools.pop())
            except AllotmentError:
                pass    # it is given up; what the device would not take goes with the cache
        return 0

    cdef EnginePool* find_pool(self, pool) except NULL:
        """pre: inside the engine, which is left again if there is no such pool"""
        cdef EnginePool* found
        cdef uint64_t first = 0, second = 0
        try:
            read_pool_id(pool, &first, &second)
            found = pool_find(self.engine, first, second)
            if found == NULL:
                raise PoolError(f"there is no pool {pool} on {self.device.name}")
            return found
        except BaseException:
            engine_leave(self.engine)
            raise

    def pool_use_count(self, pool):
        self.enter()
        count = self.find_pool(pool).use_count
        engine_leave(self.engine)
        return count

    def pool_reserved_bytes(self, pool):
        self.enter()
        reserved = self.engine.defaults.reserved_bytes if pool == (0, 0) else self.find_pool(pool).reserved_bytes
        engine_leave(self.engine)
        return reserved

    def set_use_on_oom(self, pool, on):
        cdef uint64_t first, second
        cdef bint wanted = on
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        ok = pool_set_use_on_oom(self.engine, first, second, wanted, &failure)
        self.leave(ok, &failure)

    def set_no_split(self, pool):
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        ok = pool_set_no_split(self.engine, first, second, &failure)
        self.leave(ok, &failure)

    def begin_allocate_to_pool(self, pool, *, stream=None, thread=None, capture=None, accepts=None):
        cdef uint64_t first, second
        cdef Filter filter
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        given = [kind for kind in (stream, thread, capture, accepts) if kind is not None]
        if len(given) > 1:
            raise RequestError("a route has one condition: stream, thread, capture or accepts")
        memset(&filter, 0, sizeof(Filter))
        filter.kind = FILTER_ALL
        if stream is not None:
            filter.kind = FILTER_STREAM
            filter.value = self.stream_handle(stream)
        elif thread is not None:
            filter.kind = FILTER_THREAD
            filter.value = read_identity(thread, "thread")
        elif capture is not None:
            filter.kind = FILTER_CAPTURE
            filter.value = read_identity(capture, "capture")
        elif accepts is not None:
            filter.kind = FILTER_FUNCTION
            filter.accepts = call_filter
            filter.drop = drop_reference
            filter.self = <void*> accepts
        self.enter()
        ok = route_begin(self.engine, first, second, filter, &failure)
        if ok and accepts is not None:
            Py_INCREF(accepts)
        self.leave(ok, &failure)

    def end_allocate_to_pool(self, pool):
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = engine_end_routing(self.engine, first, second, &failure)
            self.leave(ok, &failure)

    def check_pool_live_allocations(self, pool, addresses):
        cdef uint64_t first, second
        cdef AddressList found
        cdef Failure failure
        cdef bint ok
        cdef size_t i
        read_pool_id(pool, &first, &second)
        memset(&found, 0, sizeof(AddressList))
        self.enter()
        ok = pool_addresses(self.engine, first, second, &found, &failure)
        engine_leave(self.engine)
        live = {found.addresses[i] for i in range(found.count)}
        free(found.addresses)
        if not ok:
            raise self.failed(&failure)
        return live == set(addresses)

    def checkpoint_pool(self, pool):
        cdef uint64_t first, second
        cdef uint32_t context = capture_stack() if self.level >= EVERYTHING else 0
        cdef Arrangement arrangement
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = checkpoint_take(self.engine, first, second, context, &arrangement, &failure)
            self.leave(ok, &failure)
        try:
            return PoolState(self, (first, second), state_of_segments(&arrangement))
        finally:
            arrangement_clear(&arrangement)

    def restore_pool(self, state):
        cdef Arrangement arrangement
        cdef AddressList freed, created
        cdef uint64_t first, second
        cdef uint32_t context = capture_stack() if self.level >= STATE else 0
        cdef Failure failure
        cdef bint ok
        cdef size_t i
        if not isinstance(state, PoolState):
            raise CheckpointError(f"a pool is restored from a PoolState, not from {type(state).__name__}")
        if state.allocator is not self:
            raise CheckpointError("the state was taken from another allocator's pool")
        first, second = state.pool
        memset(&freed, 0, sizeof(AddressList))
        memset(&created, 0, sizeof(AddressList))
        memset(&arrangement, 0, sizeof(Arrangement))
        try:
            try:
                arrange_state(&arrangement, state.segments)
            except (AttributeError, OverflowError, TypeError) as error:
                raise CheckpointError(f"no pool has had this state: {error}") from None
            self.enter()
            with nogil:
                ok = checkpoint_restore(
                    self.engine, first, second, &arrangement, context, &freed, &created, &failure)
                self.leave(ok, &failure)
            return ([freed.addresses[i] for i in range(freed.count)],
                    [created.addresses[i] for i in range(created.count)])
        finally:
            arrangement_clear(&arrangement)
            free(freed.addresses)
            free(created.addresses)

    # --- peers and sharing ---

    def share(self, address):
        cdef SharedHandle handle
        cdef Failure failure
        cdef address_t wanted = read_address(address)
        cdef long pid = os.getpid()
        cdef bint ok
        self.enter()
        with nogil:
            ok = share_block(self.engine, wanted, pid, &handle, &failure)
            engine_leave(self.engine)
        try:
            if not ok:
                raise self.failed(&failure)
            return handle.offset, PyBytes_FromStringAndSize(<char*> handle.bytes, handle.length)
        finally:
            free(handle.bytes)

    def enable_peer_access(self, peer):
        cdef Failure failure
        cdef bint ok
        cdef device_t other = enable_peer(self.device, peer)
        self.enter()
        with nogil:
            ok = engine_add_peer(self.engine, other, &failure)
            self.leave(ok, &failure)

    def copy(self, destination, source, size, stream=0, *, source_device=None):
        copy_memory(self.device, destination, source, size, source_device, self.stream_handle(stream))

    # --- for tools and tests ---

    def malloc_as(self, size, stream, thread):
        return self.allocate(size, stream, thread, 0)

    def pending_events(self):
        cdef StreamRecord* stream
        cdef PendingEvent* pending
        cdef bint inside = engine_is_inside(self.engine)
        cdef list events = []
        if not inside:
            self.enter()
        stream = self.engine.first_waiting
        while stream != NULL:
            pending = stream.first
            while pending != NULL:
                events.append((stream.handle, pending.event, pending.block.address))
                pending = pending.next
            stream = stream.next_waiting
        if not inside:
            engine_leave(self.engine)
        return events

    def check_invariants(self):
        self.enter()
        try:
            check_engine(self.engine)
        finally:
            engine_leave(self.engine)


cdef long long checked_address(object given) except -1:
    """An address that is not an ordinary int. No device of ours has any in the upper half."""
    address = operator.index(given)
    if not 0 <= address < 1 << 63:
        raise AddressError(f"invalid device pointer: {address} is no address", address)
    return address


# --- which allocator -----------------------------------------------------------------------------------------

# `backend:cudaMallocAsync` asks for another class. That is seen here, in the place of the type's own constructor, so
# that the class of everybody else need not know of it.
cdef extern from *:
    """
    /* A shorter way to the type's own constructor, past the one that is put in its place. */
    #define allotment_forget_vectorcall(type) ((type)->tp_vectorcall = NULL)
    """
    void forget_vectorcall "allotment_forget_vectorcall"(PyTypeObject* type) noexcept

cdef newfunc new_native = (<PyTypeObject*> Allocator).tp_new

cdef object new_allocator(type cls, PyObject* args, PyObject* kwargs):
    cdef dict options = {} if kwargs == NULL else dict(<object> kwargs)
    settings = options.get("settings")
    settings = config.from_environment() if settings is None else config.settings_of(settings)
    options["settings"] = settings
    if settings.backend == "cudaMallocAsync":
        from allotment._allocators.stream_ordered.allocator import AsyncAllocator
        return AsyncAllocator(*<object> args, **options)
    return new_native(cls, args, <PyObject*> options)

(<PyTypeObject*> Allocator).tp_new = <newfunc> new_allocator
forget_vectorcall(<PyTypeObject*> Allocator)
