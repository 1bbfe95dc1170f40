cimport cython
from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.buffer cimport Buffer
from allotment._allocators.caching.engine_allocator cimport EVERYTHING, STATE
from allotment._allocators.caching.pool_states cimport arrange_state, state_of_segments
from allotment._allocators.caching.recording_allocator cimport RecordingAllocator
from allotment._allocators.owners cimport Owners
from allotment._allocators.pluggable.lending cimport lend_segments
from allotment._allocators.pluggable.plugged_memory cimport PluggedMemory
from allotment._allocators.upcalls cimport call_filter, call_raw_alloc, call_raw_delete, drop_reference
from allotment._core.edge.checkpoint cimport AddressList, checkpoint_restore, checkpoint_take, pool_addresses
from allotment._core.contract.types cimport address_t, bytes_t, count_t
from allotment._core.edge.walk cimport STATE_ALLOCATED, Arrangement, arrangement_clear
from allotment._core.engine cimport (
    engine_empty_cache, engine_end_routing, engine_is_inside, engine_leave, engine_trim)
from allotment._core.mechanism.pool cimport (
    pool_create_or_incref, pool_expect, pool_find, pool_release, pool_set_lent, pool_set_no_split, pool_set_use_on_oom,
    route_begin)
from allotment._core.model.model cimport (
    FILTER_ALL, FILTER_CAPTURE, FILTER_FUNCTION, FILTER_STREAM, FILTER_THREAD, Failure, Filter, Placement,
    Pool as EnginePool, RawAllocator)
from allotment._core.placement.registry cimport placement_check, placement_named
from allotment._core.records.stats cimport tally_now
from allotment._core.tools.arguments cimport read_block, read_callable, read_identity, read_pool_id

from weakref import ref

from allotment import _settings as config
from allotment._allocators.caching.pools import Pool, PoolState
from allotment.errors import AllotmentError, CheckpointError, PoolError, RequestError


cdef dict owners_alive(PoolingAllocator allocator, object owners):
    """The buffers that had blocks in a state and are still there."""
    cdef dict found = {}
    for address, reference in owners.items():
        buffer = reference()
        if isinstance(buffer, Buffer) and (<Buffer> buffer).allocator is allocator:
            if (<Buffer> buffer).address == address:
                found[address] = buffer
    return found


@cython.no_gc_clear
cdef class PoolingAllocator(RecordingAllocator):
    """An engine with private pools; users hold an `Allocator`."""

    def __cinit__(self, *args, **kwargs):
        self.owners = Owners()
        self.lent = set()

    # --- pools by id: `pool` is the convenient form ---

    def pool(
        self,
        *,
        use_on_oom: bool = False,
        no_split: bool = False,
        allocator: Any = None,
        placement: str | None = None,
    ) -> Pool:
        """A private pool: `with pool:` serves this thread's requests from its memory and from nowhere else.

        `use_on_oom` lends its free memory to others when memory is out; `no_split` hands out whole segments;
        `allocator` is where its segments come from: an object with allocate(size, stream) and
        free(address, size, stream), or a PluggableAllocator; `placement` is the name of another way to divide its
        memory than the allocator's. Raises SettingsError for a placement that is not there.
        """
        return Pool(self, use_on_oom=use_on_oom, no_split=no_split, allocator=allocator, placement=placement)

    def create_or_incref_pool(self, pool: PoolId, allocator: Any = None, placement: str | None = None) -> None:
        """Make the pool with this id, or add a use to one that is there; `release_pool` takes the use back.

        Ids are (0, n) or (n, 0) with n >= 1. `allocator` and `placement` as for `pool`, and only for a pool that is
        not there yet. Raises PoolError, TypeError for an `allocator` that lacks one of its methods.
        """
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
            placement_check(table, &self.device.table, self.device.name)
        if isinstance(allocator, PluggedMemory):
            raw = lend_segments(allocator, self.device.table.device)
        else:
            if allocator is not None:
                read_callable(getattr(allocator, "allocate", None), f"allocate of {type(allocator).__name__}")
                read_callable(getattr(allocator, "free", None), f"free of {type(allocator).__name__}")
            raw.allocate = call_raw_alloc
            raw.free = call_raw_delete
            raw.drop = drop_reference
            raw.self = <void*> allocator
        self.enter()
        ok = pool_create_or_incref(self.engine, first, second, NULL if allocator is None else &raw, table, &failure)
        if ok and allocator is not None:
            Py_INCREF(allocator)
        self.leave(ok, &failure)

    def release_pool(self, pool: PoolId) -> None:
        """Take back one use of a pool. After the last, its memory goes as it becomes free and the cache is emptied.

        Raises PoolError if there is no such pool or it is not in use.
        """
        self.step_of_pool(pool, pool_release)

    def close_pool(self, pool: PoolId) -> None:
        """Release a pool, which lends no more, and give back what it has cached.

        Called from inside the allocator, by a collection or a callback, it is done when the allocator is entered next.
        Raises PoolError, DeviceError.
        """
        if engine_is_inside(self.engine):
            self.forgotten_pools.append((pool, True))
            return
        self.set_use_on_oom(pool, False)
        self._give_up_use(pool)

    def _give_up_use(self, pool: PoolId) -> None:
        """`close_pool` for a user that has not made the pool: others may go on lending it."""
        if engine_is_inside(self.engine):
            self.forgotten_pools.append((pool, False))
            return
        self.release_pool(pool)
        self.empty_cache(pool)

    cdef int close_forgotten_pools(self) except -1:
        while self.forgotten_pools:
            pool, is_closed = self.forgotten_pools.pop()
            try:
                if is_closed:
                    self.close_pool(pool)
                else:
                    self._give_up_use(pool)
            except AllotmentError:
                pass    # it is given up; what the device would not take goes with the cache
        return 0

    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Give unused cached memory back to the device: that of all pools, or of one.

        Blocks in use stay, and all memory of a private pool that is in use (`pool_use_count`), as in PyTorch:
        `Pool.close` gives that back. Waits for events of blocks that other streams used, and calls the device for each
        segment.
        Raises PoolError for a pool that never was, DeviceError. Safe to call from several threads.
        """
        cdef uint64_t first, second
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        if not pool_expect(self.engine, first, second, &failure):
            self.leave(False, &failure)
        with nogil:
            ok = engine_empty_cache(self.engine, first, second, context, &failure)
            self.leave(ok, &failure)
        self.pools_went()

    cdef int pools_went(self) except -1:
        return 0

    def trim_to(self, size: int | str) -> int:
        """Give cached memory back until no more than `size` bytes are reserved; gives how many bytes went.

        `size` is a number of bytes or a text such as "2GiB". What is in use stays, so more may be left. Waits and
        raises as `empty_cache` does. Safe to call from several threads.
        """
        cdef bytes_t keep = config.parse_size(size)
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef Failure failure
        cdef count_t before
        cdef bint ok
        self.enter()
        before = tally_now(&self.engine.stats.reserved_bytes)
        with nogil:
            ok = engine_trim(self.engine, keep, context, &failure)
            before -= tally_now(&self.engine.stats.reserved_bytes)
            self.leave(ok, &failure)
        self.pools_went()
        return max(before, 0)

    cdef int step_of_pool(self, object pool, pool_step_t step) except -1:
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = step(self.engine, first, second, &failure)
            self.leave(ok, &failure)
        return 0

    cdef int read_pool(self, object pool, PoolFigures* figures) except -1:
        cdef EnginePool* found
        cdef uint64_t first = 0, second = 0
        read_pool_id(pool, &first, &second)
        self.enter()
        found = pool_find(self.engine, first, second)
        if found != NULL:
            figures.use_count = found.use_count
            figures.reserved_bytes = found.reserved_bytes
        engine_leave(self.engine)
        if found == NULL:
            raise PoolError(f"there is no pool {(first, second)} on {self.device.name}", reason="unknown")
        return 0

    def pool_use_count(self, pool: PoolId) -> int:
        """How many uses the pool has: by `Pool` objects, by `with` blocks, by graphs. Raises PoolError."""
        cdef PoolFigures figures
        self.read_pool(pool, &figures)
        return figures.use_count

    def pool_reserved_bytes(self, pool: PoolId) -> int:
        """Physical memory that the pool holds now; (0, 0) is the default pool. Raises PoolError."""
        cdef PoolFigures figures
        cdef uint64_t first = 0, second = 0
        read_pool_id(pool, &first, &second)
        if first == 0 and second == 0:
            return self.engine.defaults.reserved_bytes
        self.read_pool((first, second), &figures)
        return figures.reserved_bytes

    def set_use_on_oom(self, pool: PoolId, on: bool) -> None:
        """Let the pool lend its free memory to others when memory is out, or not. Raises PoolError."""
        cdef uint64_t first, second
        cdef bint wanted = on
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        ok = pool_set_use_on_oom(self.engine, first, second, wanted, &failure)
        self.leave(ok, &failure)

    def set_no_split(self, pool: PoolId) -> None:
        """Let the pool hand out whole segments from now on. Raises PoolError."""
        self.step_of_pool(pool, pool_set_no_split)

    cdef list live_addresses(self, object pool):
        """Of the blocks in use of a pool."""
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
        live = [found.addresses[i] for i in range(found.count)]
        free(found.addresses)
        if not ok:
            raise self.failed(&failure)
        return live

    # --- lending ---

    def _lend(self, pool: PoolId) -> None:
        """Let others have the free memory of a pool."""
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        if (first, second) in self.lent:
            raise PoolError(f"pool {(first, second)} on {self.device.name} is lent already")
        self.enter()
        ok = pool_set_lent(self.engine, first, second, True, &failure)
        self.leave(ok, &failure)
        self.lent.add((first, second))

    def _take_back(self, pool: PoolId, owned: frozenset[int]) -> list[int]:
        """End `_lend`; the addresses that others still have in use there."""
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        ok = pool_set_lent(self.engine, first, second, False, &failure)
        self.lent.discard((first, second))
        self.leave(ok, &failure)
        return sorted(set(self.live_addresses(pool)) - owned)

    # --- routes ---

    def begin_allocate_to_pool(
        self,
        pool: PoolId,
        *,
        stream: int | None = None,
        thread: int | None = None,
        capture: int | None = None,
        accepts: Callable[[int], bool] | None = None,
    ) -> None:
        """Serve matching requests from `pool` from now on; without a condition, all of them.

        The condition is one of: the request's stream, the requesting thread, the id of the capture that the stream is
        in, or a function of the stream, which runs inside the allocator at every request. The route that was begun
        last and matches wins. Adds a use of the pool, made if it is not there. Raises RequestError for two
        conditions, PoolError.
        """
        cdef uint64_t first, second
        cdef Filter filter
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        given = [kind for kind in (stream, thread, capture, accepts) if kind is not None]
        if len(given) > 1:
            raise RequestError("requests are routed by one condition: stream, thread, capture or accepts, not several")
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
            read_callable(accepts, "accepts")
            filter.kind = FILTER_FUNCTION
            filter.accepts = call_filter
            filter.drop = drop_reference
            filter.self = <void*> accepts
        self.enter()
        ok = route_begin(self.engine, first, second, filter, &failure)
        if ok and accepts is not None:
            Py_INCREF(accepts)
        self.leave(ok, &failure)

    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the route to `pool`; the use that it added stays until `release_pool`.

        Raises PoolError if no requests are routed to it, CaptureError if a capture that used it is still under way.
        """
        cdef uint64_t first, second
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = engine_end_routing(self.engine, first, second, context, &failure)
            self.leave(ok, &failure)

    # --- states ---

    def _live_addresses(self, pool: PoolId) -> list[int]:
        return self.live_addresses(pool)

    def check_pool_live_allocations(self, pool: Pool | PoolId, addresses: Collection[Buffer | int]) -> bool:
        """Whether exactly these blocks, given as addresses or buffers, are in use in the pool, a `Pool` or its id.

        Looks at every block of it. Raises PoolError, TypeError for what is no block.
        """
        return set(self.live_addresses(getattr(pool, "id", pool))) == {read_block(block) for block in addresses}

    def checkpoint_pool(self, pool: PoolId) -> PoolState:
        """The arrangement of a pool now, as a `PoolState`, for `restore_pool`.

        Looks at every block of it. Raises PoolError, CheckpointError if blocks wait for other streams.
        """
        cdef uint64_t first, second
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef Arrangement arrangement
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.enter()
        with nogil:
            ok = checkpoint_take(self.engine, first, second, context, &arrangement, &failure)
            self.leave(ok, &failure)
        try:
            return PoolState(
                self, (first, second), state_of_segments(&arrangement), self.owners_in(&arrangement))
        finally:
            arrangement_clear(&arrangement)

    cdef dict owners_in(self, const Arrangement* arrangement):
        """The buffers that own blocks of an arrangement, which do not live on for that."""
        cdef dict found = {}
        cdef address_t address
        cdef void* buffer
        cdef size_t i
        for i in range(arrangement.block_count):
            address = arrangement.blocks[i].address
            buffer = self.owners.owner_of(address) if arrangement.blocks[i].state == STATE_ALLOCATED else NULL
            if buffer != NULL:
                found[address] = ref(<object> buffer)
        return found

    cdef int hand_over(self, const AddressList* freed, const AddressList* created, dict buffers) except -1:
        """After a restore: nothing that was freed has its owner any more; what came back has the one that it had."""
        cdef size_t i
        for i in range(freed.count):
            self.owners.end(freed.addresses[i])
        for i in range(created.count):
            buffer = buffers.get(created.addresses[i])
            if buffer is not None:
                self.owners.put(created.addresses[i], <void*> buffer)
        return 0

    def restore_pool(self, state: PoolState) -> tuple[list[int], list[int]]:
        """Bring a pool back to `state`: (addresses freed by that, addresses in use again).

        A buffer whose block ended so frees nothing any more. A block that is in use again belongs to the buffer that
        had it when the state was taken, if that is still there; else to you, as though `malloc` had given it: free it,
        or make a `Buffer` of it. Waits for the streams that use blocks of the pool. Raises CheckpointError if the state
        is another allocator's, the pool has released or grown memory since, or such a stream is being captured;
        DeviceError.
        """
        cdef Arrangement arrangement
        cdef AddressList freed, created
        cdef uint64_t first, second
        cdef uint32_t context = self.stack_now() if self.level >= STATE else 0
        cdef Failure failure
        cdef bint ok
        cdef size_t i
        if not isinstance(state, PoolState):
            raise CheckpointError(f"a pool is restored from a PoolState of Pool.checkpoint, not {type(state).__name__}")
        if getattr(state, "allocator", None) is not self:
            raise CheckpointError(f"the state of pool {getattr(state, 'pool', None)} was taken from another allocator")
        read_pool_id(state.pool, &first, &second)
        memset(&freed, 0, sizeof(AddressList))
        memset(&created, 0, sizeof(AddressList))
        memset(&arrangement, 0, sizeof(Arrangement))
        try:
            try:
                arrange_state(&arrangement, state.segments)
                buffers = owners_alive(self, state.owners)
            except (AttributeError, OverflowError, TypeError) as error:
                raise CheckpointError(f"this PoolState was not made by Pool.checkpoint: {error}") from None
            self.owners.reserve(len(buffers))
            self.enter()
            try:
                with nogil:
                    ok = checkpoint_restore(
                        self.engine, first, second, &arrangement, context, &freed, &created, &failure)
                if ok:
                    # Before anybody else comes in, and could be handed what a buffer believes to be its own.
                    self.hand_over(&freed, &created, buffers)
            finally:
                engine_leave(self.engine)
            if not ok:
                raise self.failed(&failure)
            return ([freed.addresses[i] for i in range(freed.count)],
                    [created.addresses[i] for i in range(created.count)])
        finally:
            arrangement_clear(&arrangement)
            free(freed.addresses)
            free(created.addresses)
