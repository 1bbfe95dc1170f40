cimport cython
from libc.stdint cimport uint32_t, uint64_t

from allotment._allocators.caching.pooling_allocator cimport PoolingAllocator
from allotment._allocators.caching.tags cimport tag as tag_object
from allotment._core.contract.types cimport bytes_t
from allotment._core.edge.walk cimport tenants_sum
from allotment._core.engine cimport engine_leave, pool_of_tag
from allotment._core.mechanism.limits cimport accounts_open, limits_set, soft_limit_set
from allotment._core.mechanism.pool cimport pool_absent, pool_find
from allotment._core.model.model cimport Failure, Limits, Pool as EnginePool, no_limit
from allotment._core.records.stats cimport frees_so_far
from allotment._core.records.tags cimport tag_number, tag_pool_id
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST, tenant_context
from allotment._core.tools.arguments cimport read_callable, read_pool_id

import operator

from allotment import _settings as config
from allotment._allocators.caching.chain import Chain
from allotment._allocators.caching.pools import Pool
from allotment.errors import PoolError, RequestError


cdef bytes_t read_limit(object given, bytes_t otherwise) except? 0:
    return otherwise if given is None else config.parse_size(given)


cdef object shown(bytes_t limit):
    return None if limit == no_limit() else limit


@cython.no_gc_clear
cdef class LimitingAllocator(PoolingAllocator):
    """An engine whose pools, tags and tenants have limits; users hold an `Allocator`."""

    def set_limit(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """Say how much memory a tag may have, or a pool, a tenant, or (None) the allocator as a whole.

        Each is a number of bytes or a text such as "2GiB"; None, and what is not given, is no limit from now on. One of
        them is given at least: `hard=None` removes all.

        `hard`: requests that need more raise OutOfMemoryError, whose `facts.limited_by` says whose limit it was. Of a
        tag or pool it counts memory that is reserved, of a tenant memory in use. `soft`: before more than this is
        reserved, cached memory goes back, which waits for other streams; it refuses nothing. `reserved`: others leave
        this much to be had, within the allocator's limit or the device's memory.

        What is held already stays. Raises RequestError without any limit, and for a soft limit of, or memory reserved
        for, a tenant, which shares its cache with others; PoolError for a pool that is gone; TypeError for what is none
        of these. Safe to call from several threads.
        """
        cdef Limits limits
        cdef uint64_t first = 0, second = 0
        cdef bint is_tenant = tag is not None and self.is_tenant(tag)
        if hard is ... and soft is ... and reserved is ...:
            raise RequestError(
                f"set_limit({tag!r}) has no limit: give hard=, soft= or reserved=, where None removes it")
        hard, soft, reserved = [None if limit is ... else limit for limit in (hard, soft, reserved)]
        limits.hard = read_limit(hard, no_limit())
        limits.soft = read_limit(soft, no_limit())
        limits.guaranteed = read_limit(reserved, 0)
        if tag is None:
            if reserved is not None:
                raise RequestError(
                    "nothing can be reserved for an allocator as a whole; reserve it for a tag or a pool")
            self.limit = hard
            self.enter()
            soft_limit_set(self.engine, limits.soft)
            engine_leave(self.engine)
            return
        if is_tenant:
            if soft is not None or reserved is not None:
                raise RequestError(
                    f"{tag!r} shares its cache with other tenants: it can have a hard limit alone; a tag or a pool can "
                    "have the others")
            self.put_tenant_limit(tag.name, limits.hard)
            return
        self.find_pool(tag, &first, &second, True)
        self.put_limits(first, second, &limits)

    cdef bint is_tenant(self, object whose) except -1:
        """Whether it is a tenant, and not a tag or a pool; refuses all else."""
        from allotment._allocators.caching.tenants import Tenant     # late: it is made of allocators
        if isinstance(whose, (str, Pool)):
            return False
        if not isinstance(whose, Tenant) or whose.allocator is not self:
            raise TypeError(
                f"a tag's name, a Pool or a Tenant of {self!r} is meant, not "
                + (repr(whose) if isinstance(whose, Tenant) else type(whose).__name__))
        return True

    cdef int find_pool(self, object whose, uint64_t* first, uint64_t* second, bint make=False) except -1:
        cdef Failure failure
        cdef uint32_t tag
        cdef bint ok
        if isinstance(whose, Pool):
            if whose.allocator is not self:
                raise PoolError(f"{whose!r} is not a pool of {self!r}")
            return read_pool_id(whose.id, first, second)
        if not isinstance(whose, str):
            raise TypeError(f"a tag is a text, not {type(whose).__name__}")
        if make:
            named = tag_object(whose)       # keeps the number until the pool has it
            tag = (<tag_object> named).number
        else:
            tag = tag_number(whose, False)
        first[0] = 0
        second[0] = tag_pool_id(tag)
        self.enter()
        if make:
            ok = pool_of_tag(self.engine, tag, &failure) != NULL
            return self.leave(ok, &failure)
        ok = pool_find(self.engine, first[0], second[0]) != NULL
        engine_leave(self.engine)
        if not ok:
            raise PoolError(
                f"there is no tag {whose!r} on {self.device.name}; it was never made, or its memory is gone: allocate "
                "in it first")
        return 0

    cdef int read_limits(self, uint64_t first, uint64_t second, Limits* limits) except -1:
        cdef Failure failure
        cdef EnginePool* pool
        self.enter()
        pool = pool_find(self.engine, first, second)
        if pool != NULL:
            limits[0] = pool.limits
        else:
            pool_absent(self.engine, first, second, &failure)
        self.leave(pool != NULL, &failure)
        return 0

    cdef int put_limits(self, uint64_t first, uint64_t second, const Limits* limits) except -1:
        cdef Failure failure
        cdef EnginePool* pool
        self.enter()
        pool = pool_find(self.engine, first, second)
        if pool != NULL:
            limits_set(self.engine, pool, limits)
        else:
            pool_absent(self.engine, first, second, &failure)
        self.leave(pool != NULL, &failure)
        return 0

    cdef int put_tenant_limit(self, object name, bytes_t most) except -1:
        """Count from now on what tenants hold, if it was not counted before."""
        cdef bytes_t[TENANTS_MOST][3] sums
        cdef uint32_t tenant = tenant_context(name) >> TENANT_SHIFT
        cdef int who
        cdef bint ok
        self.enter()
        with nogil:
            if self.engine.accounts == NULL:
                ok = accounts_open(self.engine)
                tenants_sum(self.engine, sums)
                for who in range(TENANTS_MOST if ok else 0):
                    self.engine.accounts[who].held = sums[who][1]
            else:
                ok = True
            if ok:
                self.engine.accounts[tenant].limit = most
            engine_leave(self.engine)
        if not ok:
            raise MemoryError("the host has no memory for the allocator's own records")
        return 0

    # --- a say when memory runs out ---

    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """Ask `step(facts)` before a request fails for want of memory: whether it should be tried again.

        Steps are asked in the order in which they were added, after all that the allocator does by itself (the cache is
        empty then), on the thread that asked and without any lock. A step may free, pause tags, wait, and use the
        allocator; what it asks for itself goes without steps. Each is asked `tries` times at most for one request;
        then, or when it returns False or raises, the next has its turn, and after the last the request raises
        OutOfMemoryError. What it raises is reported through `sys.unraisablehook`. `allotment.relief` has steps that
        wait, spill and trim.

        Gives a function that removes the step. Raises TypeError for what cannot be called, RequestError for less than
        one try. Safe to call from several threads.
        """
        count = operator.index(tries)
        if count < 1:
            raise RequestError(f"a step has one try or more, not {count}")
        if self.chain is None:
            self.chain = Chain()
        return self.chain.add(read_callable(step, "a step"), count)

    cdef bint has_say(self) except -1:
        return self.chain is not None and self.chain.has_steps

    def _frees_so_far(self) -> int:
        """A number that changes whenever a block is freed. Takes no lock."""
        return frees_so_far(&self.engine.stats)

    # --- for `Pool`, `Tenant` and metrics ---

    def _pool_limit(self, pool: PoolId) -> int | None:
        """The hard limit of a pool."""
        cdef Limits limits
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        self.read_limits(first, second, &limits)
        return shown(limits.hard)

    def _set_pool_limit(self, pool: PoolId, limit: int | str | None) -> None:
        """Another hard limit; the other limits stay."""
        cdef Limits limits
        cdef uint64_t first, second
        cdef bytes_t most = read_limit(limit, no_limit())
        read_pool_id(pool, &first, &second)
        self.read_limits(first, second, &limits)
        limits.hard = most
        self.put_limits(first, second, &limits)

    def _tag_limit(self, name: str) -> int | None:
        """The hard limit of a tag. Raises PoolError if it is not there."""
        cdef Limits limits
        cdef uint64_t first, second
        self.find_pool(name, &first, &second)
        self.read_limits(first, second, &limits)
        return shown(limits.hard)

    def _tenant_limit(self, name: str) -> int | None:
        """What a tenant may hold."""
        cdef uint32_t tenant = tenant_context(name) >> TENANT_SHIFT
        return None if self.engine.accounts == NULL else shown(self.engine.accounts[tenant].limit)

    def _set_tenant_limit(self, name: str, limit: int | str | None) -> None:
        """Let a tenant hold so much and no more."""
        self.put_tenant_limit(name, read_limit(limit, no_limit()))
