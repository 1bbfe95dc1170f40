cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.caching.allocator cimport EVERYTHING, Allocator
from allotment._allocators.caching.contents cimport Contents
from allotment._allocators.caching.copying cimport Ring, new_ring
from allotment._allocators.caching.limits cimport Limits
from allotment._allocators.parts cimport Part
from allotment._core.contract.raising cimport check_status
from allotment._core.contract.table cimport OK, status_t
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.engine cimport engine_leave, engine_try_enter
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.mechanism.pausing cimport (
    ExtentList, pause_begin, pause_end, pause_extents, pause_undo, resume_begin, resume_end)
from allotment._core.mechanism.pool cimport pause_failed, pool_absent, pool_find
from allotment._core.mechanism.reclaim cimport forget_idle_tags
from allotment._core.model.model cimport (
    ASLEEP, AWAKE, FAILED_PAUSED, FOR_TAGS, Block, Failure, Pool as EnginePool, Range)
from allotment._core.records.tags cimport tag_name, tag_pool_id
from allotment._core.records.tenants cimport tenant_context, tenant_name, tenant_of
from allotment._core.tools.arguments cimport read_callable

import threading

from allotment.errors import OutOfMemoryError, PausedError, PoolError, UnsupportedError


cdef int sort_by_tenant(const Range* range_, uint32_t who, set mine, dict others) except -1:
    """Return the blocks in use of a range and those that follow it. pre: inside"""
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


cdef class Pausing:
    """A pool on its way to sleep. `moving`: it is neither awake nor asleep, which `undo_pauses` and `end_pause` end."""


cdef class Waking:
    """A pool on its way to be awake, with what its blocks want of the contents."""

    def __dealloc__(self):
        free(self.wanted.extents)


@cython.final
cdef class PartOf:
    """Reports progress of a part as progress of the whole."""

    cdef object progress
    cdef bytes_t before, total

    def __call__(self, done, total):
        self.progress(self.before + done, self.total)


cdef object part_of(object progress, bytes_t before, bytes_t total):
    cdef PartOf part
    if progress is None:
        return None
    part = PartOf.__new__(PartOf)
    part.progress, part.before, part.total = progress, before, total
    return part


@cython.final
cdef class Sleep(Part):
    """Sleep(allocator)\n--\n
    Tags and pools whose memory is given back while their addresses stay: `allocator.sleep`.

    Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

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
        """See `Allocator.pause`."""
        from allotment._allocators.caching.bar import progress_shown    # imported late: few programs need them
        from allotment._allocators.caching.keeping import Keeping

        keeping = Keeping(keep, keep_host, folder, host_limit)
        owner = tag.name if Limits(self.allocator).is_tenant(tag) else None
        with progress_shown(progress, f"pausing {tag!r}") as report:
            self.forget_gone()
            return self.pause_pools(self.pools_to_pause(tag), keeping, report, owner)

    def contents_of(self, address: int, size: int) -> memoryview | None:
        """The contents of paused memory, read-only, as they are kept on the host; None if they are not there.

        `address` and `size` are those of a block in use when it was paused, or of a part of one. For memory that is
        awake again, the contents at the last pause, while `keep_host` keeps the pages. After the next pause or resume
        its bytes are arbitrary; it keeps the pages until it is gone.
        """
        cdef Contents contents
        cdef address_t start = address
        cdef bytes_t length = size
        key = self.pool_around(start)   # of the addresses as they are used now: another pool may have had them before
        contents = self.allocator.kept.get(key) or self.allocator.host_copies.get(key)
        return None if contents is None else contents.view(start, length)

    def release_host_copy(self, tag: str | Pool | Tenant) -> int:
        """Release the host pages that `keep_host` keeps for memory that is awake; return their bytes."""
        cdef Contents contents
        released = 0
        for key in self.pools_to_pause(tag):
            contents = self.allocator.host_copies.pop(key, None)
            if contents is not None:
                released += contents.total
                contents.drop(self.ring())
        return released

    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | bool | None = None) -> None:
        """See `Allocator.resume`."""
        from allotment._allocators.caching.bar import progress_shown    # imported late: few programs need it

        with progress_shown(progress, f"resuming {tag!r}") as report:
            self.finish_resume(self.begin_resume(self.pools_to_resume(tag)), report)

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
        from concurrent.futures import Future     # imported late: few programs need it
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
        return self.pools_with(first, second) if isinstance(whose, str) else [(first, second)]

    cdef list pools_with(self, uint64_t first, uint64_t second):
        """Return the pool of a tag and the pools made inside it, most often those of graph captures."""
        cdef list found = [(first, second)]
        cdef uint32_t tag = <uint32_t> (second - tag_pool_id(0))
        cdef bint collects = self.allocator.enter_making_objects()
        cdef EnginePool* pool = self.allocator.engine.first_pool
        try:
            while pool != NULL:
                if pool.sleeps_with == tag:
                    found.append((pool.first, pool.second))
                pool = pool.next
        finally:
            self.allocator.leave_making_objects(collects)
        return found

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
        cdef list named
        self.forget_gone()
        named = self.pools_named(whose)
        if named is not None:
            return named
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
        """Forget contents of pools that are gone or have no memory left. Another one, awake, may have the id by now."""
        cdef EnginePool* pool
        cdef bint collects
        cdef list gone = []     # released outside of the engine
        for key in {*self.allocator.kept, *self.allocator.host_copies}:
            first, second = key
            collects = self.allocator.enter_making_objects()
            try:
                pool = pool_find(self.allocator.engine, first, second)
                if pool == NULL or pool.sleep == AWAKE:
                    gone.append(self.allocator.kept.pop(key, None))
                    self.allocator.paused_for.pop(key, None)
                if pool == NULL or (
                        pool.sleep == AWAKE and pool.reserved_bytes + pool.small.away + pool.large.away == 0):
                    gone.append(self.allocator.host_copies.pop(key, None))
            finally:
                self.allocator.leave_making_objects(collects)
        return self.tell() if gone else 0

    def tags(self) -> dict[str, dict[str, int]]:
        """By name, in order of their last request, the "reserved_bytes" of each tag and the bytes that are "paused"."""
        cdef EnginePool* pool
        cdef list found = []
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            pool = self.allocator.engine.first_pool
            while pool != NULL:
                if pool.tag != 0 or pool.sleeps_with != 0:
                    found.append((pool.used_at, tag_name(pool.tag or pool.sleeps_with), pool.reserved_bytes,
                                  pool.small.away + pool.large.away))
                pool = pool.next
        finally:
            self.allocator.leave_making_objects(collects)
        figures = {name: {"reserved_bytes": 0, "paused": 0} for used_at, name, _, _ in sorted(found) if used_at > 0}
        for _, name, reserved, away in found:
            figures[name]["reserved_bytes"] += reserved
            figures[name]["paused"] += away
        return figures

    cdef object name_of_pool(self, uint64_t first, uint64_t second):
        cdef EnginePool* pool
        cdef uint32_t tag = 0
        if second > tag_pool_id(0):
            return tag_name(<uint32_t> (second - tag_pool_id(0)))
        self.allocator.enter()
        pool = pool_find(self.allocator.engine, first, second)
        tag = pool.sleeps_with if pool != NULL else 0
        pool = pool_find(self.allocator.engine, 0, tag_pool_id(tag)) if tag != 0 else NULL
        engine_leave(self.allocator.engine)
        # A pool that was paused by itself has its own name.
        return tag_name(tag) if pool != NULL and pool.sleep != AWAKE else (first, second)

    def pools_of(self, tag: str) -> list[PoolId]:
        """The ids of a tag's own pool and of those that sleep with it. Raises PoolError if it never had memory here."""
        return self.pools_named(tag)

    def _notice_tags(self) -> None:
        """From now on, check which tag a request is in."""
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

    def _bytes_to_keep(self, tag: str) -> int:
        """Return how many bytes of contents a pause of the tag would keep."""
        return self.bytes_in_use(self.pools_to_pause(tag))

    cdef bytes_t bytes_in_use(self, list pools) except? 0:
        """Return the contents to keep of these pools, without those that sleep already."""
        cdef bytes_t found = 0
        cdef ExtentList extents
        cdef EnginePool* pool
        cdef Failure failure
        cdef bint ok
        for first, second in pools:
            memset(&extents, 0, sizeof(ExtentList))
            self.allocator.enter()
            pool = self.found(first, second, &failure)
            ok = pool == NULL or pool.sleep == ASLEEP or pause_extents(self.allocator.engine, pool, &extents, &failure)
            free(extents.extents)
            self.allocator.leave(ok, &failure)
            found += extents.total
        return found

    cdef bytes_t pause_pools(self, list pools, object keeping, object progress, object owner) except? 0:
        """Pause all of them or none."""
        cdef list begun = []
        cdef bytes_t total = 0
        cdef bytes_t done = 0
        cdef bytes_t released = 0
        cdef object failure = None
        cdef Pausing pausing
        try:
            for first, second in pools:
                self.begin_pause(first, second, keeping, begun)
            for pausing in begun:
                total += pausing.contents.total
            self.check_keep(begun, keeping)
            keeping.check_host_limit(total)
            for pausing in begun:
                if pausing.moving:
                    self.save(pausing, keeping, part_of(progress, done, total))
                    done += pausing.contents.total
            for pausing in begun:
                if pausing.moving:
                    self.note_paused(pausing, keeping, owner)
        except BaseException:
            self.undo_pauses(begun)
            raise
        for pausing in begun:
            try:
                released += self.end_pause(pausing)
            except BaseException as error:      # that one sleeps all the same, and so must the rest
                failure = failure or error
        if failure is not None:
            raise failure
        return released

    cdef int begin_pause(self, uint64_t first, uint64_t second, object keeping, list begun) except -1:
        cdef bint keep = keeping.keep != "nothing"
        cdef Pausing pausing = Pausing.__new__(Pausing)
        cdef ExtentList extents
        cdef EnginePool* pool
        cdef Failure failure
        cdef bint ok
        pausing.key = (first, second)
        pausing.first, pausing.second = first, second
        pausing.contents = Contents.__new__(Contents)
        begun.append(pausing)       # first: it must be known before there is anything to undo
        memset(&extents, 0, sizeof(ExtentList))
        self.allocator.enter()
        pool = self.found(first, second, &failure)
        ok = pool != NULL
        if ok and pool.sleep != ASLEEP:
            with nogil:
                pausing.moving = ok = pause_begin(self.allocator.engine, pool, &failure)
                ok = ok and (not keep or pause_extents(self.allocator.engine, pool, &extents, &failure))
        try:
            self.allocator.leave(ok, &failure)
            if keep and pausing.moving:
                pausing.contents.plan(self.allocator.device, &extents)
        finally:
            free(extents.extents)
        return 0

    cdef int check_keep(self, list begun, object keeping) except -1:
        """Raise PausedError if all of them sleep already and one is kept elsewhere than the caller asks for now."""
        cdef Pausing pausing
        for pausing in begun:
            if pausing.moving:
                return 0
        for pausing in begun:
            kept = self.allocator.kept.get(pausing.key, pausing)
            if kept is pausing:         # another thread wakes it
                continue
            keep = "nothing" if kept is None else "file" if (<Contents> kept).file is not None else "host"
            if keep != keeping.keep:
                raise PausedError(
                    f"{self.words_of_pool(pausing.first, pausing.second)} is paused already, with keep={keep!r}, and "
                    f"stays so; resume it before you pause it with keep={keeping.keep!r}")
        return 0

    cdef int save(self, Pausing pausing, object keeping, object progress) except -1:
        self.falls_asleep(pausing.first, pausing.second)
        if keeping.keep == "host":
            pausing.contents.keep_host = keeping.keep_host
            pausing.contents.obtain_memory(self.allocator.host_copies.pop(pausing.key, None), self.ring())
        elif keeping.keep == "file":
            pausing.contents.obtain_file(keeping.folder)
        if keeping.keep != "nothing":
            pausing.contents.save(self.ring(), progress)
        return 0

    cdef int note_paused(self, Pausing pausing, object keeping, object owner) except -1:
        pausing.ranges = self.ranges_of(pausing.first, pausing.second)
        pausing.noted = True
        self.note_asleep(pausing.ranges, self.words_of_pool(pausing.first, pausing.second))
        if owner is not None:
            self.allocator.paused_for[pausing.key] = owner
        self.allocator.kept[pausing.key] = None if keeping.keep == "nothing" else pausing.contents
        if not keeping.keep_host:
            self.allocator.host_copies.pop(pausing.key, None)
        return self.tell()

    cdef int undo_pauses(self, list begun) except -1:
        cdef object failure = None
        cdef Pausing pausing
        cdef EnginePool* pool
        cdef Failure unused
        for pausing in begun:
            try:
                if pausing.noted:
                    self.allocator.paused_for.pop(pausing.key, None)
                    self.allocator.kept.pop(pausing.key, None)
                    self.forget_asleep(pausing.ranges)
                if pausing.moving:
                    pausing.contents.drop(None)
                    self.has_woken(pausing.first, pausing.second, True)
                self.tell()
            except BaseException as error:
                failure = failure or error
        self.enter_to_end()     # last: from here on, another thread may pause it
        for pausing in begun:
            if pausing.moving:
                pool = self.found(pausing.first, pausing.second, &unused)
                pause_undo(self.allocator.engine, pool)
        engine_leave(self.allocator.engine)
        if failure is not None:
            raise failure
        return 0

    cdef bytes_t end_pause(self, Pausing pausing) except? 0:
        cdef EnginePool* pool
        cdef Failure failure
        cdef bytes_t before
        cdef bint ok
        self.enter_to_end()
        pool = self.found(pausing.first, pausing.second, &failure)
        if not pausing.moving and pool != NULL and pool.sleep != ASLEEP:    # another thread wakes it: needs its pages
            engine_leave(self.allocator.engine)
            return 0
        before = pool.reserved_bytes if pool != NULL else 0
        with nogil:
            ok = pool != NULL and pause_end(self.allocator.engine, pool, &failure)
            before -= pool.reserved_bytes if pool != NULL else 0
            self.allocator.leave(ok, &failure)
        return before

    cdef Ring ring(self):
        with cython.critical_section(self.allocator):
            ring = self.allocator.ring
        if ring is not None:
            return ring
        made = new_ring(self.allocator.device)
        with cython.critical_section(self.allocator):
            if self.allocator.ring is None:     # otherwise another thread has made one meanwhile
                self.allocator.ring = made
            return self.allocator.ring

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
        """Contents for pools that have memory again; without all of them, all sleep on."""
        cdef list waking = []
        cdef bytes_t total = 0
        cdef bytes_t done = 0
        cdef Waking each
        try:
            for first, second in pools:
                waking.append(self.plan_waking(first, second))
            for each in waking:
                total += each.wanted.total
            for each in waking:
                if each.contents is not None:
                    each.contents.restore(self.ring(), &each.wanted, part_of(progress, done, total))
                    done += each.wanted.total
        except BaseException:
            self.sleep_on(pools)
            raise
        return self.wake(waking)

    cdef Waking plan_waking(self, uint64_t first, uint64_t second):
        """What is in blocks in use: those that were freed meanwhile may have no memory. pre: waking"""
        cdef Waking each = Waking.__new__(Waking)
        cdef EnginePool* pool
        cdef Failure failure
        cdef bint ok
        each.key = (first, second)
        each.first, each.second = first, second
        each.contents = self.allocator.kept[each.key]
        each.ranges = self.ranges_of(first, second)
        if each.contents is not None:
            self.allocator.enter()
            pool = self.found(first, second, &failure)
            ok = pool != NULL and pause_extents(self.allocator.engine, pool, &each.wanted, &failure)
            self.allocator.leave(ok, &failure)
        return each

    cdef int wake(self, list waking) except -1:
        cdef object failure = None
        cdef EnginePool* pool
        cdef Failure unused
        cdef Waking each
        for each in waking:
            try:
                self.allocator.kept.pop(each.key, None)
                self.allocator.paused_for.pop(each.key, None)
                if each.contents is not None and each.contents.keep_host:
                    self.allocator.host_copies[each.key] = each.contents
                self.has_woken(each.first, each.second, each.contents is not None)
                self.forget_asleep(each.ranges)
                self.tell()
            except BaseException as error:      # it is awake, and so are the rest
                failure = failure or error
        self.enter_to_end()     # last: from here on, another thread may pause it
        for each in waking:
            pool = self.found(each.first, each.second, &unused)
            resume_end(self.allocator.engine, pool)
        engine_leave(self.allocator.engine)
        for each in waking:
            try:
                if each.contents is not None and not each.contents.keep_host:
                    each.contents.drop(self.ring())
            except BaseException as error:
                failure = failure or error
        if failure is not None:
            raise failure
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

    def _tell(self, on_sleep: Callable[[], None]) -> None:
        """Call `on_sleep` whenever memory has fallen asleep, before it is released, and when it is awake again."""
        self.allocator.on_sleep = on_sleep

    cdef int tell(self) except -1:
        if self.allocator.on_sleep is not None:
            self.allocator.on_sleep()
        return 0

    def _ranges(self) -> list[tuple[int, int]]:
        """Address and size of each range of memory that is paused."""
        return [range_ for first, second in list(self.allocator.kept) for range_ in self.ranges_of(first, second)]

    def _require_awake(self, address: int) -> None:
        """Raise PausedError if an address lies in a range of paused memory."""
        pool = self.pool_around(address)
        if pool is not None:
            self._require_pool_awake(pool)

    def _require_pool_awake(self, pool: PoolId) -> None:
        """Raise PausedError if a pool is paused, or is being paused or resumed."""
        cdef Failure failure
        cdef EnginePool* found
        cdef bint awake = True
        first, second = pool
        self.allocator.enter()
        found = pool_find(self.allocator.engine, first, second)
        if found != NULL and found.sleep != AWAKE:
            awake = pause_failed(&failure, FAILED_PAUSED, found)
        self.allocator.leave(awake, &failure)

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

    cdef tuple pool_around(self, address_t address):
        """Return the id of the pool whose range contains an address; None if no range does."""
        cdef const Range* range_
        cdef tuple found = None
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            range_ = self.allocator.engine.first_range
            while range_ != NULL and found is None:
                if address - range_.base < range_.size:         # below it, it wraps around
                    found = (range_.free_list.half.pool.first, range_.free_list.half.pool.second)
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
        """Tell a device that reports accesses to paused memory which addresses these are."""
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
            awake = pause_failed(&failure, FAILED_PAUSED, block.free_list.half.pool)
        self.allocator.leave(awake, &failure)
        return 0
