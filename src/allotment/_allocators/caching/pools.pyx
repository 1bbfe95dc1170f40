cimport cython
from cpython.ref cimport Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.buffer cimport Buffer
from allotment._allocators.caching.allocator cimport EVERYTHING, STATE, Allocator
from allotment._allocators.caching.engine_settings cimport apply_reserves, reserves_of
from allotment._allocators.caching.pool_states cimport arrange_state, state_of_segments
from allotment._allocators.caching.sleep cimport Sleep
from allotment._allocators.parts cimport Part
from allotment._allocators.pluggable.lending cimport lend_segments
from allotment._allocators.pluggable.plugged_memory cimport PluggedMemory
from allotment._allocators.upcalls cimport call_filter, call_raw_alloc, call_raw_delete, drop_reference
from allotment._core.edge.checkpoint cimport AddressList, checkpoint_restore, checkpoint_take, pool_addresses
from allotment._core.contract.types cimport address_t, bytes_t, count_t, stream_t, thread_t
from allotment._core.edge.walk cimport STATE_ALLOCATED, Arrangement, arrangement_clear
from allotment._core.engine cimport (
    engine_allocate_at, engine_empty_cache, engine_end_routing, engine_is_inside, engine_leave, engine_trim)
from allotment._core.mechanism.pool cimport (
    pool_create_or_incref, pool_expect, pool_find, pool_note_replay, pool_release, pool_set_lent, pool_set_no_split,
    pool_set_use_on_oom, route_begin)
from allotment._core.model.model cimport (
    FILTER_ALL, FILTER_CAPTURE, FILTER_FUNCTION, FILTER_STREAM, FILTER_THREAD, Failure, Filter, Placement,
    Pool as EnginePool, RawAllocator, Request)
from allotment._core.placement.registry cimport placement_check, placement_named
from allotment._core.records.stats cimport tally_now
from allotment._core.tools.arguments cimport read_address, read_block, read_callable, read_identity, read_pool_id

from weakref import ref

from allotment import _settings as config
from allotment._allocators.caching.pool import PoolState
from allotment.errors import AllotmentError, CheckpointError, PoolError, RequestError


cdef dict owners_alive(Allocator allocator, object owners):
    """Return the buffers of a state's blocks that are still alive."""
    cdef dict found = {}
    for address, reference in owners.items():
        buffer = reference()
        if isinstance(buffer, Buffer) and (<Buffer> buffer).allocator is allocator:
            if (<Buffer> buffer).address == address:
                found[address] = buffer
    return found


@cython.final
cdef class Pools(Part):
    """Pools(allocator)\n--\n
    An allocator's private pools by id, and how requests are routed to them: `allocator.pools`.

    `Allocator.pool` makes a pool as an object, which most programs use instead. Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

    def create_or_incref(self, pool: PoolId, allocator: Any = None, placement: str | None = None) -> None:
        """Create the pool with this id, or add a use to an existing one; `release_pool` removes the use.

        Ids are (0, n) or (n, 0) with n >= 1. `allocator` and `placement` are as for `pool`, and only for a pool that
        does not exist yet. Raises PoolError; TypeError for an `allocator` that lacks one of its methods.
        """
        cdef const Placement* table = NULL
        cdef uint64_t first, second
        cdef RawAllocator raw
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        if placement is None and allocator is not None:
            placement = "torch"     # the placement that supports foreign segments
        if placement is not None:
            table = placement_named(placement)
            placement_check(table, &self.allocator.device.table, self.allocator.device.name)
        if isinstance(allocator, PluggedMemory):
            raw = lend_segments(allocator, self.allocator.device.table.device)
        else:
            if allocator is not None:
                read_callable(getattr(allocator, "allocate", None), f"allocate of {type(allocator).__name__}")
                read_callable(getattr(allocator, "free", None), f"free of {type(allocator).__name__}")
            raw.allocate = call_raw_alloc
            raw.free = call_raw_delete
            raw.drop = drop_reference
            raw.self = <void*> allocator
        self.allocator.enter()
        ok = pool_create_or_incref(
            self.allocator.engine, first, second, NULL if allocator is None else &raw, table, &failure)
        if ok and allocator is not None:
            Py_INCREF(allocator)
        self.allocator.leave(ok, &failure)

    def release(self, pool: PoolId) -> None:
        """Remove one use of a pool. After the last, its memory is released as it becomes free and the cache is emptied.

        Raises PoolError if the pool does not exist or is not in use.
        """
        self.step_of_pool(pool, pool_release)

    def close(self, pool: PoolId) -> None:
        """Release a pool, end its lending, and release what it has cached.

        If a garbage collection or a callback calls it inside the allocator, it takes effect when the allocator is
        entered next. Raises PoolError, DeviceError.
        """
        if engine_is_inside(self.allocator.engine):
            self.allocator.forgotten_pools.append((pool, True))
            return
        self.set_use_on_oom(pool, False)
        self._give_up_use(pool)

    def _give_up_use(self, pool: PoolId) -> None:
        """`close_pool` for a user that did not create the pool: it may go on lending."""
        if engine_is_inside(self.allocator.engine):
            self.allocator.forgotten_pools.append((pool, False))
            return
        self.release(pool)
        self.empty_cache(pool)

    cdef int close_forgotten(self) except -1:
        while self.allocator.forgotten_pools:
            try:
                pool, is_closed = self.allocator.forgotten_pools.pop()
            except IndexError:      # another thread was quicker
                break
            try:
                if is_closed:
                    self.close(pool)
                else:
                    self._give_up_use(pool)
            except AllotmentError:
                pass    # the use has ended; emptying the cache releases what the device refused
        return 0

    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """See `Allocator.empty_cache`."""
        cdef uint64_t first, second
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= EVERYTHING else 0
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        if not pool_expect(self.allocator.engine, first, second, &failure):
            self.allocator.leave(False, &failure)
        with nogil:
            ok = engine_empty_cache(self.allocator.engine, first, second, context, &failure)
            self.allocator.leave(ok, &failure)
        if self.allocator.kept or self.allocator.host_copies:
            Sleep(self.allocator).forget_gone()

    def trim_to(self, size: int | str) -> int:
        """See `Allocator.trim_to`."""
        cdef bytes_t keep = config.parse_size(size)
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= EVERYTHING else 0
        cdef Failure failure
        cdef count_t before
        cdef bint ok
        self.allocator.enter()
        before = tally_now(&self.allocator.engine.stats.reserved_bytes)
        with nogil:
            ok = engine_trim(self.allocator.engine, keep, context, &failure)
            before -= tally_now(&self.allocator.engine.stats.reserved_bytes)
            self.allocator.leave(ok, &failure)
        if self.allocator.kept or self.allocator.host_copies:
            Sleep(self.allocator).forget_gone()
        return max(before, 0)

    cdef int step_of_pool(self, object pool, pool_step_t step) except -1:
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        with nogil:
            ok = step(self.allocator.engine, first, second, &failure)
            self.allocator.leave(ok, &failure)
        return 0

    cdef int read_pool(self, object pool, PoolFigures* figures) except -1:
        cdef EnginePool* found
        cdef uint64_t first = 0, second = 0
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        found = pool_find(self.allocator.engine, first, second)
        if found != NULL:
            figures.use_count = found.use_count
            figures.reserved_bytes = found.reserved_bytes
        engine_leave(self.allocator.engine)
        if found == NULL:
            raise PoolError(f"there is no pool {(first, second)} on {self.allocator.device.name}", reason="unknown")
        return 0

    def use_count(self, pool: PoolId) -> int:
        """Return the number of uses of the pool: `Pool` objects, `with` blocks, graphs. Raises PoolError."""
        cdef PoolFigures figures
        self.read_pool(pool, &figures)
        return figures.use_count

    def reserved_bytes(self, pool: PoolId) -> int:
        """Return the physical memory that the pool holds now; (0, 0) is the default pool. Raises PoolError."""
        cdef PoolFigures figures
        cdef uint64_t first = 0, second = 0
        read_pool_id(pool, &first, &second)
        if first == 0 and second == 0:
            return self.allocator.engine.defaults.reserved_bytes
        self.read_pool((first, second), &figures)
        return figures.reserved_bytes

    def set_use_on_oom(self, pool: PoolId, on: bool) -> None:
        """Set whether the pool lends its free memory to other requests when memory is out. Raises PoolError."""
        cdef uint64_t first, second
        cdef bint wanted = on
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        ok = pool_set_use_on_oom(self.allocator.engine, first, second, wanted, &failure)
        self.allocator.leave(ok, &failure)

    def set_no_split(self, pool: PoolId) -> None:
        """Make the pool serve requests with whole segments from now on. Raises PoolError."""
        self.step_of_pool(pool, pool_set_no_split)

    cdef list live_addresses(self, object pool):
        """Return the addresses of a pool's blocks in use."""
        cdef uint64_t first, second
        cdef AddressList found
        cdef Failure failure
        cdef bint ok
        cdef size_t i
        read_pool_id(pool, &first, &second)
        memset(&found, 0, sizeof(AddressList))
        self.allocator.enter()
        ok = pool_addresses(self.allocator.engine, first, second, &found, &failure)
        engine_leave(self.allocator.engine)
        live = [found.addresses[i] for i in range(found.count)]
        free(found.addresses)
        if not ok:
            raise self.allocator.failed(&failure)
        return live

    # --- lending ---

    @property
    def _lent(self) -> set[PoolId]:
        return self.allocator.lent

    def _lend(self, pool: PoolId) -> None:
        """Lend the free memory of a pool to other requests."""
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        if (first, second) in self.allocator.lent:
            engine_leave(self.allocator.engine)
            raise PoolError(f"pool {(first, second)} on {self.allocator.device.name} is lent already")
        ok = pool_set_lent(self.allocator.engine, first, second, True, &failure)
        if ok:
            self.allocator.lent.add((first, second))
        self.allocator.leave(ok, &failure)

    def _note_replay(self, pool: PoolId, stream: Stream | int) -> None:
        """Wait, before the memory of a pool is released, for a graph that uses it and runs on a stream."""
        cdef uint64_t first, second
        cdef Failure failure
        cdef stream_t handle = self.allocator.stream_handle(stream)
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        self.allocator.leave(pool_note_replay(self.allocator.engine, first, second, handle, &failure), &failure)

    def _take_back(self, pool: PoolId, owned: frozenset[int]) -> list[int]:
        """End `_lend`; return the addresses of blocks that others still have in use there."""
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        ok = pool_set_lent(self.allocator.engine, first, second, False, &failure)
        self.allocator.lent.discard((first, second))
        self.allocator.leave(ok, &failure)
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
        """Serve matching requests from `pool` from now on; without a condition, all requests.

        The condition is one of: the request's stream, the requesting thread, the id of the capture that the stream is
        in, or a function of the stream, which runs inside the allocator at every request. The newest matching route
        wins. Adds a use of the pool, which is created if it does not exist. Raises RequestError for two conditions, and
        PoolError.
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
            filter.value = self.allocator.stream_handle(stream)
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
        self.allocator.enter()
        ok = route_begin(self.allocator.engine, first, second, filter, &failure)
        if ok and accepts is not None:
            Py_INCREF(accepts)
        self.allocator.leave(ok, &failure)

    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the route to `pool`; the use that it added stays until `release_pool`.

        Raises PoolError if no requests are routed to it, CaptureError if a capture that used it has not ended yet.
        """
        cdef uint64_t first, second
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= EVERYTHING else 0
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        with nogil:
            ok = engine_end_routing(self.allocator.engine, first, second, context, &failure)
            self.allocator.leave(ok, &failure)

    # --- states ---

    def _live_addresses(self, pool: PoolId) -> list[int]:
        return self.live_addresses(pool)

    def check_live_allocations(self, pool: Pool | PoolId, addresses: Collection[Buffer | int]) -> bool:
        """Return whether exactly these blocks, given as addresses or buffers, are in use in the pool, a `Pool` or its
        id.

        Visits every block of the pool. Raises PoolError; TypeError for an object that is not a block.
        """
        return set(self.live_addresses(getattr(pool, "id", pool))) == {read_block(block) for block in addresses}

    def checkpoint(self, pool: PoolId) -> PoolState:
        """Return the current arrangement of a pool as a `PoolState`, for `restore_pool`.

        Visits every block of the pool. Raises PoolError; CheckpointError if blocks wait for other streams.
        """
        cdef uint64_t first, second
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= EVERYTHING else 0
        cdef Arrangement arrangement
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        with nogil:
            ok = checkpoint_take(self.allocator.engine, first, second, context, &arrangement, &failure)
            self.allocator.leave(ok, &failure)
        try:
            return PoolState(
                self.allocator, (first, second), state_of_segments(&arrangement), self.owners_in(&arrangement))
        finally:
            arrangement_clear(&arrangement)

    cdef dict owners_in(self, const Arrangement* arrangement):
        """Return the buffers that own blocks of an arrangement, without keeping them alive."""
        cdef dict found = {}
        cdef address_t address
        cdef size_t i
        for i in range(arrangement.block_count):
            address = arrangement.blocks[i].address
            buffer = self.allocator.owners.owner_of(address) if arrangement.blocks[i].state == STATE_ALLOCATED else None
            if buffer is not None:
                found[address] = ref(buffer)
        return found

    cdef int hand_over(self, const AddressList* freed, const AddressList* created, dict buffers) except -1:
        """After a restore, remove the owners of freed blocks and restore the owners of blocks that came back.

        Returns how many reserved places it used.
        """
        cdef size_t i
        cdef int used = 0
        for i in range(freed.count):
            self.allocator.owners.end(freed.addresses[i])
        for i in range(created.count):
            buffer = buffers.get(created.addresses[i])
            if buffer is not None:
                self.allocator.owners.put(created.addresses[i], buffer)
                used += 1
        return used

    def restore(self, state: PoolState) -> tuple[list[int], list[int]]:
        """Restore a pool to `state`; return (addresses that this freed, addresses in use again).

        A buffer whose block ends this way frees nothing later. A block that is in use again belongs to the buffer that
        owned it when the state was taken, if that buffer still exists. Otherwise it belongs to you, as if `malloc` had
        returned it: free it, or make a `Buffer` for it. Waits for the streams that use blocks of the pool. Raises
        CheckpointError if the state is another allocator's, the pool has released or grown memory since, or such a
        stream is being captured; DeviceError.
        """
        cdef Arrangement arrangement
        cdef AddressList freed, created
        cdef uint64_t first, second
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= STATE else 0
        cdef Failure failure
        cdef bint ok
        cdef size_t i
        cdef size_t unused = 0      # places that are reserved for owners
        if not isinstance(state, PoolState):
            raise CheckpointError(f"restore needs a PoolState from Pool.checkpoint, not {type(state).__name__}")
        if getattr(state, "allocator", None) is not self.allocator:
            raise CheckpointError(f"the state of pool {getattr(state, 'pool', None)} was taken from another allocator")
        read_pool_id(state.pool, &first, &second)
        memset(&freed, 0, sizeof(AddressList))
        memset(&created, 0, sizeof(AddressList))
        memset(&arrangement, 0, sizeof(Arrangement))
        try:
            try:
                arrange_state(&arrangement, state.segments)
                buffers = owners_alive(self.allocator, state.owners)
            except (AttributeError, OverflowError, TypeError) as error:
                raise CheckpointError(f"this PoolState was not made by Pool.checkpoint: {error}") from None
            self.allocator.owners.reserve(len(buffers))
            unused = len(buffers)
            self.allocator.enter()
            try:
                with nogil:
                    ok = checkpoint_restore(
                        self.allocator.engine, first, second, &arrangement, context, &freed, &created, &failure)
                if ok:
                    # Before another thread enters, which could get an address that a buffer still believes to own.
                    unused -= self.hand_over(&freed, &created, buffers)
            finally:
                engine_leave(self.allocator.engine)
            if not ok:
                raise self.allocator.failed(&failure)
            return ([freed.addresses[i] for i in range(freed.count)],
                    [created.addresses[i] for i in range(created.count)])
        finally:
            self.allocator.owners.unreserve(unused)
            arrangement_clear(&arrangement)
            free(freed.addresses)
            free(created.addresses)

    def set_reserve_class(self, stream: Stream | int, name: str) -> None:
        """Put a stream in a class of `expandable_segments_reserve_by_class`; "" removes it from its class.

        It applies to segments reserved from now on. Raises TypeError for a name that is not a text.
        """
        if not isinstance(name, str):
            raise TypeError(f"the class of a stream must be a text, not {type(name).__name__}")
        handle = self.allocator.stream_handle(stream)
        apply_reserves(
            self.allocator, reserves_of(self.allocator, self.allocator.present_settings(), {handle: name})[1:])
        self.allocator.reserve_classes[handle] = name

    @property
    def caching(self) -> bool:
        """Whether requests use the cache; True unless it is switched off.

        When it is off, every request is a device allocation and every free a device free. Cached memory stays cached,
        and blocks that came from the cache still return to it.
        """
        return not self.allocator.engine.uncached

    @caching.setter
    def caching(self, on: bool) -> None:
        self.allocator.engine.uncached = not on

    def malloc_at(self, size: int | str, address: int, stream: Stream | int | None = None) -> int:
        """Allocate `size` bytes at exactly this address, from free memory of the request's pool and stream.

        Reserves no new memory. Size 0 returns address 0. Raises AddressError if the address is not a multiple of 512,
        or no free block contains all of it; SizeError; StreamError.
        """
        return self.allocate_at(size, address, stream, 0)

    cdef object allocate_at(self, object size, object address, object stream, thread_t thread):
        cdef Request request
        cdef address_t wanted = read_address(address)
        cdef address_t got
        request.size = self.allocator.checked_size(size)
        if request.size == 0:
            return 0
        self.allocator.require_open()
        request.stream = self.allocator.stream_asked(stream)
        request.thread = thread
        request.context = self.allocator.stack_now() if self.allocator.level >= STATE else 0
        self.allocator.enter()
        with nogil:
            got = engine_allocate_at(self.allocator.engine, &request, wanted)
            self.allocator.leave(got != 0, &request.failure)
        return got

    def malloc_as(self, size: int, stream: int, thread: int, address: int | None = None) -> int:
        """Call `malloc` or `malloc_at` as thread number `thread`: for replaying recordings."""
        if address is not None:
            return self.allocate_at(size, address, stream, thread)
        return self.allocator.allocate(size, stream, thread, 0)
