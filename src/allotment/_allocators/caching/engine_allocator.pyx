cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.math cimport round
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._allocators.base cimport AllocatorBase, amount, device_given
from allotment._allocators.caching.annotations cimport annotate
from allotment._allocators.upcalls cimport report
from allotment._core.contract.table cimport CAN_VIRTUAL
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.edge.invariants cimport check_engine
from allotment._core.edge.outcome cimport failure_error
from allotment._core.engine cimport (
    engine_add_peer, engine_base, engine_create, engine_destroy, engine_enter, engine_is_inside, engine_leave,
    engine_reserve_ranges, engine_retire, engine_try_enter, is_guarded_already)
from allotment._core.mechanism.shortage cimport largest_free_block
from allotment._core.mechanism.whereabouts cimport Whereabouts, find_address
from allotment._core.model.model cimport Engine, Failure, PendingEvent, Placement, Range, StreamRecord
from allotment._core.model.rules cimport Rules, fill_rules
from allotment._core.model.sizes cimport Tuning
from allotment._core.model.tuning cimport fill_tuning
from allotment._core.placement.dense.dense cimport dense_figures
from allotment._core.placement.registry cimport placement_check, placement_named
from allotment._core.records.history cimport capture_stack, intern_frames
from allotment._core.records.stats cimport (
    SMALL, stats_by_rules, stats_reset_accumulated, stats_reset_peak, tally_now)
from allotment._core.tools.arguments cimport read_arguments, read_block, read_byte_count
from allotment._core.tools.weak_references cimport clear_weak_references

import warnings
from dataclasses import replace

from allotment import _logs as logs
from allotment import _settings as config
from allotment._rules import rules_of
from allotment.errors import OutOfMemoryError, RequestError, SettingsError


cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define allotment_has_interpreter_lock() 0
    #else
    #define allotment_has_interpreter_lock() 1
    #endif
    """
    bint has_interpreter_lock "allotment_has_interpreter_lock"() noexcept

cdef extern from "Python.h":
    bint PyGC_Enable() noexcept
    bint PyGC_Disable() noexcept


@cython.no_gc_clear
cdef class EngineAllocator(AllocatorBase):
    """EngineAllocator(device="host", *, settings=None, limit=None, sanitize=False)\n--\n
    An allocator over an engine; users hold an `Allocator`.
    """

    def __cinit__(self, *args, **kwargs):
        cdef const Placement* placement
        cdef Tuning tuning
        cdef Rules rules
        cdef Failure failure
        device, settings, limit, _ = read_arguments(type(self), args, kwargs).values()
        self.forgotten_pools = []
        self.recording = set()
        self.reserve_classes = {}
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
        self.warn_of_plain_segments(settings)
        self.apply_reserves(self.reserves_of(settings, self.reserve_classes))
        self.engine.interpreter_guards = has_interpreter_lock() and not tuning.release_lock
        if settings.per_process_memory_fraction < 1.0:
            self.memory_fraction = settings.per_process_memory_fraction
        if limit is not None:
            self.limit = limit

    @cython.embedsignature(False)    # the class has it
    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
        sanitize: bool = False,
    ):
        pass    # `__cinit__` has read them, so that an object is whole as soon as it is there

    def __del__(self):
        # A finalizer, because a deallocator may not call a device that is written in Python.
        cdef bytes_t live
        if self.engine != NULL and self.pointer_holders == 0:
            self.drain()
            live = self.live_bytes()
            self.shut()
            if not self.closed:
                self.warn_of(live)

    cdef int shut(self) except -1:
        """Give back all that is not in use."""
        cdef Engine* engine = self.engine
        if self.pointer_holders != 0:
            raise RequestError(
                f"{self!r} cannot be closed: its entry points were given to C code, which may call them at any time")
        self.enter()
        engine.interpreter_guards = False   # requests come by the long way, where it is asked whether it is open
        with nogil:
            engine_retire(engine)
        if self.profiler is not None:
            self.profiler.close_engine(engine)
        engine_leave(engine)
        return 0

    cdef bytes_t live_bytes(self) noexcept:
        return <bytes_t> tally_now(&self.engine.stats.allocated_bytes) if self.engine != NULL else 0

    def __dealloc__(self):
        cdef Engine* engine = self.engine
        clear_weak_references(self)
        if engine == NULL or self.pointer_holders != 0:
            return
        with nogil:
            engine_destroy(engine)

    # --- contexts ---

    cdef uint32_t stack_now(self) except? 0xFFFFFFFF:
        if self.gather != NULL:
            return self.gather()
        return capture_stack() if self.recorder is None else self.recorded_stack()

    cdef uint32_t recorded_stack(self) except? 0xFFFFFFFF:
        thread = PyThread_get_thread_ident()
        if thread in self.recording:
            return 0            # it is the recorder who asks
        recorder = self.recorder
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
            self.close_forgotten_pools()
        if engine_try_enter(engine):
            return 0
        if engine_is_inside(engine):
            raise RequestError(
                f"{self!r} was called from inside itself; a tracker, a filter and its device may only free")
        self.wait_outside()
        return 0

    cdef void wait_outside(self) noexcept:
        """Enter, letting the interpreter lock go to wait for it."""
        cdef Engine* engine = self.engine
        engine.outside += 1
        with nogil:
            engine_enter(engine)
        engine.outside -= 1

    cdef bint enter_making_objects(self) except -1:
        self.enter()
        return PyGC_Disable()

    cdef void leave_making_objects(self, bint collects) noexcept:
        if collects:
            PyGC_Enable()
        engine_leave(self.engine)

    cdef int leave(self, bint ok, const Failure* failure) except -1 nogil:
        """Leave the engine, and raise what an operation in it failed with."""
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
                told = OutOfMemoryError(replace(error.facts, range_class=name))
                told.__cause__ = error.__cause__
                return told
        return error

    cdef int close_forgotten_pools(self) except -1:
        return 0

    cdef int log_retry(self, const Request* request, bint served) except -1:
        if request.given_back >= 0 and (served or not self.has_say()):
            logs.gave_back(self.device.name, request.given_back, served)
        return 0

    cdef bint has_say(self) except -1:
        return False

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
        cdef Tuning tuning
        cdef Rules rules
        chosen = rules_of(settings.compat)
        fill_tuning(&tuning, settings)
        fill_rules(&rules, chosen)
        reserves = self.reserves_of(settings, self.reserve_classes)
        if not self.current_settings.expandable_segments:
            self.warn_of_plain_segments(settings)   # first: a warning may be an error
        self.enter()
        if chosen is not self.rules and (
                self.engine.first_range != NULL or tally_now(&self.engine.stats.reserved_bytes) > 0):
            engine_leave(self.engine)
            raise SettingsError(
                f"compat can change while nothing is reserved; {self.device.name} has memory placed by the rules of"
                f" {self.rules.version}: free all of it and call empty_cache() first",
                key="compat", value=settings.compat, allowed=self.rules.version)
        tuning.range_bytes = self.engine.tuning.range_bytes
        self.engine.tuning = tuning
        self.engine.rules = rules
        if tuning.release_lock:
            # From now on threads come back from the device without the interpreter lock.
            self.engine.interpreter_guards = False
        engine_leave(self.engine)
        self.rules = chosen
        return self.apply_reserves(reserves)

    cdef int warn_of_plain_segments(self, object settings) except -1:
        """As PyTorch does on platforms without virtual memory: the setting is no error, and has no effect."""
        if settings.expandable_segments and not self.device.table.capabilities & CAN_VIRTUAL:
            logs.plain_segments(self.device.name)
            warnings.warn(
                f"expandable_segments:True has no effect on {self.device.name}, which does not support virtual memory"
                " (range_reserve, map, ...); its segments are plain ones")
        return 0

    cdef list reserves_of(self, object settings, dict classes):
        """(stream, bytes that ranges for it reserve) in bytes of this device; None is every stream without a class."""
        total = self.engine.total_memory
        whole = settings.expandable_segments_reserve
        by_class = dict(settings.expandable_segments_reserve_by_class)
        return [
            (None, 0 if whole is None else whole.bytes_of(total)),
            *[(stream, by_class[name].bytes_of(total) if name in by_class else 0) for stream, name in classes.items()],
        ]

    cdef int apply_reserves(self, list reserves) except -1:
        """Tell the engine what ranges reserve."""
        cdef stream_t handle
        cdef bytes_t size
        cdef Failure failure
        cdef bint ok
        for stream, size in reserves:
            handle = 0 if stream is None else stream
            ok = True
            self.enter()
            if stream is None:
                self.engine.tuning.range_bytes = size
            else:
                ok = engine_reserve_ranges(self.engine, handle, size, &failure)
            self.leave(ok, &failure)
        return 0

    def set_reserve_class(self, stream: Stream | int, name: str) -> None:
        """Put a stream in a class of `expandable_segments_reserve_by_class`; "" takes it out of any.

        It counts for segments that are reserved from now on. Raises TypeError for a name that is not a text.
        """
        if not isinstance(name, str):
            raise TypeError(f"the class of a stream must be a text, not {type(name).__name__}")
        classes = {**self.reserve_classes, self.stream_handle(stream): name}
        self.apply_reserves(self.reserves_of(self.current_settings, classes))
        self.reserve_classes = classes

    @property
    def name(self) -> str:
        """ "native": what PyTorch calls this kind of allocator."""
        return "native"

    @property
    def caching(self) -> bool:
        """Whether requests go through the cache, which they do unless it is switched off.

        Off, every request is a device allocation of its own, and every free a device free; what is cached stays
        cached, and what came from the cache still goes back to it.
        """
        return not self.engine.uncached

    @caching.setter
    def caching(self, on: bool) -> None:
        self.engine.uncached = not on

    # --- figures ---

    cdef str figures(self):
        if self.engine == NULL:
            return "not made"
        # Read without the lock: a moment's figures, which another thread may be changing.
        live = tally_now(&self.engine.stats.allocated_bytes)
        reserved = tally_now(&self.engine.stats.reserved_bytes)
        return f"{amount(live)} live, {amount(reserved)} reserved"

    def nested_stats(self) -> dict[str, Any]:
        """All counters, by metric, size class and kind: stats["allocated_bytes"]["all"]["current"].

        `stats` has them flattened. Takes the allocator's lock for a moment. Safe to call from several threads.
        """
        cdef bint collects = self.enter_making_objects()
        try:
            nested = stats_by_rules(&self.engine.stats, self.rules)
            dense = dense_figures(self.engine)
        finally:
            self.leave_making_objects(collects)
        return nested if dense is None else {**nested, "dense": dense}

    def reset_peak_stats(self) -> None:
        """Let the peaks start anew from what is in use now. Safe to call from several threads."""
        self.enter()
        stats_reset_peak(&self.engine.stats)
        engine_leave(self.engine)

    def reset_accumulated_stats(self) -> None:
        """Let the sums of all allocations and frees start anew from 0. Safe to call from several threads."""
        self.enter()
        stats_reset_accumulated(&self.engine.stats)
        engine_leave(self.engine)

    cdef Whereabouts find_block(self, address_t address, address_t* start, bytes_t* size) except *:
        cdef Engine* engine = self.engine
        cdef Whereabouts where
        if is_guarded_already(engine) or engine_is_inside(engine):
            return find_address(engine, address, start, size)
        self.enter()
        where = find_address(engine, address, start, size)
        engine_leave(engine)
        return where

    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """(base, size) of the plain segment that holds a live block, an address or a `Buffer`.

        Raises AddressError for what is not a live block's start, UnsupportedError for a block of an expandable
        segment.
        """
        cdef Failure failure
        cdef address_t base = 0
        cdef bytes_t size = 0
        cdef address_t wanted = read_block(block)
        cdef bint ok
        self.enter()
        ok = engine_base(self.engine, wanted, &base, &size, &failure)
        self.leave(ok, &failure)
        return base, size

    def cache_info(self, largest: int = 0) -> int:
        """The size of the largest free block, or `largest` if that is more.

        With 0, the device's free memory takes its place, which is a call to the device. Looks at the largest block of
        every pool and stream. Raises DeviceError.
        """
        cdef bytes_t found
        if read_byte_count(largest) == 0:
            largest = self.memory_info()[0]
        self.enter()
        found = largest_free_block(self.engine)
        engine_leave(self.engine)
        return max(largest, found)

    def expandable_ranges(self) -> tuple[int, int]:
        """(bytes, number) of the address ranges that are reserved for expandable segments."""
        cdef Range* range_
        cdef bytes_t size = 0
        cdef size_t count = 0
        self.enter()
        range_ = self.engine.first_range
        while range_ != NULL:
            if range_.page != 0:
                size += range_.size
                count += 1
            range_ = range_.next
        engine_leave(self.engine)
        return size, count

    def expandable_segment_sizes(self) -> list[tuple[int, bool, int]]:
        """(stream, is_small, mapped bytes) of each expandable segment of a stream other than 0."""
        cdef Range* range_
        cdef list sizes = []
        cdef bint collects = self.enter_making_objects()
        try:
            range_ = self.engine.first_range
            while range_ != NULL:
                if range_.page != 0 and range_.shelf.stream.handle != 0:
                    sizes.append((range_.shelf.stream.handle, range_.shelf.rack.size_class == SMALL, range_.mapped))
                range_ = range_.next
        finally:
            self.leave_making_objects(collects)
        return sizes

    # --- other devices ---

    cdef int reach_peer(self, device_t peer) except -1:
        cdef Failure failure
        cdef bint ok
        AllocatorBase.reach_peer(self, peer)
        self.enter()
        with nogil:
            ok = engine_add_peer(self.engine, peer, &failure)
            self.leave(ok, &failure)
        return 0

    # --- for tools and tests ---

    def pending_events(self) -> list[tuple[int, int, int]]:
        """(stream, event, block address) of every event waited for, in queue order.

        Takes no lock when called from inside the allocator, by a scripted device that is asked about an event.
        """
        cdef list events = []
        cdef bint collects
        if engine_is_inside(self.engine):
            list_events(self.engine, events)
            return events
        collects = self.enter_making_objects()
        try:
            list_events(self.engine, events)
        finally:
            self.leave_making_objects(collects)
        return events

    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first rule that does not hold.

        Looks at everything the allocator knows, with its lock held: for tests.
        """
        cdef bint collects = self.enter_making_objects()
        try:
            check_engine(self.engine)
        finally:
            self.leave_making_objects(collects)


cdef int list_events(Engine* engine, list events) except -1:
    """(stream, event, block address) of every event waited for."""
    cdef StreamRecord* stream = engine.first_waiting
    cdef PendingEvent* pending
    while stream != NULL:
        pending = stream.first
        while pending != NULL:
            events.append((stream.handle, pending.event, pending.block.address))
            pending = pending.next
        stream = stream.next_waiting
    return 0
