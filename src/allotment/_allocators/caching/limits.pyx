cimport cython
from libc.stdint cimport uint32_t, uint64_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.tags cimport tag as tag_object
from allotment._allocators.parts cimport ObservedLimits
from allotment._allocators.upcalls cimport call_free_memory, remove_identity
from allotment._core.contract.types cimport bytes_t
from allotment._core.edge.walk cimport tenants_sum
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.limits cimport accounts_open, limits_set, soft_limit_set
from allotment._core.mechanism.pool cimport pool_absent, pool_find, pool_of_tag
from allotment._core.mechanism.shortage cimport callback_add, callback_remove
from allotment._core.model.model cimport Failure, Limits as EngineLimits, Pool as EnginePool, no_limit
from allotment._core.records.stats cimport frees_so_far
from allotment._core.records.tags cimport tag_number, tag_pool_id
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST, tenant_context
from allotment._core.tools.arguments cimport read_callable, read_pool_id

import operator

from allotment import _settings as config
from allotment._allocators.caching.handlers import Handlers
from allotment._allocators.caching.pool import Pool
from allotment.errors import PoolError, RequestError


cdef bytes_t read_limit(object given, bytes_t otherwise) except? 0:
    return otherwise if given is None else config.parse_size(given)


cdef object shown(bytes_t limit):
    return None if limit == no_limit() else limit


@cython.final
cdef class Limits(ObservedLimits):
    """Limits(allocator)\n--\n
    How much memory pools, tags and tenants may have, and the functions called when it runs out: `allocator.limits`.

    Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

    def set(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """See `Allocator.set_limit`."""
        cdef EngineLimits limits
        cdef uint64_t first = 0, second = 0
        cdef bint is_tenant = tag is not None and self.is_tenant(tag)
        if hard is ... and soft is ... and reserved is ...:
            raise RequestError(
                f"set_limit({tag!r}) has no limit: give hard=, soft= or reserved=; None removes a limit")
        hard, soft, reserved = [None if limit is ... else limit for limit in (hard, soft, reserved)]
        limits.hard = read_limit(hard, no_limit())
        limits.soft = read_limit(soft, no_limit())
        limits.guaranteed = read_limit(reserved, 0)
        if tag is None:
            if reserved is not None:
                raise RequestError(
                    "memory cannot be reserved for a whole allocator; reserve it for a tag or a pool")
            self.allocator.limit = hard
            self.allocator.enter()
            soft_limit_set(self.allocator.engine, limits.soft)
            engine_leave(self.allocator.engine)
            return
        if is_tenant:
            if soft is not None or reserved is not None:
                raise RequestError(
                    f"{tag!r} shares its cache with other tenants: it can only have a hard limit; a tag or a pool can "
                    "have the others")
            self.put_tenant_limit(tag.name, limits.hard)
            return
        self.find_pool(tag, &first, &second, True)
        self.put_limits(first, second, &limits)

    cdef bint is_tenant(self, object whose) except -1:
        """Whether `whose` is a tenant, not a tag or a pool. Raises for anything else."""
        from allotment._allocators.caching.tenants import Tenant     # imported late: tenants use allocators
        if isinstance(whose, (str, Pool)):
            return False
        if not isinstance(whose, Tenant) or whose.allocator is not self.allocator:
            raise TypeError(
                f"a tag's name, a Pool or a Tenant of {self.allocator!r} is needed, not "
                + (repr(whose) if isinstance(whose, Tenant) else type(whose).__name__))
        return True

    cdef int find_pool(self, object whose, uint64_t* first, uint64_t* second, bint make=False) except -1:
        cdef Failure failure
        cdef uint32_t tag
        cdef bint ok
        if isinstance(whose, Pool):
            if whose.allocator is not self.allocator:
                raise PoolError(f"{whose!r} is not a pool of {self.allocator!r}")
            return read_pool_id(whose.id, first, second)
        if not isinstance(whose, str):
            raise TypeError(f"a tag must be a text, not {type(whose).__name__}")
        if make:
            named = tag_object(whose)       # keeps the number until the pool uses it
            tag = (<tag_object> named).number
        else:
            tag = tag_number(whose, False)
        first[0] = 0
        second[0] = tag_pool_id(tag)
        self.allocator.enter()
        if make:
            ok = pool_of_tag(self.allocator.engine, tag, &failure) != NULL
            return self.allocator.leave(ok, &failure)
        ok = pool_find(self.allocator.engine, first[0], second[0]) != NULL
        engine_leave(self.allocator.engine)
        if not ok:
            raise PoolError(
                f"there is no tag {whose!r} on {self.allocator.device.name}: it was never used, or its memory is gone; "
                "allocate in it first")
        return 0

    cdef int read_limits(self, uint64_t first, uint64_t second, EngineLimits* limits) except -1:
        cdef Failure failure
        cdef EnginePool* pool
        self.allocator.enter()
        pool = pool_find(self.allocator.engine, first, second)
        if pool != NULL:
            limits[0] = pool.limits
        else:
            pool_absent(self.allocator.engine, first, second, &failure)
        self.allocator.leave(pool != NULL, &failure)
        return 0

    cdef int put_limits(self, uint64_t first, uint64_t second, const EngineLimits* limits) except -1:
        cdef Failure failure
        cdef EnginePool* pool
        self.allocator.enter()
        pool = pool_find(self.allocator.engine, first, second)
        if pool != NULL:
            limits_set(self.allocator.engine, pool, limits)
        else:
            pool_absent(self.allocator.engine, first, second, &failure)
        self.allocator.leave(pool != NULL, &failure)
        return 0

    cdef int put_tenant_limit(self, object name, bytes_t most) except -1:
        """Limit a tenant. From now on the engine counts what tenants hold, if it did not before."""
        cdef bytes_t[TENANTS_MOST][3] sums
        cdef uint32_t tenant = tenant_context(name) >> TENANT_SHIFT
        cdef int who
        cdef bint ok
        self.allocator.enter()
        with nogil:
            if self.allocator.engine.accounts == NULL:
                ok = accounts_open(self.allocator.engine)
                tenants_sum(self.allocator.engine, sums)
                for who in range(TENANTS_MOST if ok else 0):
                    self.allocator.engine.accounts[who].held = sums[who][1]
            else:
                ok = True
            if ok:
                self.allocator.engine.accounts[tenant].limit = most
            engine_leave(self.allocator.engine)
        if not ok:
            raise MemoryError("the host has no memory for the allocator's own records")
        return 0

    # --- out-of-memory handlers ---

    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """See `Allocator.on_out_of_memory`."""
        count = operator.index(tries)
        if count < 1:
            raise RequestError(f"on_out_of_memory: tries must be 1 or more, not {count}")
        with cython.critical_section(self.allocator):
            if self.allocator.handlers is None:
                self.allocator.handlers = Handlers()
        return self.allocator.handlers.add(read_callable(step, "a step"), count)

    def _frees_so_far(self) -> int:
        """Return a number that changes whenever a block is freed. Takes no lock."""
        return frees_so_far(&self.allocator.engine.stats)

    # --- for `Pool`, `Tenant` and metrics ---

    def _pool_limit(self, pool: PoolId) -> int | None:
        """Return the hard limit of a pool."""
        cdef EngineLimits limits
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        self.read_limits(first, second, &limits)
        return shown(limits.hard)

    def _set_pool_limit(self, pool: PoolId, limit: int | str | None) -> None:
        """Change the hard limit; the other limits stay."""
        cdef EngineLimits limits
        cdef uint64_t first, second
        cdef bytes_t most = read_limit(limit, no_limit())
        read_pool_id(pool, &first, &second)
        self.read_limits(first, second, &limits)
        limits.hard = most
        self.put_limits(first, second, &limits)

    def _tag_limit(self, name: str) -> int | None:
        """Return the hard limit of a tag. Raises PoolError if the tag does not exist."""
        cdef EngineLimits limits
        cdef uint64_t first, second
        self.find_pool(name, &first, &second)
        self.read_limits(first, second, &limits)
        return shown(limits.hard)

    def _tenant_limit(self, name: str) -> int | None:
        """Return how much a tenant may hold."""
        cdef uint32_t tenant = tenant_context(name) >> TENANT_SHIFT
        return None if self.allocator.engine.accounts == NULL else shown(self.allocator.engine.accounts[tenant].limit)

    def _set_tenant_limit(self, name: str, limit: int | str | None) -> None:
        """Limit how much a tenant may hold."""
        self.put_tenant_limit(name, read_limit(limit, no_limit()))

    # --- when memory is short ---

    def add_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call `callback()` at every cache miss, before the device is asked; it returns whether it freed anything.

        It runs on the requesting thread, and may use this allocator and others: no lock is held meanwhile. Its own
        requests are served without callbacks. Threads that miss at the same time run it at the same time.
        `sys.unraisablehook` gets its exceptions. Raises TypeError if it is not callable.
        """
        cdef bint ok = False
        read_callable(callback, "a free-memory callback")
        # Add it to the list before the engine refers to it; remove it again if the engine cannot be entered.
        self.allocator.callbacks.append(callback)
        try:
            self.allocator.enter()
            ok = callback_add(self.allocator.engine, call_free_memory, <void*> callback)
            engine_leave(self.allocator.engine)
        finally:
            if not ok:
                remove_identity(self.allocator.callbacks, callback)
        if not ok:
            raise MemoryError("the host has no memory for the allocator's own records")

    def remove_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Stop calling a callback. Raises RequestError if it was not added, or is removed already."""
        cdef list unneeded = None
        cdef bint removed = False
        cdef bint collects
        for kept in list(self.allocator.callbacks):
            if kept == callback:
                collects = self.allocator.enter_making_objects()
                try:
                    removed = callback_remove(self.allocator.engine, <void*> kept)
                    if removed:
                        # A thread that is running it still needs the object, and those of callbacks removed before.
                        unneeded = self.allocator.removed_callbacks
                        is_running = self.allocator.engine.callback_runs != NULL
                        self.allocator.removed_callbacks = [*unneeded, kept] if is_running else []
                        remove_identity(self.allocator.callbacks, kept)
                finally:
                    self.allocator.leave_making_objects(collects)
                if removed:
                    return      # frees the objects that are no longer needed here, outside the engine
        raise RequestError(
            f"{callback!r} is not a free-memory callback of {self.allocator!r}, or it is removed already")
