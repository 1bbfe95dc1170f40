"""Private pools as objects, and the state of a pool as a record."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from allotment._allocators.caching.lending import lent
from allotment._allocators.noted import noted
from allotment.errors import PoolError

if TYPE_CHECKING:
    from weakref import ref

    from allotment._allocators.buffer import Buffer
    from allotment._allocators.caching.allocator import Allocator
    from allotment._core.contract.table import Device

PoolId = tuple[int, int]

_user_ids = itertools.count(1)
_graph_ids = itertools.count(1)


# Another runtime that passes its own pool ids to an allocator also counts from 1.
_ABOVE_FOREIGN_IDS = 1 << 32


def leave_ids_to_others() -> list[PoolId]:
    """From now on, take ids that no other runtime of this process has reached; return the ids taken before."""
    global _user_ids, _graph_ids
    user, graph = next(_user_ids), next(_graph_ids)
    _user_ids = itertools.count(max(user, _ABOVE_FOREIGN_IDS))
    _graph_ids = itertools.count(max(graph, _ABOVE_FOREIGN_IDS))
    if user >= _ABOVE_FOREIGN_IDS:
        return []
    return [(0, n) for n in range(1, user)] + [(n, 0) for n in range(1, graph)]


def next_user_pool_id() -> PoolId:
    """Return an id for a pool that a user makes. Taking an id creates nothing."""
    return 0, next(_user_ids)


def graph_pool_handle(is_user_created: bool = True) -> PoolId:
    """Return an id for a pool that several captures share, as `capture(stream, pool=id)`.

    It is (0, n), the id of a pool that a user makes; or, with False, (n, 0), as a capture takes one for itself. Taking
    an id creates nothing: the first capture creates the pool, which ends with the last graph. Safe to call from several
    threads.
    """
    return next_user_pool_id() if is_user_created else next_graph_pool_id()


def next_graph_pool_id() -> PoolId:
    """Return an id for a pool that a graph capture makes for itself."""
    return next(_graph_ids), 0


@dataclass(frozen=True, slots=True)
class BlockState:
    """A block in a checkpoint."""

    address: int
    size: int
    in_use: bool
    mapped: bool = True
    stream: int | None = None
    """Stream of the block if it differs from its segment's: dense placement shares segments between streams."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment, and the blocks that tile it, in order of address."""

    address: int
    stream: int
    is_small: bool
    is_expandable: bool
    blocks: tuple[BlockState, ...]


@dataclass(frozen=True)
class PoolState:
    """The arrangement of a pool at one moment, made by `Pool.checkpoint`. Only its own allocator can restore it.

    `pool` is the pool's id. `segments` are its segments, each with its blocks in order of address. `owners` are the
    buffers that owned blocks, by address; the state does not keep them alive.
    """

    allocator: Allocator = field(repr=False)
    pool: PoolId
    segments: tuple[SegmentState, ...]
    owners: Mapping[int, ref[Buffer]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def in_use(self) -> frozenset[int]:
        """Addresses that were in use."""
        return frozenset(b.address for segment in self.segments for b in segment.blocks if b.in_use)


class Pool:
    """A private pool: inside `with pool:`, only its memory serves this thread's requests.

    `use_on_oom` lends its free memory to other requests when memory is out. `no_split` serves requests with whole
    segments. `allocator` (an object with allocate(size, stream) and free(address, size, stream)) provides its segments;
    `allocate` reports that it is out of memory by address 0, None or a MemoryError. `placement` names a way to divide
    its memory that differs from the allocator's.

    Its cached memory returns to the device when the pool is closed or dropped; blocks still in use then keep theirs
    until they are freed and the cache is emptied. `allocator` (the pool's allocator), `given_allocator` (the source of
    its segments, None if that is the device) and `id` are attributes. Safe to use from several threads; each has its
    own `with`.
    """

    def __init__(
        self,
        allocator_of_device: Allocator,
        *,
        use_on_oom: bool = False,
        no_split: bool = False,
        allocator: Any = None,
        placement: str | None = None,
    ) -> None:
        if hasattr(self, "id"):
            raise PoolError(f"{self!r} exists already; make another Pool")
        self._closed = True
        if not hasattr(allocator_of_device, "device"):
            raise TypeError(f"a Pool needs an Allocator, not {type(allocator_of_device).__name__}")
        self.allocator = allocator_of_device
        self.given_allocator = allocator
        self.id = next_user_pool_id()
        if placement is None and no_split:
            placement = "torch"  # the placement that supports whole segments
        self._closed = False  # first: if an interrupt follows the creation of the pool, `__del__` closes it
        self.allocator.pools.create_or_incref(self.id, allocator, placement)
        if use_on_oom:
            self.allocator.pools.set_use_on_oom(self.id, True)
        if no_split:
            self.allocator.pools.set_no_split(self.id)

    @property
    def device(self) -> Device:
        """Device that the pool's memory belongs to."""
        return self.allocator.device

    @property
    def is_user_created(self) -> bool:
        """Whether a user requested it, not a capture for itself: its id is (0, n)."""
        return self.id[0] == 0

    @property
    def use_count(self) -> int:
        """Number of uses of the pool: this object, each entered `with`, each graph."""
        return self.allocator.pools.use_count(self.id)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of physical memory that the pool holds now."""
        return self.allocator.pools.reserved_bytes(self.id)

    @property
    def limit(self) -> int | None:
        """The most bytes that the pool may reserve; None means only the limits of allocator and device.

        A request that would exceed it raises OutOfMemoryError, whose `facts.limited_by` names the pool. Set it to
        bytes, to a text such as "2GiB", or to None; `Allocator.set_limit` also has soft limits. Raises PoolError.
        """
        return self.allocator.limits._pool_limit(self.id)

    @limit.setter
    def limit(self, limit: int | str | None) -> None:
        self.allocator.limits._set_pool_limit(self.id, limit)

    def __enter__(self) -> Pool:
        """Serve this thread's requests from the pool until the end of the block. Raises PoolError if it is closed."""
        self._check_open()
        begun: list[PoolId] = []
        try:
            noted(begun, self.id, self.allocator.pools.begin_allocate_to_pool, self.id, thread=threading.get_ident())
            return self
        except BaseException:
            if begun:
                self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.allocator.pools.end_allocate_to_pool(self.id)
        finally:
            self.allocator.pools.release(self.id)

    def _check_open(self) -> None:
        """Raise if the pool is closed. Its id would create another pool, without its allocator and options."""
        if self._closed:
            raise PoolError(f"{self!r} can no longer be used; make another pool with Allocator.pool()")

    def lent(self) -> AbstractContextManager[None]:
        """Lend its idle memory to other requests inside `with pool.lent():`, before the device is asked for more.

        You promise that nothing uses its memory meanwhile: graphs captured in the pool do not run. Blocks that others
        get, on the streams that the memory is for, must be freed before the end. Only plain segments are lent. Raises
        PoolError for a graph that runs, or a block that is still in use at the end; with `sanitize` these are findings
        instead.
        """
        self._check_open()
        return lent(self.allocator, self.id)

    def segments(self) -> list[dict[str, Any]]:
        """Return the pool's part of a snapshot; see `History.segments`."""
        return self.allocator.history.segments(self.id)

    def checkpoint(self) -> PoolState:
        """Return the pool's current arrangement. Raises CheckpointError if blocks wait for other streams."""
        return self.allocator.pools.checkpoint(self.id)

    def restore(self, state: PoolState) -> tuple[list[int], list[int]]:
        """Restore the pool to `state`; return (addresses that this freed, addresses in use again).

        Buffers whose blocks end this way free nothing later; see `Pools.restore`. Raises CheckpointError if the pool's
        memory was released or has grown since.
        """
        return self.allocator.pools.restore(state)

    def close(self) -> None:
        """Close the pool. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if not self.allocator.closed:
            self.allocator.pools.close(self.id)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            with suppress(PoolError):  # collected together with the allocator, which has already retired the pool
                self.close()

    def __repr__(self) -> str:
        return f"<Pool {self.id} on {self.allocator.device.name}{', closed' if self._closed else ''}>"
