cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.caching.allocator cimport EVERYTHING, Allocator
from allotment._allocators.caching.contents cimport Contents
from allotment._allocators.caching.limits cimport Limits
from allotment._allocators.parts cimport Part
from allotment._core.contract.raising cimport check_status
from allotment._core.contract.table cimport OK, status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.engine cimport engine_leave, engine_try_enter
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.mechanism.failure cimport pool_failed
from allotment._core.mechanism.pausing cimport (
    ExtentList, pause_begin, pause_end, pause_extents, pause_undo, resume_begin, resume_end)
from allotment._core.mechanism.pool cimport pool_absent, pool_find
from allotment._core.mechanism.reclaim cimport forget_idle_tags
from allotment._core.model.model cimport (
    ASLEEP, AWAKE, FAILED_PAUSED, FOR_TAGS, Block, Failure, Pool as EnginePool, Range)
from allotment._core.records.tags cimport tag_name, tag_pool_id
from allotment._core.records.tenants cimport tenant_context, tenant_name, tenant_of
from allotment._core.tools.arguments cimport read_callable

import threading

from allotment.errors import OutOfMemoryError, PausedError, PoolError, RequestError, UnsupportedError


cdef int sort_by_tenant(const Range* range_, uint32_t who, set mine, dict others) except -1:
    """The blocks in use of a range and those that follow it. pre: inside"""
    cdef const Block* block
    while range_ != NULL:
        pool = (range_.free_list.half.pool.first, range_.free_list.half.pool.second)
        block = range_.head
        while block != NULL:
            if block.allocated and tenant_of(block.context) == who:
                mine.add(pool)
            elif block.allocated and pool not in others:
                others[pool] = f"the block at {block.address:#x} of {tenant_name(block.context) or 'no tenant'}"
            block = block.next
        range_ = range_.next
    return 0


@cython.final
cdef class Sleep(Part):
    """Sleep(allocator)\n--\n
    Tags and pools whose memory is given back while their addresses stay: `allocator.sleep`.

    Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

    def pause(self, tag: str | Pool | Tenant, *, keep: str = "host") -> int:
        """See `Allocator.pause`."""
        if keep not in ("host", "nothing"):
            raise RequestError(f'keep is "host" or "nothing", not {keep!r}')
        owner = tag.name if Limits(self.allocator).is_tenant(tag) else None
        released = 0
        for first, second in self.pools_to_pause(tag):
            released += self.pause_pool(first, second, keep == "host", owner)
        return released

    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | None = None) -> None:
        """See `Allocator.resume`."""
        if progress is not None:
            read_callable(progress, "progress")
        self.finish_resume(self.begin_resume(self.pools_to_resume(tag)), progress)

    def resume_in_background(
        self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | None = None
    ) -> Future[None]:
        """`resume`, with contents that come back while the caller goes on; gives what can be waited for.

        When this returns, memory is mapped under all addresses, or OutOfMemoryError, DeviceError or PoolError was
        raised and it is asleep as before. The contents are copied by a thread, on streams of its own; `progress` is
        called there. Until `result()` of the future returns, the memory must not be used and requests for it raise
        PausedError; if `result()` raises, it is asleep as before. `close` waits for it. Safe to call from several
        threads.
        """
        from concurrent.futures import Future     # late: few programs need it
        if progress is not None:
            read_callable(progress, "progress")
        cdef list job = []      # the pools to wake, as one item: removed by the thread, or by the caller to undo it all
        future = Future()
        future.set_running_or_notify_cancel()
        thread = threading.Thread(target=self._finish_resume, args=(job, progress, future), name="allotment resume")
        pools = self.pools_to_resume(tag)
        self.allocator.waking.add(thread)
        try:
            job.append(self.begin_resume(pools))
            thread.start()
        except BaseException:
            # If the interrupt came late, the thread runs already, and completes what it was given.
            if len(job) > 0:
                self.sleep_on(job.pop())
                self.allocator.waking.discard(thread)
            elif thread.ident is None:
                self.allocator.waking.discard(thread)
            raise
        return future

    def _finish_resume(
        self, job: list[list[PoolId]], progress: Callable[[int, int], None] | None, future: Future[None]
    ) -> None:
        """What the thread of `resume_in_background` runs."""
        try:
            if job:
                self.finish_resume(job.pop(), progress)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        finally:
            self.allocator.waking.discard(threading.current_thread())

    # --- what stands for which pools ---

    cdef list pools_named(self, object whose):
        cdef uint64_t first = 0, second = 0
        if Limits(self.allocator).is_tenant(whose):
            return None
        Limits(self.allocator).find_pool(whose, &first, &second)
        return [(first, second)]

    cdef list pools_to_pause(self, object whose):
        cdef list named = self.pools_named(whose)
        if named is not None:
            return named
        mine, others = self.pools_of_tenant(whose.name)
        if not mine:
            raise PoolError(f"{whose!r} has no block that could be paused")
        if (0, 0) in mine:
            raise UnsupportedError(
                f"{whose!r} has blocks in the default pool, whose pages others share, and which cannot be paused; "
                "allocate inside `with allotment.tag(name):` or in a pool of its own", operation="pause")
        for first, second in mine:
            if (first, second) in others:
                raise PausedError(
                    f"{whose!r} cannot be paused: {others[(first, second)]} is in {self.words_of_pool(first, second)} "
                    "too, where pages are shared; give each a tag or a pool of its own, or pause that")
        return sorted(mine)

    cdef list pools_to_resume(self, object whose):
        cdef list named = self.pools_named(whose)
        if named is not None:
            return named
        self.forget_gone()
        mine, _ = self.pools_of_tenant(whose.name)
        return sorted(
            pool for pool in list(self.allocator.kept)
            if pool in mine or self.allocator.paused_for.get(pool) == whose.name)

    cdef tuple pools_of_tenant(self, str name):
        cdef EnginePool* pool = &self.allocator.engine.defaults
        cdef uint32_t who = tenant_of(tenant_context(name))
        cdef bint collects = self.allocator.enter_making_objects()
        mine, others = set(), {}
        try:
            sort_by_tenant(self.allocator.engine.first_range, who, mine, others)
            while pool != NULL:
                if pool.placement.ranges != NULL:
                    sort_by_tenant(pool.placement.ranges(self.allocator.engine, pool), who, mine, others)
                pool = self.allocator.engine.first_pool if pool == &self.allocator.engine.defaults else pool.next
        finally:
            self.allocator.leave_making_objects(collects)
        return mine, others

    def paused(self) -> set[str | PoolId]:
        """See `Allocator.paused`."""
        self.forget_gone()
        return {self.name_of_pool(first, second) for first, second in list(self.allocator.kept)}

    cdef int forget_gone(self) except -1:
        """Contents of pools that are gone are wanted by nobody. Another one, awake, may have the id by now."""
        cdef EnginePool* pool
        cdef bint sleeps
        for first, second in list(self.allocator.kept):
            self.allocator.enter()
            pool = pool_find(self.allocator.engine, first, second)
            sleeps = pool != NULL and pool.sleep != AWAKE
            engine_leave(self.allocator.engine)
            if not sleeps:
                self.allocator.kept.pop((first, second), None)
                self.allocator.paused_for.pop((first, second), None)
        return 0

    def tags(self) -> dict[str, dict[str, int]]:
        """By name, in order of their last request, the "reserved_bytes" of each tag and the bytes that are "paused"."""
        cdef EnginePool* pool
        cdef list found = []
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            pool = self.allocator.engine.first_pool
            while pool != NULL:
                if pool.tag != 0:
                    found.append((pool.used_at, tag_name(pool.tag), pool.reserved_bytes,
                                  pool.small.away + pool.large.away))
                pool = pool.next
        finally:
            self.allocator.leave_making_objects(collects)
        return {name: {"reserved_bytes": reserved, "paused": away} for _, name, reserved, away in sorted(found)}

    cdef object name_of_pool(self, uint64_t first, uint64_t second):
        return tag_name(<uint32_t> (second - tag_pool_id(0))) if second > tag_pool_id(0) else (first, second)

    def _notice_tags(self) -> None:
        """Look from now on which tag a request is in."""
        self.allocator.enter()
        self.allocator.engine.slow_path_reasons |= FOR_TAGS
        engine_leave(self.allocator.engine)

    def _forget_idle_tags(self) -> None:
        """Forget the tags that have neither memory nor a limit here."""
        cdef Failure failure
        cdef bint ok
        self.allocator.enter()
        with nogil:
            ok = forget_idle_tags(self.allocator.engine, &failure)
            self.allocator.leave(ok, &failure)

    cdef EnginePool* found(self, uint64_t first, uint64_t second, Failure* failure) noexcept:
        cdef EnginePool* pool = pool_find(self.allocator.engine, first, second)
        if pool == NULL:
            pool_absent(self.allocator.engine, first, second, failure)
        return pool

    # A pool that is neither awake nor asleep can be used by nobody. So no Python code runs between a `begin` and its
    # `end` outside of a `try`, and what undoes a `begin` is C that neither fails nor can be interrupted.

    cdef void enter_to_end(self) noexcept:
        """`enter`, without anything that runs Python code. pre: not inside"""
        if not engine_try_enter(self.allocator.engine):
            self.allocator.wait_outside()

    cdef bytes_t pause_pool(self, uint64_t first, uint64_t second, bint keep, object owner) except? 0:
        cdef Contents contents = Contents.__new__(Contents)
        cdef tuple key = (first, second)
        cdef list ranges = []
        cdef ExtentList extents
        cdef EnginePool* pool
        cdef Failure failure
        cdef bytes_t before
        cdef bint ok, asleep
        memset(&extents, 0, sizeof(ExtentList))
        self.allocator.enter()
        pool = self.found(first, second, &failure)
        asleep = pool != NULL and pool.sleep == ASLEEP
        with nogil:
            ok = pool != NULL and pause_begin(self.allocator.engine, pool, &failure)
            if ok and keep and not asleep and not pause_extents(self.allocator.engine, pool, &extents, &failure):
                pause_undo(self.allocator.engine, pool)
                ok = False
            self.allocator.leave(ok, &failure)
        if not asleep:
            try:
                self.falls_asleep(first, second)
                if keep:
                    contents.plan(self.allocator.device, &extents)
                    contents.obtain()
                    contents.save()
                ranges = self.ranges_of(first, second)
                self.note_asleep(ranges, self.words_of_pool(first, second))
                if owner is not None:
                    self.allocator.paused_for[key] = owner
                self.allocator.kept[key] = contents if keep else None
            except BaseException:
                self.enter_to_end()
                pause_undo(self.allocator.engine, pool)
                engine_leave(self.allocator.engine)
                self.allocator.paused_for.pop(key, None)
                contents.drop()
                self.forget_asleep(ranges)
                self.has_woken(first, second, True)
                raise
            finally:
                free(extents.extents)
        self.enter_to_end()
        pool = self.found(first, second, &failure)
        if asleep and pool != NULL and pool.sleep != ASLEEP:    # another thread wakes it, and needs its pages
            engine_leave(self.allocator.engine)
            return 0
        before = pool.reserved_bytes if pool != NULL else 0
        with nogil:
            ok = pool != NULL and pause_end(self.allocator.engine, pool, &failure)
            before -= pool.reserved_bytes if pool != NULL else 0
            self.allocator.leave(ok, &failure)
        return before

    cdef list begin_resume(self, list pools):
        cdef list begun = []
        try:
            for first, second in pools:
                try:
                    self.begin_resume_pool(first, second, begun)
                except OutOfMemoryError as error:
                    if not self.allocator.has_handlers():
                        raise
                    self.begin_with_handlers(first, second, error, begun)
        except BaseException:
            self.sleep_on(begun)
            raise
        return begun

    cdef int begin_with_handlers(self, uint64_t first, uint64_t second, object error, list begun) except -1:
        handling = self.allocator.handlers.begin()
        if handling is None:
            raise error
        try:
            while handling.wants_another_try(error.facts):
                try:
                    return self.begin_resume_pool(first, second, begun)
                except OutOfMemoryError as again:
                    error = again
        finally:
            self.allocator.handlers.end()
        raise error

    cdef int begin_resume_pool(self, uint64_t first, uint64_t second, list begun) except -1:
        """Append it to `begun`, unless it is awake."""
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= EVERYTHING else 0
        cdef EnginePool* pool
        cdef Failure failure
        cdef bint ok, awake
        self.allocator.enter()
        pool = self.found(first, second, &failure)
        awake = pool != NULL and pool.sleep == AWAKE
        if awake:
            engine_leave(self.allocator.engine)
            return 0
        begun.append((first, second))       # first: it must be known before there is anything to undo
        with nogil:
            ok = pool != NULL and resume_begin(self.allocator.engine, pool, context, &failure)
            engine_leave(self.allocator.engine)
        if not ok:
            begun.pop()
            raise self.allocator.failed(&failure)
        return 0

    cdef int finish_resume(self, list pools, object progress) except -1:
        """Contents for pools that have memory again. Those that do not get theirs sleep on."""
        cdef list left = list(pools)
        try:
            while left:
                first, second = left[0]
                self.finish_resume_pool(first, second, progress, left)
        except BaseException:
            self.sleep_on(left)
            raise
        return 0

    cdef int restore(self, Contents contents, uint64_t first, uint64_t second, object progress) except -1:
        """What is in blocks in use: those that were freed meanwhile may have no memory. pre: waking"""
        cdef ExtentList wanted
        cdef EnginePool* pool
        cdef Failure failure
        cdef bint ok
        memset(&wanted, 0, sizeof(ExtentList))
        self.allocator.enter()
        pool = self.found(first, second, &failure)
        ok = pool != NULL and pause_extents(self.allocator.engine, pool, &wanted, &failure)
        try:
            self.allocator.leave(ok, &failure)
            contents.restore(&wanted, progress)
        finally:
            free(wanted.extents)
        return 0

    cdef int finish_resume_pool(self, uint64_t first, uint64_t second, object progress, list left) except -1:
        """Remove it from `left` as soon as it is awake."""
        cdef tuple key = (first, second)
        cdef Contents contents = self.allocator.kept[key]
        cdef list ranges = self.ranges_of(first, second)
        cdef EnginePool* pool
        cdef Failure failure
        if contents is not None:
            self.restore(contents, first, second, progress)
        self.enter_to_end()
        pool = self.found(first, second, &failure)
        resume_end(self.allocator.engine, pool)
        engine_leave(self.allocator.engine)
        left.pop(0)
        self.allocator.kept.pop(key, None)
        self.allocator.paused_for.pop(key, None)
        self.has_woken(first, second, contents is not None)
        self.forget_asleep(ranges)
        if contents is not None:
            contents.drop()
        return 0

    cdef void sleep_on(self, list pools) noexcept:
        cdef EnginePool* pool
        cdef Failure failure
        cdef uint64_t first, second
        for first, second in pools:
            self.enter_to_end()
            pool = self.found(first, second, &failure)
            with nogil:
                pause_end(self.allocator.engine, pool, &failure)
                engine_leave(self.allocator.engine)

    cdef list ranges_of(self, uint64_t first, uint64_t second):
        cdef list found = []
        cdef Range* range_
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            range_ = self.allocator.engine.first_range
            while range_ != NULL:
                if range_.free_list.half.pool.first == first and range_.free_list.half.pool.second == second:
                    found.append((range_.base, range_.size))
                range_ = range_.next
        finally:
            self.allocator.leave_making_objects(collects)
        return found

    cdef int falls_asleep(self, uint64_t first, uint64_t second) except -1:
        cdef status_t status = OK
        sanitizer = self.allocator.sanitizer
        if sanitizer is not None and sanitizer.asleep((first, second), self.ranges_of(first, second)):
            with nogil:
                status = self.allocator.engine.table.device_synchronize(self.allocator.engine.table.self)
            check_status(self.allocator.device, status, "device_synchronize")
        return 0

    cdef int has_woken(self, uint64_t first, uint64_t second, bint kept) except -1:
        if self.allocator.sanitizer is not None:
            self.allocator.sanitizer.awake((first, second), kept=kept)
        return 0

    cdef int note_asleep(self, list ranges, str words) except -1:
        """Let a device that can tell who is touched know."""
        note = getattr(self.allocator.device, "_note_asleep", None)
        if note is not None:
            note(ranges, words)
        return 0

    cdef int forget_asleep(self, list ranges) except -1:
        forget = getattr(self.allocator.device, "_forget_asleep", None)
        if forget is not None:
            forget(ranges)
        return 0

    cdef str words_of_pool(self, uint64_t first, uint64_t second):
        name = self.name_of_pool(first, second)
        return f"tag {name!r}" if isinstance(name, str) else f"pool {name}"

    cdef int require_awake(self, address_t address) except -1:
        cdef Block* block
        cdef Failure failure
        cdef bint awake = True
        if not self.allocator.kept:
            return 0
        self.allocator.enter()
        block = block_at(self.allocator.engine, address)
        if block != NULL and block.free_list.half.pool.sleep != AWAKE:
            awake = pool_failed(
                &failure, FAILED_PAUSED, block.free_list.half.pool.first, block.free_list.half.pool.second)
        self.allocator.leave(awake, &failure)
        return 0
