cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.math cimport round
from libc.stdint cimport uint32_t

from allotment._allocators.base cimport AllocatorBase, amount, device_given
from allotment._allocators.buffer cimport free_buffer
from allotment._allocators.caching.annotations cimport annotate
from allotment._allocators.caching.engine_settings cimport (
    apply_reserves, apply_to_engine, reserves_of, warn_of_plain_segments)
from allotment._allocators.caching.history cimport History
from allotment._allocators.caching.history_file cimport HistoryFile
from allotment._allocators.caching.inspection cimport Inspection
from allotment._allocators.caching.limits cimport Limits
from allotment._allocators.caching.planning cimport plan_requests
from allotment._allocators.caching.pools cimport Pools
from allotment._allocators.caching.copying cimport Ring
from allotment._allocators.caching.sharing cimport Sharing
from allotment._allocators.caching.sleep cimport Sleep
from allotment._allocators.owners cimport Owners
from allotment._allocators.sizes cimport whole_size
from allotment._allocators.upcalls cimport EntryTracker, report
from allotment._core.contract.current cimport CurrentStream, current_enter, current_leave, stream_in_use
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t, thread_t
from allotment._core.edge.outcome cimport failure_error
from allotment._core.edge.walk cimport tenants_sum
from allotment._core.engine cimport (
    engine_add_peer, engine_allocate, engine_allocate_missed, engine_create, engine_destroy, engine_enter, engine_free,
    engine_free_at_once, engine_is_inside, engine_leave, engine_record_stream, engine_retire,
    engine_serve_from_cache, engine_try_enter,
    free_at_once_inline, interpreter_lock_suffices, needs_no_calls, no_thread_can_enter, nobody_is_told,
    serve_from_cache, serve_ordinary)
from allotment._core.mechanism.address_map cimport address_take
from allotment._core.mechanism.frees cimport free_later, free_asking_device, is_freed_at_once
from allotment._core.mechanism.address_lookup cimport AddressLookup, find_address
from allotment._core.model.model cimport (
    FAILED_OUT_OF_MEMORY, NO_FAILURE, Block, Engine, Failure, Placement, Request)
from allotment._core.model.rules cimport Rules, fill_rules
from allotment._core.model.sizes cimport Tuning
from allotment._core.model.tuning cimport fill_tuning
from allotment._core.placement.dense.dense cimport dense_figures, dense_note_streams
from allotment._core.placement.registry cimport placement_check, placement_named
from allotment._core.records.history cimport capture_stack, intern_frames
from allotment._core.records.spool cimport spool_pace
from allotment._core.records.stats cimport stats_by_rules, stats_reset_peak, tally_now
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST, tenant_name
from allotment._core.records.trace cimport trace_track
from allotment._core.tools.arguments cimport SIZE_BITS, read_address, read_arguments, read_block, read_size
from allotment._core.tools.interpreter cimport collect_again, interpreter_ends, stop_collecting
from allotment._core.tools.numbers cimport int_value, is_plain_int
from allotment._core.tools.weak_references cimport clear_weak_references_first
from allotment._devices.streams cimport await_work, has_no_work, stream_of_caller

import threading
from dataclasses import replace
from weakref import ref

from allotment import _logs as logs
from allotment import _settings as config
from allotment._allocators.current import note_allocator
from allotment._devices.streams import Stream
from allotment._rules import rules_of
from allotment.errors import AddressError, DeviceError, OutOfMemoryError, RequestError

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define allotment_has_interpreter_lock() 0
    #else
    #define allotment_has_interpreter_lock() 1
    #endif
    """
    bint has_interpreter_lock "allotment_has_interpreter_lock"() noexcept


@cython.no_gc_clear     # a garbage collection must not clear the device before the memory has returned to it
@cython.final
cdef class Allocator(AllocatorBase):
    """Allocator(device="host", *, settings=None, limit=None, sanitize=False)\n--\n
    A caching allocator over one device.

    `device` is "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1", or a device object (a `Backend` subclass,
    `SimulatedDevice`, ...). `settings` is a settings string or record; the default is the environment variable
    ALLOTMENT_CONF. `limit` is the most that the allocator may reserve, in bytes or as "20GiB". With `sanitize` it
    detects races between streams and misuse of freed memory: see `inspection`.

    Safe to use from several threads. A cache hit keeps the interpreter lock; an operation that calls the device
    releases it. `with allocator:` closes the allocator at the end of the block. When it is closed, or its last
    reference is dropped, its memory returns to the device. Blocks in use stay, and a ResourceWarning reports them.

    Raises SettingsError for invalid settings or settings that ask for another class (`make_allocator` chooses the
    class), RequestError for an unknown device name, and DeviceError.
    """

    def __cinit__(self, *args, **kwargs):
        cdef const Placement* placement
        cdef Tuning tuning
        cdef Rules rules
        cdef Failure failure
        device, settings, limit, sanitize = read_arguments(type(self), args, kwargs).values()
        self.owners = Owners()
        self.recording = set()
        self.reserve_classes = {}
        self.trackers = []
        self.annotations = []
        self.most_annotations = 1
        self.ended_files = []
        self.lent = set()
        self.forgotten_pools = []
        self.callbacks = []
        self.removed_callbacks = []
        self.kept = {}
        self.paused_for = {}
        self.waking = set()
        self.host_copies = {}
        settings = config.from_environment() if settings is None else config.settings_of(settings)
        self.current_settings = self.expect_backend(settings, "native")
        placement = placement_named(settings.placement)
        self.device = device_given(device, settings.shareable)
        placement_check(placement, &self.device.table, self.device.name)
        self.rules = rules_of(settings.compat)
        fill_tuning(&tuning, settings)
        fill_rules(&rules, self.rules)
        with nogil:
            self.engine = engine_create(&self.device.table, &tuning, &rules, placement, &failure)
        if self.engine == NULL:
            raise self.failed(&failure)
        self.profiler = annotate(self.device, self.engine) if settings.nvtx else None
        warn_of_plain_segments(self.device, settings)
        apply_reserves(self, reserves_of(self, settings, self.reserve_classes))
        self.engine.interpreter_guards = has_interpreter_lock() and not tuning.release_lock
        if settings.per_process_memory_fraction < 1.0:
            self.put_fraction(settings.per_process_memory_fraction)
        if limit is not None:
            self.limit = limit
        note_allocator(self)
        if sanitize:
            self.watch()

    @cython.embedsignature(False)    # the class has it
    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
        sanitize: bool = False,
    ):
        pass    # `__cinit__` has read the arguments, so that every object is complete

    def __del__(self):
        # A finalizer, because a deallocator must not call a device that is written in Python.
        cdef bytes_t live
        if self.engine != NULL and self.pointer_holders == 0 and not engine_is_inside(self.engine):
            self.drain()
            live = self.live_bytes()
            self.shut()
            if not self.closed:
                self.warn_of(live)

    cdef int drain(self) except -1:
        if self.sanitizer is not None and not interpreter_ends():    # Python code, whose modules may be gone
            self._empty_quarantine()
            self.sanitizer.close()
        if self.calm is not None and not interpreter_ends():
            self.calm.destroy()
        for thread in list(self.waking):
            if thread is not threading.current_thread():
                thread.join()
        self.host_copies.clear()
        if self.ring is not None:
            (<Ring> self.ring).close()
        return 0

    cdef int shut(self) except -1:
        """Return all memory that is not in use to the device."""
        cdef Engine* engine = self.engine
        if self.pointer_holders != 0:
            raise RequestError(
                f"{self!r} cannot be closed: C code has its entry points, and may call them at any time")
        History(self).end_file()
        self.enter()
        engine.interpreter_guards = False   # sends requests down the slow path, which checks that it is open
        with nogil:
            engine_retire(engine)
        if self.profiler is not None:
            self.profiler.close_engine(engine)
        engine_leave(engine)
        Sleep(self).forget_gone()
        return 0

    cdef bytes_t live_bytes(self) noexcept:
        return <bytes_t> tally_now(&self.engine.stats.allocated_bytes) if self.engine != NULL else 0

    def __dealloc__(self):
        cdef Engine* engine = self.engine
        if engine == NULL or self.pointer_holders != 0:
            return
        trace_track(&engine.trace, NULL, NULL)
        with nogil:
            engine_destroy(engine)

    # --- its parts: see parts.pxd ---

    @property
    def history(self) -> History:
        """History of its memory: recording, trackers, snapshots, leaks."""
        return History(self)

    @property
    def pools(self) -> Pools:
        """Private pools by id, and how requests are routed to them."""
        return Pools(self)

    @property
    def limits(self) -> Limits:
        """Limits of pools, tags and tenants, and the functions called when memory runs out."""
        return Limits(self)

    @property
    def sleep(self) -> Sleep:
        """Paused tags and pools: their memory is returned to the device while their addresses stay."""
        return Sleep(self)

    @property
    def sharing(self) -> Sharing:
        """Blocks that other processes and devices use."""
        return Sharing(self)

    @property
    def inspection(self) -> Inspection:
        """Figures, checks and findings, for tools and tests."""
        return Inspection(self)

    # --- allocating and freeing ---

    # Plain methods: Cython's richer function objects would add a third to the cost of an empty call.

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Return the address of `size` bytes for work on `stream`, a `Stream` or its handle. Size 0 returns 0.

        `size` may also be text such as "1MiB". `stream` is by default the calling thread's current stream (`with
        stream:`, `capture`), else the default stream, 0. Memory is allocated in the order of that stream: work
        submitted to the stream earlier may still use it.

        A cache hit costs little more than the call. A miss calls the device; before it fails, the allocator releases
        its cache. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from several threads.
        """
        cdef Engine* engine = self.engine
        cdef long long wanted = 0
        cdef long long handle = 0
        cdef Block* block
        # The hot path, under the interpreter lock only. Unusual requests take the slow path.
        if (is_plain_int(size) and int_value(size, &wanted) and wanted > 0 and (wanted >> SIZE_BITS) == 0
                and self.level == NEVER and no_thread_can_enter(engine)):
            if stream is None:
                handle = <long long> stream_in_use(engine.table.serial)
            elif not is_plain_int(stream) or not int_value(stream, &handle) or handle < 0:
                return self.allocate(size, stream, 0, 0)
            block = serve_ordinary(engine, wanted, <stream_t> handle, 0)
            if block == NULL:
                return self.allocate_read(wanted, <stream_t> handle, 0, 0)
            if block.address != self.returned_address:
                self.returned = block.address
                self.returned_address = block.address
            return self.returned
        return self.allocate(size, stream, 0, 0)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address: Buffer | int, /) -> None:
        """Free a block. If other streams are recorded for it, it is reused only when they are done.

        A `Buffer` is closed. Freeing 0 does nothing. The memory stays in the cache; `empty_cache` returns it to the
        device. Raises AddressError for an address that is not the start of a live block, BufferError for a buffer that
        arrays or slices use. Safe to call from several threads. From a callback inside the allocator, the free is done
        when the thread leaves the allocator.
        """
        cdef Engine* engine = self.engine
        cdef long long value = 0
        cdef uint32_t context
        cdef Block* block
        if not is_plain_int(address) or not int_value(address, &value) or value < 0:
            if free_buffer(address, self):
                return
            value = <long long> read_address(address)
        if value == 0:
            return
        context = self.stack_now() if self.level >= EVERYTHING else 0
        if interpreter_lock_suffices(engine):
            block = address_take(engine, value)
            if is_freed_at_once(block):
                free_at_once_inline(engine, block, context)
            else:
                self.finish_free_locking(block, value, context)
        else:
            self.free_locking(value, context, NULL)

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        The free then costs an event. Recording the stream of the allocation, or address 0, does nothing. Raises
        AddressError, StreamError. Safe to call from several threads.
        """
        cdef address_t address = read_block(block)
        cdef stream_t handle = self.stream_handle(stream)
        cdef Failure failure
        cdef bint ok
        if address == 0:
            return
        if self.sanitizer is not None:
            self.sanitizer.recorded(address, handle)
        self.enter()
        ok = engine_record_stream(self.engine, address, handle, &failure)
        self.leave(ok, &failure)

    cdef object allocate(self, object size, object stream, thread_t thread, uint32_t tenant):
        cdef long long wanted = 0
        cdef long long handle = 0
        if not is_plain_int(size) or not int_value(size, &wanted) or wanted <= 0 or (wanted >> SIZE_BITS) != 0:
            wanted = <long long> self.checked_size(size)
            if wanted == 0:
                return 0
        if stream is None:
            handle = <long long> stream_in_use(self.engine.table.serial)
        elif not is_plain_int(stream) or not int_value(stream, &handle) or handle < 0:
            handle = <long long> self.stream_handle(stream)
        return self.allocate_read(wanted, <stream_t> handle, thread, tenant)

    cdef object allocate_read(self, bytes_t size, stream_t stream, thread_t thread, uint32_t tenant):
        """Serve a request once its arguments have been read. pre: size > 0"""
        cdef Engine* engine = self.engine
        cdef Request request
        cdef Block* block
        request.size = size
        request.stream = stream
        request.thread = thread
        request.context = tenant | self.request_context() if self.level != NEVER else tenant
        if interpreter_lock_suffices(engine) and needs_no_calls(engine) and not engine.uncached:
            # A hit is served under the interpreter lock only.
            block = serve_from_cache(engine, &request)
            if block != NULL:
                return block.address
            if request.failure.reason == NO_FAILURE:
                return self.allocate_after_miss(&request)
            return self.allocate_after_failure(&request)
        return self.allocate_locking(&request)

    cdef object ready_buffer(self, object size, object stream):
        return self.ready_for(size, stream, 0)

    cdef object ready_for(self, object size, object stream, uint32_t tenant):
        """Return a `ready_buffer` for a tenant."""
        cdef stream_t handle = self.stream_asked(stream)
        given = handle if stream is None else stream
        buffer = self.owned(self.allocate(size, handle, 0, tenant), size, given)
        if size == 0 or has_no_work(self.device, handle):
            return buffer
        own = stream_of_caller(self.device)
        if own is None:
            await_work(self.device, handle)
        elif own != (handle, False) and self.sanitizer is None:     # the sanitizer watches the requested stream
            # The stream may wait for the very function that makes this request, so the function must not wait for the
            # stream.
            buffer.close()
            return self.ready_without_waiting(size, handle, given, tenant)
        return buffer

    cdef object ready_without_waiting(self, object size, stream_t handle, object stream, uint32_t tenant):
        """Return memory of a stream that never has work, recorded for the requested stream."""
        if self.calm is None:
            self.make_calm_stream()
        buffer = self.owned(self.allocate(size, self.calm, 0, tenant), size, stream)
        self.record_stream(buffer, handle)
        return buffer

    cdef int make_calm_stream(self) except -1:
        made = Stream(self.device)
        cdef stream_t handle = made.handle
        self.enter()
        if self.calm is None:       # otherwise another thread has made one meanwhile
            self.engine.calm_stream = handle
            self.calm = made
        engine_leave(self.engine)
        if self.calm is not made:
            made.destroy()
        return 0

    cdef object allocate_after_miss(self, Request* request):
        """Call the device without the interpreter lock. pre: begun under the interpreter lock only"""
        cdef Engine* engine = self.engine
        cdef address_t address
        engine_try_enter(engine)    # succeeds, because no other thread can be inside
        with nogil:
            address = engine_allocate_missed(engine, request)
            engine_leave(engine)
        self.log_retry(request, address != 0)
        if address == 0:
            return self.allocate_after_failure(request)
        return address

    cdef object allocate_locking(self, Request* request):
        """Serve the whole request under the engine's lock."""
        cdef address_t address
        self.require_open()
        if self.sanitizer is not None:
            return self.allocate_watched(request)
        address = self.try_once(request)
        if address == 0:
            return self.allocate_after_failure(request)
        return address

    cdef address_t try_once(self, Request* request) except? 0:
        """Return 0 with the reason in request.failure if it fails."""
        cdef address_t address = self.try_quietly(request)
        self.log_retry(request, address != 0)
        return address

    cdef address_t try_quietly(self, Request* request) except? 0:
        """Variant of `try_once` that logs nothing."""
        cdef Engine* engine = self.engine
        cdef address_t address
        cdef Block* block
        self.enter()
        if nobody_is_told(engine) and needs_no_calls(engine) and not engine.uncached:
            # A hit calls no foreign code, so this thread keeps the interpreter lock: releasing it costs as much as the
            # hit.
            block = engine_serve_from_cache(engine, request)
            if block != NULL or request.failure.reason != NO_FAILURE:
                address = block.address if block != NULL else 0
                engine_leave(engine)
                return address
            with nogil:
                address = engine_allocate_missed(engine, request)
                engine_leave(engine)
            return address
        with nogil:
            address = engine_allocate(engine, request)
            engine_leave(engine)
        return address

    cdef object allocate_after_failure(self, Request* request):
        """Call the out-of-memory handlers and retry as long as they ask for it; then raise."""
        cdef address_t address = 0
        cdef long long given_back = request.given_back
        error = self.failed(&request.failure)
        has_handlers = self.handlers is not None and request.failure.reason == FAILED_OUT_OF_MEMORY
        handling = self.handlers.begin() if has_handlers else None
        if handling is None:
            if given_back >= 0 and self.has_handlers():      # otherwise it is logged already
                logs.gave_back(self.device.name, given_back, False)
            self.raise_out_of_memory(error)
        try:
            while True:
                # Also before the first handler: what the release waited for became free too late for the search.
                address = self.try_quietly(request)
                if address != 0:
                    return address
                given_back = max(given_back, <long long> request.given_back)
                error = self.failed(&request.failure)
                if not isinstance(error, OutOfMemoryError) or not handling.wants_another_try(error.facts):
                    break
        finally:
            self.handlers.end()
        if given_back >= 0:
            logs.gave_back(self.device.name, given_back, False)
        self.raise_out_of_memory(error)

    cdef bytes_t checked_size(self, object given) except? 0:
        """Return the bytes of a size that is not an ordinary int. Raises for a size that no request can have."""
        cdef bytes_t size = 0
        given = whole_size(given)
        if not read_size(given, &size):
            raise OutOfMemoryError(self.too_large_facts(given))
        return size

    cdef int raise_out_of_memory(self, object error) except -1:
        """Raise an error; first call the observers if it is an OutOfMemoryError."""
        if self.forgotten_pools:
            Pools(self).close_forgotten()
        if isinstance(error, OutOfMemoryError) and not error.facts.rejected:
            logs.out_of_memory(error.facts)
            self.tell_observers(error.facts)
        raise error

    cdef int free_owned(self, address_t address, void* buffer) except -1:
        """The same as `free`, for callers in C.

        The code is repeated there: another call would cost a pair from Python 3 ns of 80.
        """
        cdef Engine* engine = self.engine
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef Block* block
        if not interpreter_lock_suffices(engine):
            return self.free_locking(address, context, buffer)
        if buffer != NULL and not self.owners.give_up(address, buffer):
            return 0
        block = address_take(engine, address)
        if not is_freed_at_once(block):
            return self.finish_free_locking(block, address, context)
        engine_free_at_once(engine, block, context)
        return 0

    cdef int free_from_stream(self, address_t address, stream_t stream) except -1:
        """Variant of `free_owned` for a known current stream, which decides where a graph is captured."""
        cdef CurrentStream current
        if self.engine.impure_routes == 0:
            return self.free_owned(address, NULL)
        current_enter(&current, self.engine.table.serial, stream)
        try:
            return self.free_owned(address, NULL)
        finally:
            current_leave(&current)

    cdef int finish_free_locking(self, Block* block, address_t address, uint32_t context) except -1:
        """Finish a free that asks the device, without the interpreter lock. pre: only that lock guards the engine"""
        cdef Engine* engine = self.engine
        cdef Failure failure
        cdef bint ok
        engine_try_enter(engine)    # succeeds, because no other thread can be inside
        with nogil:
            ok = free_asking_device(engine, block, address, context, &failure)
            self.leave(ok, &failure)
        return 0

    cdef int free_locking(self, address_t address, uint32_t context, void* buffer) except -1:
        """Do the whole free under the engine's lock."""
        cdef Engine* engine = self.engine
        cdef Failure failure
        cdef Block* block
        cdef bint ok, at_once
        if not engine_try_enter(engine):
            if engine_is_inside(engine):
                if buffer != NULL and not self.owners.give_up(address, buffer):
                    return 0
                if not free_later(engine, address, &failure):
                    raise self.failed(&failure)
                return 0
            self.wait_outside()
        if buffer != NULL and not self.owners.give_up(address, buffer):
            engine_leave(engine)
            return 0
        if self.sanitizer is not None:
            engine_leave(engine)
            return self.free_into_quarantine(address, context)
        block = address_take(engine, address)
        at_once = is_freed_at_once(block)
        if at_once and nobody_is_told(engine):
            engine_free_at_once(engine, block, context)     # calls no foreign code, so it keeps the interpreter lock
            engine_leave(engine)
        else:
            with nogil:
                ok = True
                if at_once:
                    engine_free_at_once(engine, block, context)
                else:
                    ok = free_asking_device(engine, block, address, context, &failure)
                self.leave(ok, &failure)
        if self.closed:
            self.shut()         # returns blocks that were in use at the close, as they are freed
        return 0

    # --- contexts ---

    cdef uint32_t request_context(self) except? 0xFFFFFFFF:
        """Begin a request while something is recorded: wait for a history file that is behind; return the stack."""
        cdef HistoryFile file = self.present_file()
        if file is not None and not engine_is_inside(self.engine):
            while not spool_pace(&file.spool):
                PyErr_CheckSignals()
        return self.stack_now() if self.level >= STATE else 0

    @cython.critical_section
    cdef HistoryFile present_file(self):
        return self.file

    @cython.critical_section
    cdef object present_recorder(self):
        return self.recorder

    @cython.critical_section
    cdef list present_annotations(self):
        return self.annotations

    cdef uint32_t stack_now(self) except? 0xFFFFFFFF:
        if self.gather != NULL:
            return self.gather()
        return capture_stack() if self.recorder is None else self.recorded_stack()

    cdef uint32_t recorded_stack(self) except? 0xFFFFFFFF:
        thread = PyThread_get_thread_ident()
        if thread in self.recording:
            return 0            # the recorder itself makes this request
        recorder = self.present_recorder()
        if recorder is None:
            return capture_stack()
        self.recording.add(thread)
        try:
            return intern_frames(recorder())
        except Exception as error:
            report(error, recorder)
            return 0
        finally:
            self.recording.discard(thread)

    # --- the lock rule: see the header ---

    cdef int enter(self) except -1:
        cdef Engine* engine = self.engine
        if self.forgotten_pools and not engine_is_inside(engine):
            Pools(self).close_forgotten()
        if engine_try_enter(engine):
            return 0
        if engine_is_inside(engine):
            raise RequestError(
                f"{self!r} was called from inside itself; a tracker, a filter and its device may only free")
        self.wait_outside()
        return 0

    cdef void wait_outside(self) noexcept:
        """Enter the engine, releasing the interpreter lock while waiting."""
        cdef Engine* engine = self.engine
        if has_interpreter_lock():
            engine.outside += 1
        with nogil:
            engine_enter(engine)
        if has_interpreter_lock():
            engine.outside -= 1

    cdef bint enter_making_objects(self) except -1:
        self.enter()
        return stop_collecting()

    cdef void leave_making_objects(self, bint collects) noexcept:
        collect_again(collects)
        engine_leave(self.engine)

    cdef int leave(self, bint ok, const Failure* failure) except -1 nogil:
        """Leave the engine, and raise the error of an operation that failed in it."""
        engine_leave(self.engine)
        if not ok:
            with gil:
                raise self.failed(failure)
        return 0

    cdef object failed(self, const Failure* failure):
        error = failure_error(self.device, failure)
        if isinstance(error, OutOfMemoryError) and error.facts.range_bytes is not None:
            name = self.reserve_classes.get(error.facts.stream, "")
            if name:
                with_class = OutOfMemoryError(replace(error.facts, range_class=name))
                with_class.__cause__ = error.__cause__
                return with_class
        if self.kept and isinstance(error, DeviceError):
            error.add_note(f"paused on {self.device.name} at this time: {sorted(map(str, self.paused()))}; work that "
                           "touches such memory makes the device fail")
        return error

    cdef int log_retry(self, const Request* request, bint served) except -1:
        if request.given_back >= 0 and (served or not self.has_handlers()):
            logs.gave_back(self.device.name, request.given_back, served)
        return 0

    cdef bint has_handlers(self) except -1:
        return self.handlers is not None and self.handlers.has_handlers

    # --- limits and settings ---

    cdef bint find_limit(self, bytes_t* most) noexcept:
        if self.engine == NULL:
            return False
        most[0] = self.engine.limit
        return self.engine.limited

    cdef int put_limit(self, bint limited, bytes_t most) except -1:
        self.enter()
        self.engine.limited = limited
        self.engine.limit = most
        engine_leave(self.engine)
        return 0

    cdef bytes_t total_bytes(self) noexcept:
        return self.engine.total_memory

    cdef bytes_t limit_of(self, double part) except? 0:
        cdef double most = part * <double> self.known_total()
        return <bytes_t> (round(most) if self.engine.rules.limit_is_rounded else most)

    cdef int apply_settings(self, object settings) except -1:
        apply_to_engine(self, settings)
        cdef History history = History(self)
        for tracker in history.attached():
            if isinstance(tracker, EntryTracker):
                (<EntryTracker> tracker).rules = self.rules
        return 0

    # --- the sanitizer ---

    cdef int watch(self) except -1:
        """Watch for races from now on."""
        from allotment._allocators.caching.sanitizer.watch import Sanitizer

        cdef bint writes = self.is_readable() and hasattr(self.device, "submit")
        self.engine.interpreter_guards = False
        self.sanitizer = Sanitizer(self, writes_memory=writes)
        this = ref(self)

        def release(facts):
            allocator = this()
            return allocator is not None and allocator._empty_quarantine()

        Limits(self).on_out_of_memory(release)
        return 0

    cdef object allocate_watched(self, Request* request):
        """Serve a request with a redzone behind the block."""
        cdef bytes_t size = request.size
        request.size += <bytes_t> self.sanitizer.redzone
        address = self.try_once(request)
        if address == 0:
            address = self.allocate_after_failure(request)
        self.sanitizer.allocated(address, size, request.stream)
        return address

    cdef int free_into_quarantine(self, address_t address, uint32_t context) except -1:
        """Put a block into quarantine, from which other blocks may leave."""
        leaving = self.sanitizer.freed(address)
        if leaving is None:
            raise AddressError(
                f"invalid device pointer: {address:#x} is in no block in use on {self.device.name}; it has been freed",
                address)
        return self.free_quarantined(leaving)

    cdef int free_quarantined(self, list addresses) except -1:
        cdef Failure failure
        cdef address_t leaving
        cdef bint ok
        for address in addresses:
            leaving = address
            self.enter()
            with nogil:
                ok = engine_free(self.engine, leaving, 0, &failure)
                self.leave(ok, &failure)
        return 0

    def _empty_quarantine(self) -> bool:
        """Free everything that the sanitizer has kept back; return whether there was anything."""
        cdef list kept = self.sanitizer.emptied()
        self.free_quarantined(kept)
        return len(kept) > 0

    @property
    def _sanitizer(self) -> Sanitizer | None:
        return self.sanitizer

    # --- figures ---

    cdef str figures(self):
        if self.engine == NULL:
            return "not made"
        # Read without the lock: figures of one moment, which another thread may be changing.
        live = tally_now(&self.engine.stats.allocated_bytes)
        reserved = tally_now(&self.engine.stats.reserved_bytes)
        return f"{amount(live)} live, {amount(reserved)} reserved"

    cdef dict counters(self):
        cdef bint collects = self.enter_making_objects()
        try:
            nested = stats_by_rules(&self.engine.stats, self.rules)
            dense = dense_figures(self.engine)
        finally:
            self.leave_making_objects(collects)
        return nested if dense is None else {**nested, "dense": dense}

    def _note_streams(self, last: bool) -> None:
        """Say whether the streams that a caller of `malloc` names live as long as this allocator.

        Dense placement shares memory between streams only if all callers say so, where the device does not notice the
        use of a destroyed stream.
        """
        cdef bint they_last = last
        self.enter()
        dense_note_streams(self.engine, they_last)
        engine_leave(self.engine)

    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values. Safe to call from several threads."""
        self.enter()
        stats_reset_peak(&self.engine.stats)
        engine_leave(self.engine)

    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *:
        cdef Engine* engine = self.engine
        cdef AddressLookup where
        if interpreter_lock_suffices(engine) or engine_is_inside(engine):
            return find_address(engine, address, start, size)
        self.enter()
        where = find_address(engine, address, start, size)
        engine_leave(engine)
        return where

    def tenants(self) -> dict[str, dict[str, int]]:
        """Return, by tenant name, the "blocks", "allocated_bytes" and "requested_bytes" in use; "" has the rest.

        Visits every block. Does not count memory that was allocated while caching was off. Safe to call from several
        threads.
        """
        cdef bytes_t[TENANTS_MOST][3] sums
        cdef uint32_t who
        self.enter()
        with nogil:
            tenants_sum(self.engine, sums)
            engine_leave(self.engine)
        return {
            tenant_name(who << TENANT_SHIFT) or "": {
                "blocks": sums[who][0], "allocated_bytes": sums[who][1], "requested_bytes": sums[who][2]}
            for who in range(TENANTS_MOST) if sums[who][0] != 0
        }

    def tenant(self, name: str) -> Tenant:
        """Return this allocator for a named user, so that `tenants` and snapshots show whose the blocks are.

        A second call with the same name returns another object for the same tenant. Raises RequestError when there are
        too many names.
        """
        from allotment._allocators.caching.tenants import Tenant

        return Tenant(self, name)

    # --- names of the parts that most programs use ---

    def pool(
        self,
        *,
        use_on_oom: bool = False,
        no_split: bool = False,
        allocator: Any = None,
        placement: str | None = None,
    ) -> Pool:
        """Return a private pool: inside `with pool:`, only its memory serves this thread's requests.

        `use_on_oom` lends its free memory to other requests when memory is out. `no_split` serves requests with whole
        segments. `allocator` provides its segments: an object with allocate(size, stream) and free(address, size,
        stream), or a PluggableAllocator. `placement` names a way to divide its memory that differs from the
        allocator's. Raises SettingsError for an unknown placement.
        """
        from allotment._allocators.caching.pool import Pool

        return Pool(self, use_on_oom=use_on_oom, no_split=no_split, allocator=allocator, placement=placement)

    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Return unused cached memory to the device, from all pools or from one.

        Blocks in use stay. So does all memory of a private pool that is in use (`pool_use_count`), as in PyTorch;
        `Pool.close` releases that. Waits for events of blocks that other streams used, and calls the device for each
        segment. Raises PoolError for a pool that never existed, and DeviceError. Safe to call from several threads.
        """
        Pools(self).empty_cache(pool)

    def trim_to(self, size: int | str) -> int:
        """Release cached memory until at most `size` bytes are reserved; return the number of bytes released.

        `size` is a number of bytes or a text such as "2GiB". Memory in use stays, so more may remain. Waits and raises
        as `empty_cache` does. Safe to call from several threads.
        """
        return Pools(self).trim_to(size)

    def plan(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> Plan:
        """Return what would happen if the calling thread made these requests now, one after the other.

        A request is a size, or a size and a stream; without a stream it is for the current one. The requests run on a
        copy of all that the allocator knows, through the code that would serve them. So the result is exact, and
        nothing changes: no figure, no entry of the history, no state of the device. The rehearsal covers the cache,
        limits, pools and routes, frees whose streams are done, and everything that the allocator tries when memory is
        short, except free-memory callbacks. It assumes that the device provides all the memory that it reports as free.

        Visits every block. Raises SizeError, StreamError; UnsupportedError, with the reason, where a copy cannot
        reproduce it: placement:dense, a pool with its own allocator, a filter that is a function, or a capture.
        """
        return plan_requests(self, requests)

    def would_fit(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> bool:
        """Return whether all of these requests would be served if they were made now. See `plan`."""
        return plan_requests(self, requests).fits

    def set_limit(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """Set how much memory a tag, a pool, a tenant, or (None) the whole allocator may have.

        Each limit is a number of bytes or a text such as "2GiB". None, and an omitted argument, remove that limit. At
        least one argument is required: `hard=None` removes all.

        `hard`: requests that would exceed it raise OutOfMemoryError, whose `facts.limited_by` says whose limit it was.
        For a tag or pool it counts reserved memory, for a tenant memory in use. `soft`: before the reserved memory
        exceeds it, the allocator releases cached memory, which waits for other streams; it refuses nothing. `reserved`:
        other users leave this much available, within the allocator's limit or the device's memory.

        Memory already held stays. Raises RequestError if no limit is given, and for a soft limit of a tenant or memory
        reserved for a tenant, which shares its cache with others; PoolError for a pool that is gone; TypeError for any
        other object. Safe to call from several threads.
        """
        Limits(self).set(tag, hard=hard, soft=soft, reserved=reserved)

    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """Call `step(facts)` before a request fails for lack of memory; its result says whether to retry the request.

        Such handlers run in the order in which they were added, after everything that the allocator does itself (the
        cache is empty then), on the requesting thread and without any lock. A handler may free, pause tags, wait, and
        use the allocator; its own requests do not invoke handlers. One request calls each handler at most `tries`
        times. After that, or when a handler returns False or raises, the next handler runs; after the last one the
        request raises OutOfMemoryError. `sys.unraisablehook` gets the exceptions of handlers. `allotment.relief` has
        handlers that wait, spill and trim.

        Returns a function that removes the handler. Raises TypeError if `step` is not callable, RequestError for less
        than one try. Safe to call from several threads.
        """
        return Limits(self).on_out_of_memory(step, tries=tries)

    def pause(
        self,
        tag: str | Pool | Tenant,
        *,
        keep: str = "host",
        keep_host: bool = False,
        folder: str | PathLike[str] | None = None,
        host_limit: int | str | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
    ) -> int:
        """Return the physical memory of a tag to the device and keep every address; return the number of bytes
        released.

        `keep` says where the contents of blocks in use are meanwhile: "host" copies them to host memory, "file" to a
        file without a name in `folder` (by default the system's folder for temporary files), and `resume` copies them
        back; with "nothing" they are lost. With `keep_host`, the host memory stays for the next pause of the same
        memory, until a pause without it. `host_limit` is the most host memory that the contents may take, in bytes or
        as "20GiB". `progress(done, total)` is called with bytes on the way; with `progress=True`, a terminal shows a
        bar.

        `tag` is the name of a tag, a Pool whose memory is virtual (expandable segments), or a Tenant all of whose
        blocks are in such pools and tags, without blocks of others. Until it is resumed, requests for it raise
        PausedError, its blocks may be freed, and touching them is an error: on the host the process ends, with a
        message that names the tag. Graphs that use the blocks stay as they are.

        Waits for all work of the device. If it fails, the memory is unchanged, or asleep already; then pausing it again
        pauses the rest. Pausing it a second time does nothing. Raises PoolError if nothing was ever allocated in this
        tag; PausedError if another process has a block of it open, a tenant shares its pages with others, a graph is
        being captured, it is being paused or resumed, or it is paused with another `keep`; RequestError if the contents
        need more than `host_limit`, or `folder` is missing, on memory, too full or not writable; UnsupportedError on
        devices without virtual memory; DeviceError; OSError if writing the file fails; MemoryError if the host has no
        room for the contents; and what `progress` raises. Safe to call from several threads.
        """
        return Sleep(self).pause(
            tag, keep=keep, keep_host=keep_host, folder=folder, host_limit=host_limit, progress=progress)

    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | bool | None = None) -> None:
        """Map memory under the paused addresses again, and restore the contents.

        `progress(done, total)` is called with bytes on the way; with `progress=True`, a terminal shows a bar. If
        resuming fails, because other code took the memory meanwhile or a call fails, the memory is asleep as before and
        nothing is lost: try again. If memory is short, the allocator first releases its cache and calls the handlers of
        `on_out_of_memory`. Does nothing for memory that is not paused. Raises OutOfMemoryError, DeviceError, PoolError,
        FormatError if the file with the contents was changed, OSError if it cannot be read, and what `progress` raises.
        Safe to call from several threads.
        """
        Sleep(self).resume(tag, progress=progress)

    def paused(self) -> set[str | PoolId]:
        """Return what is paused: the names of tags, and the ids of pools."""
        return Sleep(self).paused()

    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle:
        """Return a handle with which another process of this user opens the block: `allotment.open_shared(handle)`.

        `block` is an address or a `Buffer`; for a slice, the whole block is shared. Handles of one block are equal. For
        `hold` seconds, or until `SharedHandle.close`, any number of processes can open the handle; after that no
        process can, until the block is shared again. During that time, and while another process has it open, the block
        is not reused, even if it is freed. A process that opens it waits for the work submitted to the block's streams
        before.

        Raises AddressError for an address that is not a live block, UnsupportedError if the device does not share
        memory (host memory does with the settings key `shareable:True`), CaptureError while a stream of the block is
        being captured, and DeviceError. Makes no copy, and calls the device only if the block's streams are busy. Safe
        to call from several threads.
        """
        return Sharing(self).share(block, hold=hold)

    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]:
        """Return (offset, handle) in PyTorch's own form: the block lies `offset` bytes into the memory that the handle
        opens.

        The form is that of the PyTorch version whose rules are in force. Pages always travel as descriptors, never as
        fabric handles, so only processes of this machine can open them; `share` uses the fabric if the machine has one.
        Nothing holds the block for the process that opens the handle: keep it until then.

        Raises AddressError; UnsupportedError for devices that do not share memory, and for blocks of `placement:dense`,
        whose pieces have no common size; DeviceError.
        """
        return Sharing(self).share_torch(block)

    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        *,
        stacks: str = "python",
        max_entries: int | None = None,
        clear_history: bool = False,
        skip_actions: Collection[str] | None = None,
        recorder: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
        file: str | PathLike[str] | None = None,
    ) -> None:
        """Record what happens from now on, for `snapshot`; None stops recording and drops the history.

        `enabled` is "all" for every event, or "state" for only what blocks carry. `context` says what carries the
        Python stack of its cause: blocks ("state"), allocations too ("alloc"), frees too ("all"), or nothing (None).
        `max_entries` is the number of events kept, the newest ones, at least one; None keeps all, which grows as long
        as the program runs. `skip_actions` are events to omit. Each stack costs a walk over the Python frames.

        `recorder` is a function of yours that returns the stack instead, innermost frame first, each with a "name", a
        "filename" and a "line". The thread that allocates or frees calls it before the operation, without any lock. Its
        own requests have no stack, nor does a request for which it raises (`sys.unraisablehook` gets the exception). C
        code that calls the entry points still records Python's stack.

        With a `file`, events go to that file instead of memory, until `record_history` is called again or the allocator
        is closed: a few bytes each, which a separate thread writes. An existing file at that path is replaced. A killed
        program leaves a file that every command reads, up to the last second or so. If the disk is slower than the
        program, requests wait for it. If it fails, the file says what is lost and `sys.unraisablehook` gets the error.
        `max_entries` then has no effect, and `snapshot` shows no history.

        Raises RequestError, TypeError for a recorder that is not callable, OSError for a file that cannot be written.
        """
        History(self).record(
            enabled, context, stacks=stacks, max_entries=max_entries, clear_history=clear_history,
            skip_actions=skip_actions, recorder=recorder, file=file)

    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """Return segments, blocks, history and settings in the form that PyTorch's memory tools read.

        `pool` chooses the segments, as in `segments`; `include_traces=False` omits the history. Everything with the
        same stack shares one list of frames, so treat them as read-only. Creates a dictionary for each block and event;
        `dump_snapshot` does not. Raises PoolError for a pool that never existed. Safe to call from several threads.
        """
        return History(self).snapshot(pool, include_traces)

    # --- for `AllocatorBase` ---

    cdef int reach_peer(self, device_t peer) except -1:
        cdef Failure failure
        cdef bint ok
        AllocatorBase.reach_peer(self, peer)
        self.enter()
        with nogil:
            ok = engine_add_peer(self.engine, peer, &failure)
            self.leave(ok, &failure)
        from allotment._sharing import importer

        importer.reach_peer(self.device, peer)
        return 0

    cdef int require_awake(self, address_t address) except -1:
        return Sleep(self).require_awake(address) if self.kept else 0


clear_weak_references_first(Allocator)
