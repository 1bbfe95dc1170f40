# cython: boundscheck=False, nonecheck=False
# Only C data, validated by the gate and the workload: see records.pxd.
"""The compiled loop of a replay: passes the calls of a workload straight to the engine's C functions.

records.pxd says what a call is, and what its fields mean.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, stream_t
from allotment._core.edge.outcome cimport failure_error
from allotment._core.edge.walk cimport state_of
from allotment._core.engine cimport (
    engine_create, engine_destroy, engine_empty_cache, engine_enter, engine_free, engine_leave, engine_record_stream,
    serve)
from allotment._core.mechanism.address_map cimport address_reserve, block_at
from allotment._core.mechanism.block cimport is_idle, is_plain, is_split
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.mechanism.pool cimport (
    pool_create_or_incref, pool_find, pool_release, route_begin, route_end, route_find, free_list_for)
from allotment._core.mechanism.segment cimport segment_obtain
from allotment._core.mechanism.streams cimport poll_events, stream_for
from allotment._core.model.model cimport (
    FAILED_OUT_OF_MEMORY, FAILED_REJECTED, FILTER_ALL, Block, Engine, Failure, Filter, Placement, Pool, Range, Request)
from allotment._core.model.rules cimport Rules, fill_rules
from allotment._core.model.sizes cimport Tuning, round_size
from allotment._core.model.tuning cimport fill_tuning
from allotment._core.placement.pytorch.expandable cimport grow_in_place, unmap_block
from allotment._core.placement.pytorch.free_index cimport tree_insert
from allotment._core.placement.pytorch.free_lists cimport hand_out, remove_from_free_list
from allotment._core.placement.registry cimport placement_named
from allotment._core.records.stats cimport ALL, SMALL, Stats, stats_reset_accumulated, stats_reset_peak, tally_now
from allotment._core.records.trace cimport ACTION_ALLOC, trace_track
from allotment._core.tools.slab cimport slab_reserve
from allotment.lab.replay.device cimport Place, ReplayDevice, ReplayState, memory_calls
from allotment.lab.replay.journal cimport Journal, journal_clear, journal_hear, journal_note
from allotment.lab.replay.records cimport (
    EMPTY_CACHE, EMPTY_POOL, FREE, FREE_SHARED, HOLE, IDLE, IN_USE, MALLOC, RELEASE_POOL, Call, Layout, MomentBlock,
    Piece)
from allotment.lab.replay.tape cimport Tape, tape_hear, tape_stop

import time

import numpy

from allotment._rules import rules_of
from allotment.lab.replay.driver_costs import CALLS
from allotment.lab.replay.journal import LATE_FREE, SEGMENT_EVENT
from allotment.lab.replay.records import MOMENT_BLOCK

cdef struct Until:
    bint refusal                # ends the run
    bint difference             # likewise
    bint background             # the calls restore the initial state: no event finishes by itself

cdef stream_t OTHER_STREAMS = <stream_t> 1 << 63     # handles that no recorded stream has


def rounded_sizes(settings: Settings, requests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return what each request is rounded to under these settings."""
    cdef Tuning tuning
    cdef const uint64_t[::1] asked = numpy.ascontiguousarray(requests, dtype=numpy.uint64)
    cdef uint64_t[::1] rounded = numpy.zeros(len(requests), dtype=numpy.uint64)
    cdef Py_ssize_t i
    fill_tuning(&tuning, settings)
    for i in range(asked.shape[0]):
        rounded[i] = round_size(&tuning, asked[i])
    return numpy.asarray(rounded)


cdef Block* grow_from_nothing(Engine* engine, Request* request) noexcept nogil:
    """Grow in a new range, although the free list's ranges may have room."""
    cdef Block* others = request.free_list.unmapped
    cdef Block* block
    cdef Block* tail
    request.free_list.unmapped = NULL
    block = grow_in_place(engine, request)
    tail = request.free_list.unmapped       # the only block of the new range
    request.free_list.unmapped = others
    if tail != NULL:
        tree_insert(&request.free_list.unmapped, tail)
    return block


cdef void describe(const Block* block, MomentBlock* out) noexcept nogil:
    """pre: mapped"""
    cdef uint64_t page = block.range.page
    cdef uint64_t offset = block.address - block.range.base
    cdef uint64_t first, end
    out.address = block.address
    out.size = block.size
    out.requested = block.requested if block.allocated else 0
    out.stream = block.free_list.stream.handle
    out.pool_first = block.free_list.half.pool.first
    out.pool_second = block.free_list.half.pool.second
    out.segment = block.range.base
    out.state = state_of(block)
    out.small = block.free_list.half.size_class == SMALL
    out.releasable = 0
    if not is_idle(block):
        return
    if is_plain(block):
        out.releasable = 0 if is_split(block) else block.size
        return
    first = (offset + page - 1) // page
    end = (offset + block.size) // page
    out.releasable = (end - first) * page if end > first else 0


cdef object copied(const void* records, size_t count, object dtype):
    """Return C records as an array."""
    cdef unsigned char[::1] bytes_of
    found = numpy.zeros(count, dtype=dtype)
    if count > 0:
        bytes_of = found.view("u1").reshape(-1)
        memcpy(&bytes_of[0], records, bytes_of.shape[0])
    return found


cdef class Replay:
    """Replay(settings, capacity, block_count, pools, limit=None)\n--\n
    One run of a workload through an engine of its own.
    """
    cdef Engine* engine
    cdef ReplayDevice device
    cdef Tape tape
    cdef Journal* journal               # effects are recorded there; NULL to record nothing
    cdef Journal kept
    cdef object journal_columns         # keeps the memory of its columns alive
    cdef object columns                 # keeps the memory of the tape's columns alive
    cdef object places                  # and of the suggestions
    cdef address_t[::1] addresses       # by block; 0 while it has none
    cdef uint64_t[:, ::1] pools         # ids, by number; number 0 is the default pool
    cdef unsigned char[::1] pool_known  # created, and used by this replay
    cdef uint64_t[:, ::1] samples       # live and reserved bytes
    cdef int64_t sample_stride
    cdef int64_t last_quarter           # its first call
    cdef int64_t calls_before           # device calls before it
    cdef readonly int64_t refused       # requests that ended out of memory
    cdef readonly double seconds
    cdef readonly double cpu_seconds    # CPU time of this thread, however busy the machine is

    def __cinit__(
        self,
        settings: Settings,
        capacity: int,
        block_count: int,
        pools: NDArray[np.uint64],
        limit: int | None = None,
    ):
        cdef const Placement* placement = placement_named(settings.placement)
        cdef Tuning tuning
        cdef Rules rules
        cdef Failure failure
        self.device = ReplayDevice(capacity)
        self.addresses = numpy.zeros(max(block_count, 1), dtype=numpy.uint64)
        self.pools = pools
        self.pool_known = numpy.zeros(len(pools), dtype=numpy.uint8)
        fill_tuning(&tuning, settings)
        tuning.release_lock = False     # the only thread never waits for the device
        fill_rules(&rules, rules_of(settings.compat))
        with nogil:
            self.engine = engine_create(&(<Device> self.device).table, &tuning, &rules, placement, &failure)
        if self.engine == NULL:
            raise failure_error(self.device, &failure)
        self.engine.terse = True
        if limit is not None:
            self.engine.limited = True
            self.engine.limit = limit

    def __dealloc__(self):
        cdef size_t i
        cdef Failure failure
        if self.engine == NULL:
            return
        with nogil:
            trace_track(&self.engine.trace, NULL, NULL)
            for i in range(<size_t> self.addresses.shape[0]):
                if self.addresses[i] != 0:
                    engine_free(self.engine, self.addresses[i], 0, &failure)
            engine_destroy(self.engine)
            journal_clear(&self.kept)

    def follow(
        self,
        action: NDArray[np.uint8],
        address: NDArray[np.uint64],
        size: NDArray[np.uint64],
        stream: NDArray[np.uint64],
    ) -> None:
        """Compare with a recording from now on, and take answers from it. Changes the columns."""
        cdef unsigned char[::1] actions = action
        cdef uint64_t[::1] addresses = address
        cdef uint64_t[::1] sizes = size
        cdef uint64_t[::1] streams = stream
        memset(&self.tape, 0, sizeof(Tape))
        self.columns = (action, address, size, stream)
        if len(action) > 0:
            self.tape.action = &actions[0]
            self.tape.address = &addresses[0]
            self.tape.size = &sizes[0]
            self.tape.stream = &streams[0]
        self.tape.count = len(action)
        self.tape.following = True
        self.device.state.tape = &self.tape
        if self.journal != NULL:
            self.journal.tape = &self.tape
        else:
            trace_track(&self.engine.trace, tape_hear, &self.tape)

    def keep_journal(self) -> None:
        """Record what is done from now on, for `places`, `segment_events` and `late_frees`; see journal.pxd."""
        cdef uint64_t[::1] addresses = numpy.zeros(len(self.addresses), dtype=numpy.uint64)
        cdef uint64_t[::1] sizes = numpy.zeros(len(self.addresses), dtype=numpy.uint64)
        cdef int32_t[::1] placed_by = numpy.full(len(self.addresses), -1, dtype=numpy.int32)
        memset(&self.kept, 0, sizeof(Journal))
        self.journal_columns = (numpy.asarray(addresses), numpy.asarray(sizes), numpy.asarray(placed_by))
        self.journal = &self.kept
        self.journal.engine = self.engine
        self.journal.now = -1
        self.journal.address = &addresses[0]
        self.journal.size = &sizes[0]
        self.journal.placed_by = &placed_by[0]
        self.engine.trace.moment = 1    # nobody reads the entries' times
        trace_track(&self.engine.trace, journal_hear, self.journal)

    @property
    def block_places(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int32]]:
        """Return by block of the workload: address, size and the call that placed it, -1 for one before the history.

        pre: a journal is kept. A block that was never placed has size 0.
        """
        return self.journal_columns

    @property
    def segment_events(self) -> NDArray[np.void]:
        """Return `SEGMENT_EVENT` records in order. pre: a journal is kept"""
        self.check_journal()
        return copied(self.journal.segments, self.journal.segment_count, SEGMENT_EVENT)

    @property
    def late_frees(self) -> NDArray[np.void]:
        """Return `LATE_FREE` records in order. pre: a journal is kept"""
        self.check_journal()
        return copied(self.journal.late, self.journal.late_count, LATE_FREE)

    cdef object check_journal(self):
        if self.journal.incomplete:
            raise MemoryError("the host has no memory to record the replay")

    def suggest(self, places: NDArray[np.uint64]) -> None:
        """Suggest places for segments, in order: pairs of address and size, used as long as possible."""
        cdef const uint64_t[:, ::1] pairs = places
        self.places = places
        self.device.state.suggestion_count = len(places)
        if len(places) > 0:
            self.device.state.suggestions = <const Place*> &pairs[0, 0]

    @property
    def difference(self) -> tuple[int, tuple[int, int, int, int] | None] | None:
        """Return (entry, (action, address, size, stream)) of the first difference; None if there is none."""
        cdef Tape* tape = &self.tape
        if tape.differs:
            return tape.at, (tape.got.action, tape.got.address, tape.got.size, tape.got.stream)
        if tape.at < tape.count:
            return tape.at, None
        return None

    # --- the state at the beginning of a history --------------------------------------------------------------

    def restore(self, layouts: NDArray[np.void], pieces: NDArray[np.void]) -> None:
        """Lay segments out as they were when the recording began."""
        cdef unsigned char[::1] layout_bytes = layouts.view("u1").reshape(-1)
        cdef unsigned char[::1] piece_bytes = pieces.view("u1").reshape(-1)
        cdef Piece* piece
        cdef Failure failure
        cdef bint ok = True
        cdef int64_t i
        if len(layouts) == 0:
            return
        piece = <Piece*> &piece_bytes[0]
        for i in range(len(layouts)):
            with nogil:
                engine_enter(self.engine)
                ok = self.lay_out(&(<Layout*> &layout_bytes[0])[i], piece, &failure)
                engine_leave(self.engine)
            if not ok:
                raise failure_error(self.device, &failure)
            piece += (<Layout*> &layout_bytes[0])[i].pieces

    cdef bint lay_out(self, const Layout* layout, const Piece* pieces, Failure* failure) noexcept nogil:
        """Cut one segment into its pieces from front to back; then free the unused pieces.

        pre: the pieces add up to the segment, or to less than its last page
        """
        cdef Engine* engine = self.engine
        cdef Request request
        cdef Pool* pool
        cdef Block* block
        cdef Block* cut
        cdef address_t address
        cdef bint split
        cdef int32_t i
        memset(&request, 0, sizeof(Request))
        if not self.know_pool(layout.pool, failure):
            return False
        pool = self.pool_of(layout.pool)
        request.size = request.rounded = request.segment = layout.size
        request.stream = layout.stream
        request.expandable = layout.expandable != 0
        request.free_list = free_list_for(engine, &pool.small if layout.small else &pool.large,
                                  stream_for(engine, layout.stream))
        self.device.state.placed = layout.address
        block = grow_from_nothing(engine, &request) if request.expandable else segment_obtain(engine, &request)
        self.device.state.placed = 0
        if block == NULL:
            failure[0] = request.failure
            return False
        if request.expandable:
            pool.malloc_count += 1
        for i in range(layout.pieces):
            if not (slab_reserve(&engine.block_slab, 1) and address_reserve(engine, 1)):
                return host_memory_failed(failure)
            split = pieces[i].size < block.size
            cut = hand_out(engine, block, pieces[i].size, pieces[i].requested, split, 0)
            if pieces[i].kind == IN_USE:
                self.addresses[pieces[i].block] = cut.address
                if self.journal != NULL:
                    journal_note(self.journal, pieces[i].block, cut)
            if split and i + 1 < layout.pieces:
                block = cut.next
                remove_from_free_list(block)
        # Holes first: while everything else is still allocated, nothing beside a hole is released with it.
        address = layout.address
        for i in range(layout.pieces):
            if pieces[i].kind == HOLE:
                cut = block_at(engine, address)
                if not (engine_free(engine, address, 0, failure) and unmap_block(engine, cut, 0, failure)):
                    return False
            address += pieces[i].size
        address = layout.address
        for i in range(layout.pieces):
            if pieces[i].kind == IDLE and not engine_free(engine, address, 0, failure):
                return False
            address += pieces[i].size
        return True

    # --- pools -----------------------------------------------------------------------------------------------

    cdef Pool* pool_of(self, int32_t number) noexcept nogil:
        """pre: known"""
        if number == 0:
            return &self.engine.defaults
        return pool_find(self.engine, self.pools[number, 0], self.pools[number, 1])

    cdef bint know_pool(self, int32_t pool, Failure* failure) noexcept nogil:
        """Create a private pool on first use; the replay stays one of its users until its release is replayed."""
        if pool == 0 or self.pool_known[pool]:
            return True
        if not pool_create_or_incref(self.engine, self.pools[pool, 0], self.pools[pool, 1], NULL, NULL, failure):
            return False
        self.pool_known[pool] = 1
        return True

    cdef bint route_to(self, int32_t pool, Failure* failure) noexcept nogil:
        """Serve requests from a private pool until `end_route`."""
        cdef Filter everyone
        memset(&everyone, 0, sizeof(Filter))
        everyone.kind = FILTER_ALL
        return (self.know_pool(pool, failure)
                and route_begin(self.engine, self.pools[pool, 0], self.pools[pool, 1], everyone, failure))

    cdef void end_route(self, int32_t pool) noexcept nogil:
        cdef Failure failure
        route_end(self.engine, route_find(self.engine, self.pools[pool, 0], self.pools[pool, 1]))
        pool_release(self.engine, self.pools[pool, 0], self.pools[pool, 1], &failure)

    # --- the loop --------------------------------------------------------------------------------------------

    def begin_window(self) -> None:
        """Start counting here: earlier calls only restored the initial state."""
        stats_reset_peak(&self.engine.stats)
        stats_reset_accumulated(&self.engine.stats)
        memset(self.device.state.calls, 0, sizeof(self.device.state.calls))
        self.device.state.microseconds = 0
        self.refused = 0
        self.seconds = self.cpu_seconds = 0.0

    def sample(self, samples: NDArray[np.uint64], stride: int) -> None:
        """Store the largest live and reserved size of every `stride` calls."""
        self.samples = samples
        self.sample_stride = stride

    def run(
        self,
        calls: NDArray[np.void],
        stop_at_refusal: bool = False,
        stop_at_difference: bool = False,
        background: bool = False,
    ) -> bool:
        """Make the calls; return False if one ran out of memory or differed, which stops the loop.

        `background` calls are from before the history: their events do not finish by themselves.
        """
        cdef unsigned char[::1] call_bytes = calls.view("u1").reshape(-1)
        cdef int64_t count = len(calls)
        cdef Until until
        cdef int64_t done = 0
        cdef Failure failure
        if count == 0:
            return True
        memset(&failure, 0, sizeof(Failure))
        self.last_quarter = count * 3 // 4
        until.refusal = stop_at_refusal
        until.difference = stop_at_difference
        until.background = background
        began, began_cpu = time.perf_counter(), time.thread_time()
        with nogil:
            engine_enter(self.engine)
            done = self.make_calls(<const Call*> &call_bytes[0], count, &until, &failure)
            engine_leave(self.engine)
        self.seconds += time.perf_counter() - began
        self.cpu_seconds += time.thread_time() - began_cpu
        if done < count and not (self.tape.differs or failure.reason == FAILED_OUT_OF_MEMORY):
            raise failure_error(self.device, &failure)
        return done == count

    cdef int64_t make_calls(self, const Call* calls, int64_t count, const Until* until,
                            Failure* failure) noexcept nogil:
        """Return the number of calls made: `count`, or the call that stopped it."""
        cdef Engine* engine = self.engine
        cdef ReplayState* device = &self.device.state
        cdef address_t* addresses = &self.addresses[0]
        cdef int64_t stride = self.sample_stride
        cdef const Call* call
        cdef Request request
        cdef Block* block
        cdef int64_t i
        cdef bint ok = True
        memset(&request, 0, sizeof(Request))
        for i in range(count):
            call = &calls[i]
            if self.journal != NULL:
                self.journal.now = -1 if until.background else <int32_t> i
                self.journal.freeing = addresses[call.block] if call.kind == FREE else 0
            if call.kind == MALLOC:
                device.now = -1 if until.background else i
                request.size = call.size
                request.stream = call.stream
                if call.pool == 0:
                    block = serve(engine, &request)
                else:
                    block = self.serve_privately(call.pool, &request)
                if block != NULL:
                    if call.block >= 0:
                        addresses[call.block] = block.address
                        if self.journal != NULL:
                            journal_note(self.journal, call.block, block)
                    else:
                        # Recorded as out of memory, so its lifetime is unknown.
                        engine_free(engine, block.address, 0, failure)
                else:
                    failure[0] = request.failure
                    if failure.reason != FAILED_OUT_OF_MEMORY and failure.reason != FAILED_REJECTED:
                        return i
                    self.refused += 1
                    if until.refusal:
                        return i
            elif call.kind == FREE:
                if addresses[call.block] != 0:
                    ok = engine_free(engine, addresses[call.block], 0, failure)
                    addresses[call.block] = 0
            else:
                device.now = -1 if until.background else i
                ok = self.rare_call(call, failure)
            if not ok or (until.difference and self.tape.differs):
                return i
            if stride > 0:
                self.note(i // stride)
                if i == self.last_quarter:
                    self.calls_before = memory_calls(device)
        return count

    cdef Block* serve_privately(self, int32_t pool, Request* request) noexcept nogil:
        """Allocate from a private pool; from the default one if that pool is closed, which no real recording does."""
        cdef Block* block
        if not self.route_to(pool, &request.failure):
            if self.tape.following:
                tape_stop(&self.tape, ACTION_ALLOC, 0, request.size, request.stream)
            return serve(self.engine, request)
        block = serve(self.engine, request)
        self.end_route(pool)
        return block

    cdef bint rare_call(self, const Call* call, Failure* failure) noexcept nogil:
        cdef Engine* engine = self.engine
        cdef address_t address
        cdef bint ok
        if call.kind == FREE_SHARED:
            address = self.addresses[call.block]
            if address == 0:
                return True
            self.addresses[call.block] = 0
            self.device.state.due = call.due
            ok = (engine_record_stream(engine, address, OTHER_STREAMS + <stream_t> call.stream, failure)
                  and engine_free(engine, address, 0, failure))
            self.device.state.due = 0       # events that no recording contains finish at once
            return ok
        if call.kind == EMPTY_CACHE:
            return engine_empty_cache(engine, 0, 0, 0, failure)
        if call.kind == EMPTY_POOL:
            return engine_empty_cache(engine, self.pools[call.pool, 0], self.pools[call.pool, 1], 0, failure)
        if call.kind == RELEASE_POOL:
            return (not self.pool_known[call.pool]
                    or pool_release(engine, self.pools[call.pool, 0], self.pools[call.pool, 1], failure))
        return poll_events(engine, 0, failure)

    cdef inline void note(self, int64_t slot) noexcept nogil:
        cdef uint64_t live = <uint64_t> tally_now(&self.engine.stats.active_bytes)
        cdef uint64_t reserved = <uint64_t> tally_now(&self.engine.stats.reserved_bytes)
        self.samples[slot, 0] = max(self.samples[slot, 0], live)
        self.samples[slot, 1] = max(self.samples[slot, 1], reserved)

    # --- results -----------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Return the counters of the window."""
        cdef const Stats* stats = &self.engine.stats
        return {
            "peak_requested_bytes": stats.requested_bytes.peak[ALL],
            "peak_allocated_bytes": stats.allocated_bytes.peak[ALL],
            "peak_active_bytes": stats.active_bytes.peak[ALL],
            "peak_reserved_bytes": stats.reserved_bytes.peak[ALL],
            "device_allocations": stats.device_allocs,
            "device_frees": stats.device_frees,
            "retries": stats.alloc_retries,
            "ooms": stats.ooms,
        }

    @property
    def driver_ms(self) -> float:
        """Return the cost of the window's driver calls, in milliseconds."""
        return self.device.state.microseconds / 1000

    def driver(self) -> dict[str, Any]:
        """Return the window's driver calls."""
        cdef const ReplayState* device = &self.device.state
        calls = {kind: device.calls[i] for i, kind in enumerate(CALLS)}
        return {
            "driver_calls": calls,
            "driver_ms": self.driver_ms,
            "calls_last_quarter": memory_calls(device) - self.calls_before,
            "waits": calls["wait"],
            "chunks": calls["create"] - calls["release"],
            "views": calls["map"] - calls["unmap"],
        }

    def moment(self) -> tuple[NDArray[np.void], NDArray[np.uint64]]:
        """Return every mapped block as it is now, by address, and the address of every block of the workload, 0 for
        none.

        Only for PyTorch's placement, as `blocks`.
        """
        cdef Range* range_ = self.engine.first_range
        cdef Block* block
        cdef MomentBlock* out
        cdef unsigned char[::1] bytes_of
        cdef int64_t count = 0
        while range_ != NULL:
            block = range_.head
            while block != NULL:
                count += block.mapped
                block = block.next
            range_ = range_.next
        found = numpy.zeros(count, dtype=MOMENT_BLOCK)
        addresses = numpy.asarray(self.addresses).copy()
        if count == 0:
            return found, addresses
        bytes_of = found.view("u1").reshape(-1)
        out = <MomentBlock*> &bytes_of[0]
        range_ = self.engine.first_range
        while range_ != NULL:
            block = range_.head
            while block != NULL:
                if block.mapped:
                    describe(block, out)
                    out += 1
                block = block.next
            range_ = range_.next
        return found[numpy.argsort(found["address"], kind="stable")], addresses

    def blocks(self) -> list[tuple[int, int, int]]:
        """Return (address, size, state) of every mapped block, by address; the states are those of `BlockState`.

        Only for PyTorch's placement, because it is compared with recordings, which have no other placement.
        """
        cdef Range* range_ = self.engine.first_range
        cdef Block* block
        found = []
        while range_ != NULL:
            block = range_.head
            while block != NULL:
                if block.mapped:
                    found.append((block.address, block.size, state_of(block)))
                block = block.next
            range_ = range_.next
        return sorted(found)
