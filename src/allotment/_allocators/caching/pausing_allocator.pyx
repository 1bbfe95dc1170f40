cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.caching.contents cimport Contents
from allotment._allocators.caching.engine_allocator cimport EVERYTHING
from allotment._allocators.caching.limiting_allocator cimport LimitingAllocator
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

from allotment.errors import DeviceError, OutOfMemoryError, PausedError, PoolError, RequestError, UnsupportedError


cdef int sort_by_tenant(const Range* range_, uint32_t who, set mine, dict others) except -1:
    """The blocks in use of a range and those that follow it. pre: inside"""
    cdef const Block* block
    while range_ != NULL:
        pool = (range_.shelf.rack.pool.first, range_.shelf.rack.pool.second)
        block = range_.head
        while block != NULL:
            if block.allocated and tenant_of(block.context) == who:
                mine.add(pool)
            elif block.allocated and pool not in others:
                others[pool] = f"the block at {block.address:#x} of {tenant_name(block.context) or 'no tenant'}"
            block = block.next
        range_ = range_.next
    return 0


@cython.no_gc_clear
cdef class PausingAllocator(LimitingAllocator):
    """An engine whose tags can be paused; users hold an `Allocator`."""

    def __cinit__(self, *args, **kwargs):
        self.kept = {}
        self.paused_for = {}
        self.waking = set()

    def pause(self, tag: str | Pool | Tenant, *, keep: str = "host") -> int:
        """Give the physical memory of a tag back to the device, and keep every address; gives how many bytes went.

        `keep` is "host": what is in blocks in use is copied to host memory first, and comes back at `resume`; or
        "nothing". `tag` is the name of a tag, a Pool whose memory is virtual (expandable segments), or a Tenant all of
        whose blocks are in such pools and tags, where no one else has any. Until it is resumed, requests for it raise
        PausedError, its blocks may be freed, and touching them is an error: on the host the process ends, with a
        message that names the tag. Graphs that use them stay as they are.

        Waits for all work of the device. If it fails, the memory is as it was, or asleep already and the rest of it can
        be paused again. A second time, nothing happens. Raises PoolError if nothing was ever allocated in this tag,
        PausedError if another process has a block of it open, a tenant shares its pages with others, or it is being
        paused or resumed now, UnsupportedError on devices without virtual memory, DeviceError, and MemoryError if the
        host has no room for the contents. Safe to call from several threads.
        """
        if keep not in ("host", "nothing"):
            raise RequestError(f'keep is "host" or "nothing", not {keep!r}')
        owner = tag.name if self.is_tenant(tag) else None
        released = 0
        for first, second in self.pools_to_pause(tag):
            released += self.pause_pool(first, second, keep == "host", owner)
        return released

    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Map memory under the addresses of what was paused, and bring its contents back.

        `progress(done, total)` is called with bytes on the way, for each pool. If it cannot be done, because the memory
        was taken meanwhile or a call fails, it is asleep as before and nothing is lost: it can be tried again. For
        want of memory the cache is given back first, and the steps of `on_out_of_memory` are asked. What is not paused
        stays as it is. Raises OutOfMemoryError, DeviceError, PoolError, and what `progress` raises. Safe to call from
        several threads.
        """
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
        self.waking.add(thread)
        try:
            job.append(self.begin_resume(pools))
            thread.start()
        except BaseException:
            # If the interrupt came late, the thread runs already, and completes what it was given.
            if len(job) > 0:
                self.sleep_on(job.pop())
                self.waking.discard(thread)
            elif thread.ident is None:
                self.waking.discard(thread)
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
            self.waking.discard(threading.current_thread())

    cdef int drain(self) except -1:
        for thread in list(self.waking):
            if thread is not threading.current_thread():
                thread.join()
        return LimitingAllocator.drain(self)

    # --- what stands for which pools ---

    cdef list pools_named(self, object whose):
        cdef uint64_t first = 0, second = 0
        if self.is_tenant(whose):
            return None
        self.find_pool(whose, &first, &second)
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
        self.pools_went()
        mine, _ = self.pools_of_tenant(whose.name)
        return sorted(pool for pool in self.kept if pool in mine or self.paused_for.get(pool) == whose.name)

    cdef tuple pools_of_tenant(self, str name):
        cdef EnginePool* pool = &self.engine.defaults
        cdef uint32_t who = tenant_of(tenant_context(name))
        cdef bint collects = self.enter_making_objects()
        mine, others = set(), {}
        try:
            sort_by_tenant(self.engine.first_range, who, mine, others)
            while pool != NULL:
                if pool.placement.ranges != NULL:
                    sort_by_tenant(pool.placement.ranges(self.engine, pool), who, mine, others)
                pool = self.engine.first_pool if pool == &self.engine.defaults else pool.next
        finally:
            self.leave_making_objects(collects)
        return mine, others

    def paused(self) -> set[str | PoolId]:
        """What is paused now: the names of tags, and the ids of pools."""
        self.pools_went()
        return {self.name_of_pool(first, second) for first, second in self.kept}

    cdef int pools_went(self) except -1:
        """Contents of pools that are gone are wanted by nobody. Another one, awake, may have the id by now."""
        cdef EnginePool* pool
        cdef bint sleeps
        for first, second in list(self.kept):
            self.enter()
            pool = pool_find(self.engine, first, second)
            sleeps = pool != NULL and pool.sleep != AWAKE
            engine_leave(self.engine)
            if not sleeps:
                self.kept.pop((first, second), None)
                self.paused_for.pop((first, second), None)
        return 0

    def tags(self) -> dict[str, dict[str, int]]:
        """By name, in order of their last request, the "reserved_bytes" of each tag and the bytes that are "paused"."""
        cdef EnginePool* pool
        cdef list found = []
        cdef bint collects = self.enter_making_objects()
        try:
            pool = self.engine.first_pool
            while pool != NULL:
                if pool.tag != 0:
                    found.append((pool.used_at, tag_name(pool.tag), pool.reserved_bytes,
                                  pool.small.away + pool.large.away))
                pool = pool.next
        finally:
            self.leave_making_objects(collects)
        return {name: {"reserved_bytes": reserved, "paused": away} for _, name, reserved, away in sorted(found)}

    cdef object name_of_pool(self, uint64_t first, uint64_t second):
        return tag_name(<uint32_t> (second - tag_pool_id(0))) if second > tag_pool_id(0) else (first, second)

    def _notice_tags(self) -> None:
        """Look from now on which tag a request is in."""
        self.enter()
        self.engine.attention |= FOR_TAGS
        engine_leave(self.engine)

    def _forget_idle_tags(self) -> None:
        """Let go of the tags that have neither memory nor a limit here."""
        cdef Failure failure
        cdef bint ok
        self.enter()
        with nogil:
            ok = forget_idle_tags(self.engine, &failure)
            self.leave(ok, &failure)

    cdef EnginePool* found(self, uint64_t first, uint64_t second, Failure* failure) noexcept:
        cdef EnginePool* pool = pool_find(self.engine, first, second)
        if pool == NULL:
            pool_absent(self.engine, first, second, failure)
        return pool

    # A pool that is neither awake nor asleep can be used by nobody. So no Python code runs between a `begin` and its
    # `end` outside of a `try`, and what undoes a `begin` is C that neither fails nor can be interrupted.

    cdef void enter_to_end(self) noexcept:
        """`enter`, without anything that runs Python code. pre: not inside"""
        if not engine_try_enter(self.engine):
            self.wait_outside()

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
        self.enter()
        pool = self.found(first, second, &failure)
        asleep = pool != NULL and pool.sleep == ASLEEP
        with nogil:
            ok = pool != NULL and pause_begin(self.engine, pool, &failure)
            if ok and keep and not asleep and not pause_extents(self.engine, pool, &extents, &failure):
                pause_undo(self.engine, pool)
                ok = False
            self.leave(ok, &failure)
        if not asleep:
            try:
                self.falls_asleep(first, second)
                if keep:
                    contents.plan(self.device, &extents)
                    contents.obtain()
                    contents.save()
                ranges = self.ranges_of(first, second)
                self.note_asleep(ranges, self.words_of_pool(first, second))
                if owner is not None:
                    self.paused_for[key] = owner
                self.kept[key] = contents if keep else None
            except BaseException:
                self.enter_to_end()
                pause_undo(self.engine, pool)
                engine_leave(self.engine)
                self.paused_for.pop(key, None)
                contents.drop()
                self.forget_asleep(ranges)
                self.has_woken(first, second, True)
                raise
            finally:
                free(extents.extents)
        self.enter_to_end()
        pool = self.found(first, second, &failure)
        before = pool.reserved_bytes if pool != NULL else 0
        with nogil:
            ok = pool != NULL and pause_end(self.engine, pool, &failure)
            before -= pool.reserved_bytes if pool != NULL else 0
            self.leave(ok, &failure)
        return before

    cdef list begin_resume(self, list pools):
        cdef list begun = []
        try:
            for first, second in pools:
                try:
                    self.begin_resume_pool(first, second, begun)
                except OutOfMemoryError as error:
                    if not self.has_say():
                        raise
                    self.begin_by_chain(first, second, error, begun)
        except BaseException:
            self.sleep_on(begun)
            raise
        return begun

    cdef int begin_by_chain(self, uint64_t first, uint64_t second, object error, list begun) except -1:
        turn = self.chain.begin()
        if turn is None:
            raise error
        try:
            while turn.wants_another_try(error.facts):
                try:
                    return self.begin_resume_pool(first, second, begun)
                except OutOfMemoryError as again:
                    error = again
        finally:
            self.chain.end()
        raise error

    cdef int begin_resume_pool(self, uint64_t first, uint64_t second, list begun) except -1:
        """Append it to `begun`, unless it is awake."""
        cdef uint32_t context = self.stack_now() if self.level >= EVERYTHING else 0
        cdef EnginePool* pool
        cdef Failure failure
        cdef bint ok, awake
        self.enter()
        pool = self.found(first, second, &failure)
        awake = pool != NULL and pool.sleep == AWAKE
        if awake:
            engine_leave(self.engine)
            return 0
        begun.append((first, second))       # first: it must be known before there is anything to undo
        with nogil:
            ok = pool != NULL and resume_begin(self.engine, pool, context, &failure)
            engine_leave(self.engine)
        if not ok:
            begun.pop()
            raise self.failed(&failure)
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
        self.enter()
        pool = self.found(first, second, &failure)
        ok = pool != NULL and pause_extents(self.engine, pool, &wanted, &failure)
        try:
            self.leave(ok, &failure)
            contents.restore(&wanted, progress)
        finally:
            free(wanted.extents)
        return 0

    cdef int finish_resume_pool(self, uint64_t first, uint64_t second, object progress, list left) except -1:
        """Remove it from `left` as soon as it is awake."""
        cdef tuple key = (first, second)
        cdef Contents contents = self.kept[key]
        cdef list ranges = self.ranges_of(first, second)
        cdef EnginePool* pool
        cdef Failure failure
        if contents is not None:
            self.restore(contents, first, second, progress)
        self.enter_to_end()
        pool = self.found(first, second, &failure)
        resume_end(self.engine, pool)
        engine_leave(self.engine)
        left.pop(0)
        self.kept.pop(key, None)
        self.paused_for.pop(key, None)
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
                pause_end(self.engine, pool, &failure)
                engine_leave(self.engine)

    cdef list ranges_of(self, uint64_t first, uint64_t second):
        cdef list found = []
        cdef Range* range_
        cdef bint collects = self.enter_making_objects()
        try:
            range_ = self.engine.first_range
            while range_ != NULL:
                if range_.shelf.rack.pool.first == first and range_.shelf.rack.pool.second == second:
                    found.append((range_.base, range_.size))
                range_ = range_.next
        finally:
            self.leave_making_objects(collects)
        return found

    cdef int falls_asleep(self, uint64_t first, uint64_t second) except -1:
        return 0

    cdef int has_woken(self, uint64_t first, uint64_t second, bint kept) except -1:
        return 0

    cdef int note_asleep(self, list ranges, str words) except -1:
        """Let a device that can tell who is touched know."""
        note = getattr(self.device, "_note_asleep", None)
        if note is not None:
            note(ranges, words)
        return 0

    cdef int forget_asleep(self, list ranges) except -1:
        forget = getattr(self.device, "_forget_asleep", None)
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
        if not self.kept:
            return 0
        self.enter()
        block = block_at(self.engine, address)
        if block != NULL and block.shelf.rack.pool.sleep != AWAKE:
            awake = pool_failed(
                &failure, FAILED_PAUSED, block.shelf.rack.pool.first, block.shelf.rack.pool.second)
        self.leave(awake, &failure)
        return 0

    cdef object failed(self, const Failure* failure):
        error = LimitingAllocator.failed(self, failure)
        if self.kept and isinstance(error, DeviceError):
            error.add_note(f"paused on {self.device.name} at this time: {sorted(map(str, self.paused()))}; work that "
                           "touches such memory makes the device fail")
        return error
