cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from allotment._allocators.buffer cimport free_buffer
from allotment._allocators.caching.engine_allocator cimport EVERYTHING, NEVER, STATE
from allotment._allocators.caching.sharing_allocator cimport SharingAllocator
from allotment._allocators.sizes cimport whole_size
from allotment._allocators.upcalls cimport call_free_memory, identity_in
from allotment._core.contract.current cimport CurrentStream, current_enter, current_leave, stream_in_use
from allotment._core.contract.raising cimport check_status
from allotment._core.contract.table cimport OK, status_t
from allotment._core.contract.types cimport address_t, bytes_t, stream_t, thread_t
from allotment._core.edge.rehearsal cimport (
    NOT_REFUSED, REFUSED_ALLOCATOR, REFUSED_DEFERRED, REFUSED_FILTER, REFUSED_PLACEMENT, Rehearsal, Wish, rehearse)
from allotment._core.edge.walk cimport tenants_sum
from allotment._core.engine cimport (
    needs_no_calls, engine_allocate, engine_allocate_at, engine_allocate_missed, engine_free, engine_free_at_once,
    engine_is_inside,
    engine_leave, engine_record_stream, engine_try_enter, is_guarded_already, release_block,
    serve_from_cache)
from allotment._core.mechanism.address_map cimport address_take
from allotment._core.mechanism.frees cimport free_later, free_special, is_freed_at_once
from allotment._core.mechanism.shortage cimport callback_add, callback_remove
from allotment._core.model.model cimport FAILED_OUT_OF_MEMORY, NO_FAILURE, Block, Engine, Failure, Request
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST, tenant_name
from allotment._core.tools.arguments cimport (
    SIZE_BITS, read_address, read_arguments, read_block, read_callable, read_place, read_size)
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment._core.tools.numbers cimport int_value, is_plain_int
from allotment._devices.streams cimport await_work, has_no_work, stream_of_caller

from weakref import ref

from allotment._allocators.caching.plan import Plan
from allotment import _logs as logs
from allotment._allocators.current import note_allocator
from allotment._allocators.caching.sanitizer.watch import REDZONE as REDZONE_BYTES, Sanitizer
from allotment._devices.streams import Stream
from allotment.errors import AddressError, OutOfMemoryError, RequestError, UnsupportedError

cdef bytes_t REDZONE = REDZONE_BYTES

cdef dict REFUSALS = {
    <int> REFUSED_PLACEMENT: "plan: memory under placement:dense cannot be rehearsed; it can under placement:torch",
    <int> REFUSED_ALLOCATOR: "plan: requests are routed to a pool with an allocator of its own, which cannot be asked"
                             " without changing it",
    <int> REFUSED_FILTER: "plan: requests are routed by a function or by a capture, which cannot be asked ahead",
    <int> REFUSED_DEFERRED: "plan: freed blocks wait for the end of a capture, or of routing; plan after it",
}


@cython.no_gc_clear     # a collection must not take the device away before the memory went back to it
@cython.final
cdef class Allocator(SharingAllocator):
    """Allocator(device="host", *, settings=None, limit=None, sanitize=False)\n--\n
    A caching allocator over one device.

    `device` is "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1", or a device object (a `Backend` subclass,
    `SimulatedDevice`, ...). `settings` is a settings string or record, by default what the environment variable
    ALLOTMENT_CONF says. `limit` is the most that may be reserved, in bytes or as "20GiB". With `sanitize` it looks for
    races between streams and for misuse of freed memory: see `touch` and `races`.

    Safe to use from several threads; a hit in the cache keeps the interpreter lock, anything that asks the device
    lets it go. `with allocator:` closes it at the end of the block. When it is closed, or the last reference goes, its
    memory goes back to the device but for blocks that are still in use, which a ResourceWarning tells.

    Raises SettingsError for settings that cannot be read or ask for another class (`make_allocator` chooses the
    class), RequestError for a name that is not a device's, DeviceError.
    """

    def __cinit__(self, *args, **kwargs):
        self.callbacks = []
        self.removed_callbacks = []
        note_allocator(self)
        if read_arguments(type(self), args, kwargs)["sanitize"]:
            self.watch()

    cdef int watch(self) except -1:
        """Look for races from now on."""
        cdef bint writes = self.is_readable() and hasattr(self.device, "submit")
        self.engine.interpreter_guards = False
        self.sanitizer = Sanitizer(self, writes_memory=writes)
        this = ref(self)

        def release(facts):
            allocator = this()
            return allocator is not None and allocator._empty_quarantine()

        self.on_out_of_memory(release)
        return 0

    # --- allocating and freeing ---

    # Plain methods: Cython's richer function objects cost a third of an empty call more.

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Address of `size` bytes for work on `stream`: a `Stream` or its handle. Size 0 gives 0 and does nothing.

        `size` may also be text such as "1MiB". `stream` is by default the calling thread's current one (`with stream:`,
        `capture`), else the default one, 0. The memory is handed out in the order of that stream: work submitted to it
        earlier may still use it.

        A hit in the cache costs little more than the call; a miss asks the device, and before memory is
        out the cache is given back. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from
        several threads.
        """
        return self.allocate(size, stream, 0, 0)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address: Buffer | int, /) -> None:
        """Give a block back. If other streams were recorded for it, it is reused only when they are done.

        A `Buffer` is closed. Freeing 0 does nothing. The memory stays in the cache: `empty_cache` gives it to the
        device. Raises AddressError for anything that is not a live block's start, BufferError for a buffer that arrays
        or slices see. Safe to call from several threads, and from a callback inside the allocator, where it is done on
        the way out.
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
        if is_guarded_already(engine):
            block = address_take(engine, value)
            if is_freed_at_once(block):
                release_block(engine, block, context)
            else:
                self.release_special(block, value, context)
        else:
            self.release_inside(value, context)

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        Costs an event at the free. Recording the stream that it was allocated on, or address 0, does nothing. Raises
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
        cdef Engine* engine = self.engine
        cdef Request request
        cdef Block* block
        cdef long long wanted = 0
        cdef long long handle = 0
        if not is_plain_int(size) or not int_value(size, &wanted) or wanted <= 0 or (wanted >> SIZE_BITS) != 0:
            wanted = <long long> self.checked_size(size)
            if wanted == 0:
                return 0
        if stream is None:
            handle = <long long> stream_in_use(engine.table.self)
        elif not is_plain_int(stream) or not int_value(stream, &handle) or handle < 0:
            handle = <long long> self.stream_handle(stream)
        request.size = wanted
        request.stream = <stream_t> handle
        request.thread = thread
        request.context = tenant | self.request_context() if self.level != NEVER else tenant
        if is_guarded_already(engine) and needs_no_calls(engine) and not engine.uncached:
            # The hot path: a hit is served under the interpreter lock alone.
            block = serve_from_cache(engine, &request)
            if block != NULL:
                return block.address
            if request.failure.reason == NO_FAILURE:
                return self.allocate_after_miss(&request)
            return self.allocate_after_failure(&request)
        return self.allocate_inside(&request)

    cdef object ready_buffer(self, object size, object stream):
        return self.ready_for(size, stream, 0)

    cdef object ready_for(self, object size, object stream, uint32_t tenant):
        """`ready_buffer`, in a tenant's name."""
        cdef stream_t handle = self.stream_asked(stream)
        given = handle if stream is None else stream
        buffer = self.owned(self.allocate(size, handle, 0, tenant), size, given)
        if size == 0 or has_no_work(self.device, handle):
            return buffer
        own = stream_of_caller(self.device)
        if own is None:
            await_work(self.device, handle)
        elif own != (handle, False) and self.sanitizer is None:     # that one watches the stream which was asked for
            # The stream may wait for the very function that asks, so the function must not wait for the stream.
            buffer.close()
            return self.ready_without_waiting(size, handle, given, tenant)
        return buffer

    cdef object ready_without_waiting(self, object size, stream_t handle, object stream, uint32_t tenant):
        """Memory of a stream that never has work, recorded for the stream that it is asked for."""
        if self.calm is None:
            self.make_calm_stream()
        buffer = self.owned(self.allocate(size, self.calm, 0, tenant), size, stream)
        self.record_stream(buffer, handle)
        return buffer

    cdef int make_calm_stream(self) except -1:
        made = Stream(self.device)
        cdef stream_t handle = made.handle
        self.enter()
        if self.calm is None:       # else another thread has made one meanwhile
            self.engine.calm_stream = handle
            self.calm = made
        engine_leave(self.engine)
        if self.calm is not made:
            made.destroy()
        return 0

    cdef object allocate_after_miss(self, Request* request):
        """Ask the device, without the interpreter. pre: begun under the interpreter lock alone"""
        cdef Engine* engine = self.engine
        cdef address_t address
        engine_try_enter(engine)    # succeeds: no other thread can be inside
        with nogil:
            address = engine_allocate_missed(engine, request)
            engine_leave(engine)
        self.log_retry(request, address != 0)
        if address == 0:
            return self.allocate_after_failure(request)
        return address

    cdef object allocate_inside(self, Request* request):
        """All of a request, under the engine's lock."""
        cdef address_t address
        self.require_open()
        if self.sanitizer is not None:
            return self.allocate_watched(request)
        address = self.try_once(request)
        if address == 0:
            return self.allocate_after_failure(request)
        return address

    cdef object allocate_watched(self, Request* request):
        """With a redzone behind it."""
        cdef bytes_t size = request.size
        request.size += REDZONE
        address = self.try_once(request)
        if address == 0:
            address = self.allocate_after_failure(request)
        self.sanitizer.allocated(address, size, request.stream)
        return address

    cdef int release_watched(self, address_t address, uint32_t context) except -1:
        """Into quarantine, from which others may go."""
        leaving = self.sanitizer.freed(address)
        if leaving is None:
            raise AddressError(
                f"invalid device pointer: {address:#x} is in no block in use on {self.device.name}; it has been freed",
                address)
        return self.release_kept(leaving)

    cdef int falls_asleep(self, uint64_t first, uint64_t second) except -1:
        cdef status_t status = OK
        if self.sanitizer is not None and self.sanitizer.asleep((first, second), self.ranges_of(first, second)):
            with nogil:
                status = self.engine.table.device_synchronize(self.engine.table.self)
            check_status(self.device, status, "device_synchronize")
        return 0

    cdef int has_woken(self, uint64_t first, uint64_t second, bint kept) except -1:
        if self.sanitizer is not None:
            self.sanitizer.awake((first, second), kept=kept)
        return 0

    cdef int release_kept(self, list addresses) except -1:
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

    cdef int drain(self) except -1:
        if self.sanitizer is not None and not interpreter_ends():    # it is Python, whose modules may be gone then
            self._empty_quarantine()
            self.sanitizer.close()
        if self.calm is not None and not interpreter_ends():
            self.calm.destroy()
        return SharingAllocator.drain(self)

    cdef address_t try_once(self, Request* request) except? 0:
        """0 with the reason in request.failure."""
        cdef address_t address = self.try_quietly(request)
        self.log_retry(request, address != 0)
        return address

    cdef address_t try_quietly(self, Request* request) except? 0:
        """Without a line in the log."""
        cdef Engine* engine = self.engine
        cdef address_t address
        self.enter()
        with nogil:
            address = engine_allocate(engine, request)
            engine_leave(engine)
        return address

    cdef object allocate_after_failure(self, Request* request):
        """Ask those who have a say, and try again as long as they want to; then raise."""
        cdef address_t address = 0
        cdef long long given_back = request.given_back
        error = self.failed(&request.failure)
        turn = self.chain.begin() if self.chain is not None and request.failure.reason == FAILED_OUT_OF_MEMORY else None
        if turn is None:
            if given_back >= 0 and self.has_say():      # else it is logged already
                logs.gave_back(self.device.name, given_back, False)
            self.raise_out_of_memory(error)
        try:
            while True:
                # Also before the first step: what the release has waited for was free too late to be found.
                address = self.try_quietly(request)
                if address != 0:
                    return address
                given_back = max(given_back, <long long> request.given_back)
                error = self.failed(&request.failure)
                if not isinstance(error, OutOfMemoryError) or not turn.wants_another_try(error.facts):
                    break
        finally:
            self.chain.end()
        if given_back >= 0:
            logs.gave_back(self.device.name, given_back, False)
        self.raise_out_of_memory(error)

    cdef bytes_t checked_size(self, object given) except? 0:
        """The bytes of a size that is not an ordinary int. Raises for one that no request can have."""
        cdef bytes_t size = 0
        given = whole_size(given)
        if not read_size(given, &size):
            raise OutOfMemoryError(self.too_large_facts(given))
        return size

    cdef int raise_out_of_memory(self, object error) except -1:
        """Tell the observers first, if that is what it is."""
        self.close_forgotten_pools()
        if isinstance(error, OutOfMemoryError) and not error.facts.rejected:
            logs.out_of_memory(error.facts)
            self.tell_observers(error.facts)
        raise error

    cdef int free_owned(self, address_t address, void* buffer) except -1:
        return self.release_address(address, buffer)

    cdef int release_address(self, address_t address, void* buffer=NULL) except -1:
        """pre: address != 0"""
        cdef Engine* engine = self.engine
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef Block* block
        if not is_guarded_already(engine):
            return self.release_inside(address, context, buffer)
        if buffer != NULL and not self.owners.give_up(address, buffer):
            return 0
        block = address_take(engine, address)
        if not is_freed_at_once(block):
            return self.release_special(block, address, context)
        engine_free_at_once(engine, block, context)
        return 0

    cdef int release_working_on(self, address_t address, stream_t stream) except -1:
        """`release_address` for a caller whose current stream is known, which decides where a graph is captured.

        pre: address != 0
        """
        cdef CurrentStream current
        if self.engine.impure_routes == 0:
            return self.release_address(address)
        current_enter(&current, self.engine.table.self, stream)
        try:
            return self.release_address(address)
        finally:
            current_leave(&current)

    cdef int release_special(self, Block* block, address_t address, uint32_t context) except -1:
        """Ask the device, without the interpreter. pre: guarded by the interpreter lock alone"""
        cdef Engine* engine = self.engine
        cdef Failure failure
        cdef bint ok
        engine_try_enter(engine)    # succeeds: no other thread can be inside
        with nogil:
            ok = free_special(engine, block, address, context, &failure)
            self.leave(ok, &failure)
        return 0

    cdef int release_inside(self, address_t address, uint32_t context, void* buffer=NULL) except -1:
        """All of a free, under the engine's lock."""
        cdef Engine* engine = self.engine
        cdef Failure failure
        cdef bint ok
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
            return self.release_watched(address, context)
        with nogil:
            ok = engine_free(engine, address, context, &failure)
            self.leave(ok, &failure)
        if self.closed:
            self.shut()         # what was in use when it was closed goes back as it is freed
        return 0

    def malloc_at(self, size: int | str, address: int, stream: Stream | int | None = None) -> int:
        """Allocate `size` bytes at exactly this address, out of free memory of the request's pool and stream.

        Nothing new is reserved. Size 0 gives address 0. Raises AddressError if the address is not a multiple of 512, or
        no free block holds all of it; SizeError, StreamError.
        """
        return self.allocate_at(size, address, stream, 0)

    cdef object allocate_at(self, object size, object address, object stream, thread_t thread):
        cdef Request request
        cdef address_t wanted = read_address(address)
        cdef address_t got
        request.size = self.checked_size(size)
        if request.size == 0:
            return 0
        self.require_open()
        request.stream = self.stream_asked(stream)
        request.thread = thread
        request.context = self.stack_now() if self.level >= STATE else 0
        self.enter()
        with nogil:
            got = engine_allocate_at(self.engine, &request, wanted)
            self.leave(got != 0, &request.failure)
        return got

    def malloc_as(self, size: int, stream: int, thread: int, address: int | None = None) -> int:
        """`malloc`, or `malloc_at`, as though called by thread number `thread`: for replaying recordings."""
        if address is not None:
            return self.allocate_at(size, address, stream, thread)
        return self.allocate(size, stream, thread, 0)

    # --- would it fit ---

    def plan(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> Plan:
        """What these requests would come to if they were made now, one after the other, by the calling thread.

        A request is a size, or a size and a stream; without one it is for the current stream. They are tried on a copy
        of all that the allocator keeps, by the code that would serve them, so the result is exact, and nothing changes:
        no figure, no entry of the history, no call that changes anything on the device. Rehearsed are the cache,
        limits, pools and routes, frees whose streams are done, and everything that is tried when memory is short,
        except free-memory callbacks. Of the device it is taken that it gives what it says is free.

        Looks at every block. Raises SizeError, StreamError; UnsupportedError, with the reason, where no copy can tell:
        placement:dense, a pool with an allocator of its own, a filter that is a function, or a capture.
        """
        cdef Wish* wishes
        cdef Rehearsal found
        cdef bint ok
        cdef size_t i, count
        wanted = [self.read_wish(request) for request in requests]
        kept = [i for i, (size, _) in enumerate(wanted) if size > 0]
        count = len(kept)
        wishes = <Wish*> malloc((count + 1) * sizeof(Wish))
        if wishes == NULL:
            raise MemoryError("the host has no memory for the requests")
        try:
            for i, number in enumerate(kept):
                wishes[i].size, wishes[i].stream = wanted[number]
            self.require_open()
            self.enter()
            with nogil:
                ok = rehearse(self.engine, wishes, count, &found)
        finally:
            free(wishes)
        if found.refusal != NOT_REFUSED:
            raise UnsupportedError(REFUSALS[<int> found.refusal])
        if not ok:
            raise self.failed(&found.failure)
        return Plan(found.fits, found.new_reserved, None if found.fits else kept[found.served])

    def would_fit(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> bool:
        """Whether these requests would all be served if they were made now. See `plan`."""
        return self.plan(requests).fits

    cdef tuple read_wish(self, object request):
        """Size and stream of a request; one that no device can serve has the largest size there is."""
        cdef bytes_t size = 0
        if isinstance(request, tuple) and len(request) != 2:
            raise TypeError(f"a request is a size or (size, stream), not {request!r}")
        given, stream = request if isinstance(request, tuple) else (request, None)
        if not read_size(whole_size(given), &size):
            size = (<bytes_t> 1 << SIZE_BITS) - 1
        return size, self.stream_asked(stream)

    # --- races ---

    def _empty_quarantine(self) -> bool:
        """Let go of all that the sanitizer has kept back; whether that was anything."""
        cdef list kept = self.sanitizer.emptied()
        self.release_kept(kept)
        return len(kept) > 0

    @property
    def _sanitizer(self) -> Sanitizer | None:
        return self.sanitizer

    @property
    def _lent_pools(self) -> set[PoolId]:
        return self.lent

    def touch(self, address: Buffer | int, stream: Stream | int | None = None, *, write: bool = True) -> None:
        """Tell the sanitizer that work submitted to `stream` now touches memory at `address`, or reads it alone.

        `address` may lie anywhere in a block; None is the calling thread itself, or the stream whose function it runs.
        Arrays that `array` and its kin make tell of NumPy's functions by themselves. Without `sanitize` nothing
        happens.
        """
        if self.sanitizer is not None:
            self.sanitizer.touched(
                read_place(address), None if stream is None else self.stream_handle(stream), writes=write)

    def races(self) -> list[Report]:
        """What the sanitizer has found so far, each with the stacks of both places; empty without `sanitize`.

        Findings are also SanitizerWarnings as they are made. Freed memory is looked at when it leaves quarantine:
        `close`, and a shortage of memory, let all of it go.
        """
        return [] if self.sanitizer is None else list(self.sanitizer.reports)

    # --- who has what ---

    def tenant(self, name: str) -> Tenant:
        """This allocator for a user with a name, so that `tenants` and snapshots tell whose blocks are whose.

        A second call with the same name gives another object for the same tenant. Raises RequestError when there are
        too many names.
        """
        from allotment._allocators.caching.tenants import Tenant

        return Tenant(self, name)

    def tenants(self) -> dict[str, dict[str, int]]:
        """By name, the "blocks", "allocated_bytes" and "requested_bytes" held now; "" is what has no name.

        Looks at every block. Memory that was allocated while caching was off is not counted. Safe to call from several
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

    # --- when memory is short ---

    def add_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call `callback()` at every miss, before the device is asked; it returns whether it freed anything.

        It runs on the thread that asked, and may use the allocator, and others: no lock is held meanwhile. What it asks
        for itself is served without callbacks. Threads that miss at the same time run it at the same time. What it
        raises is reported through `sys.unraisablehook`. Raises TypeError for what cannot be called.
        """
        cdef bint ok = False
        read_callable(callback, "a free-memory callback")
        # In the list before the engine points at it, and out of it again if the engine cannot be entered.
        self.callbacks.append(callback)
        try:
            self.enter()
            ok = callback_add(self.engine, call_free_memory, <void*> callback)
            engine_leave(self.engine)
        finally:
            if not ok:
                del self.callbacks[identity_in(self.callbacks, callback)]
        if not ok:
            raise MemoryError("the host has no memory for the allocator's own records")

    def remove_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call it no more. Raises RequestError if it was not added, or is removed already."""
        cdef list unneeded = self.removed_callbacks
        cdef bint removed = False
        cdef bint collects
        for kept in list(self.callbacks):
            if kept == callback:
                collects = self.enter_making_objects()
                try:
                    removed = callback_remove(self.engine, <void*> kept)
                    if removed:
                        # A thread in the middle of it still needs the object, and of those removed before.
                        unneeded = self.removed_callbacks
                        self.removed_callbacks = [*unneeded, kept] if self.engine.callback_runs != NULL else []
                        del self.callbacks[identity_in(self.callbacks, kept)]
                finally:
                    self.leave_making_objects(collects)
                if removed:
                    return      # what is not needed any more goes here, outside
        raise RequestError(f"{callback!r} is not a free-memory callback of {self!r}, or it is removed already")
