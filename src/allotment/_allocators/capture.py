"""Graph capture: records work instead of running it, with memory that stays in place as long as the graph lives.

    with allotment.capture(stream) as graph:
        ...                     # work on `stream`, and on streams that wait for it; requests on them
    graph.replay()              # the same work on the same addresses

Inside, `stream` is the calling thread's current stream, so a request that names no stream is for it. The graph's pool,
and nothing else, serves requests of capturing streams; all other requests go on as before. Memory freed inside is
reused inside, and by later captures that share the pool. The pool's memory is released when the last graph that uses it
is reset.

Each allocator on the device serves such requests from its own pool, all with the same id. That includes allocators made
during the capture.

With `backend:cudaMallocAsync` there is no such pool: the device makes the memory a part of the graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from types import TracebackType

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.lending import launching, lent
from allotment._allocators.caching.pool import Pool, PoolId, next_graph_pool_id
from allotment._allocators.current import allocator_on, begin_routing, end_routing, holders_on
from allotment._allocators.noted import noted
from allotment._allocators.stream_ordered.allocator import AsyncAllocator
from allotment._devices.graphs import DeviceGraph, end_capture
from allotment._devices.streams import Stream, begin_capture_of, capture_has_ended
from allotment.errors import AllotmentError, CaptureError, DeviceError, PoolError, StreamError


class Graph:
    """Captured work, and a use of the pool that holds its memory. `capture` makes one.

    Attributes: `allocator`; `stream`, on which it was captured; and `pool`, the id of its pool. Other allocators on the
    device that served requests of the capture have a pool with the same id. Several threads may replay it; each replay
    is work on one stream.
    """

    def __init__(self, allocator: Allocator, stream: Stream, pool: PoolId) -> None:
        if not isinstance(stream, Stream) or not hasattr(allocator, "device"):
            raise TypeError("a Graph is made by `with capture(stream) as graph:`, not by calling the class")
        self.allocator = allocator
        self.stream = stream
        self.pool = pool
        self._work: DeviceGraph | None = None
        self._holders: list[Allocator | AsyncAllocator] = []  # those with a pool that this graph uses
        self._ran_on: set[int] = set()  # the streams that these know of

    def replay(self, stream: Stream | None = None) -> None:
        """Run the captured work again in stream order: on the stream of the capture, or on another.

        Returns at once. Raises CaptureError if the graph has no work, because the capture failed or the graph was
        reset; StreamError for a stream of another device.
        """
        if self._work is None:
            raise CaptureError(f"{self!r} has nothing to replay: its capture failed, or it was reset; capture it again")
        stream = stream or self.stream
        if stream.device is not self.stream.device:
            raise StreamError(
                f"a graph captured on {self.stream.device.name} cannot be replayed on {stream!r}, "
                "a stream of another device"
            )
        for allocator in self._holders:
            if isinstance(allocator, Allocator):
                launching(allocator, self.pool, stream)
                if stream.handle not in self._ran_on:
                    allocator.pools._note_replay(self.pool, stream)
        self._ran_on.add(stream.handle)
        self._work.replay(stream)

    def lent(self) -> AbstractContextManager[None]:
        """Lend the idle memory of the graph's pool to other requests inside `with graph.lent():`; see `Pool.lent`."""
        return lent(self.allocator, self.pool)

    def reset(self) -> None:
        """Drop the work and the use of the memory. A second call does nothing.

        Blocks still in use keep their memory until they are freed and the cache is emptied. Raises DeviceError.
        """
        self._work = None
        while self._holders:
            allocator = self._holders.pop()
            if isinstance(allocator, AsyncAllocator):
                allocator.empty_cache(self.pool)
            else:
                allocator.pools._give_up_use(self.pool)

    def __repr__(self) -> str:
        state = "captured" if self._work is not None else "without work"
        return f"<Graph {state} on {self.allocator.device.name}, pool {self.pool}>"

    def __del__(self) -> None:
        while getattr(self, "_holders", ()):
            with suppress(PoolError):  # collected together with the allocator, which has already retired the pool
                self.reset()


class capture:
    """Record the work given to a stream, instead of running it, until the end of the block.

    Inside, `stream` is the calling thread's current stream: requests that name no stream are for it.

    `pool` is a `Pool`, a `Graph` whose pool to share, or a pool id; without one, or with (0, 0), the graph gets its own
    pool. A pool with that id serves requests on the stream, from whichever allocator on the stream's device they are
    requested. `allocator` is the graph's own, which can lend that pool's memory; the default is the pool's allocator,
    else the first one made on the device. Raises CaptureError; a capture that fails or is abandoned leaves nothing
    behind.
    """

    def __init__(
        self, stream: Stream, pool: Pool | Graph | PoolId | None = None, *, allocator: Allocator | None = None
    ) -> None:
        if not isinstance(stream, Stream):
            raise TypeError(f"capture needs a Stream, not {type(stream).__name__}; make one with Stream(allocator)")
        if stream.handle == 0:
            raise CaptureError(
                f"the default stream of {stream.device.name} cannot be captured; make one with Stream(allocator)"
            )
        if allocator is None:
            allocator = pool.allocator if isinstance(pool, Pool | Graph) else allocator_on(stream.device)
        if allocator is None:
            raise CaptureError(f"{stream!r} cannot be captured: its device has no allocator; name one with allocator=")
        if getattr(allocator, "device", None) is not stream.device:
            raise CaptureError(
                f"{stream!r} cannot be captured with the memory of {allocator!r}, which is on another device;"
                " make the stream with Stream(allocator)"
            )
        if pool is None or (isinstance(pool, tuple) and pool == (0, 0)):
            pool = next_graph_pool_id()
        if isinstance(pool, Pool):
            pool._check_open()
        self._id = pool.pool if isinstance(pool, Graph) else pool.id if isinstance(pool, Pool) else pool
        self._stream = stream
        self._allocator = allocator
        self._graph = Graph(allocator, stream, self._id)
        self._capture_id = 0
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Clear the lists of steps begun. `noted` fills each list, so that `_abandon` knows which steps to end."""
        self._begun: list[Stream] = []
        self._entered: list[Stream] = []
        self._left: list[Stream] = []
        self._routed: list[Allocator | AsyncAllocator] = []
        self._ended: list[Allocator | AsyncAllocator] = []
        self._released: list[Allocator | AsyncAllocator] = []

    def __enter__(self) -> Graph:
        device = self._stream.device
        self._forget_steps()
        try:
            self._capture_id = noted(self._begun, self._stream, begin_capture_of, self._stream)
            self.route(self._allocator)
            begin_routing(device, self)
            for other in holders_on(device):
                if isinstance(other, Allocator | AsyncAllocator) and not other.closed:
                    self.route(other)
            noted(self._entered, self._stream, self._stream.__enter__)
            return self._graph
        except BaseException:
            self._abandon()
            raise

    def route(self, allocator: Allocator | AsyncAllocator) -> None:
        """Serve an allocator's requests of this capture from a pool with the capture's id."""
        if allocator not in self._routed:
            noted(self._routed, allocator, allocator.pools.begin_allocate_to_pool, self._id, capture=self._capture_id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._keep_work()
            else:
                self._abandon()
        except DeviceError as refused:
            self._abandon()
            raise CaptureError(f"the capture could not be ended: {refused}") from refused
        except BaseException:  # such as an interrupt
            self._abandon()
            raise

    def _leave_stream(self) -> None:
        if self._entered and not self._left:
            noted(self._left, self._stream, self._stream.__exit__, None, None, None)

    def _keep_work(self) -> None:
        """End the capture and give the graph its work, and a use of each pool that holds memory of it."""
        self._leave_stream()
        self._end_routing()
        for allocator in self._routed:
            if isinstance(allocator, AsyncAllocator):
                allocator.pools.join_capture(self._stream)
        work = end_capture(self._stream.device, self._stream)
        self._end_routes(self._graph._holders)
        self._graph._work = work

    def _abandon(self) -> None:
        """Leave nothing behind, however far the capture has come."""
        self._leave_stream()
        if not self._begun:
            return
        self._end_routing()
        with suppress(AllotmentError):  # it was invalidated, or has ended
            end_capture(self._stream.device, self._stream)
        self._end_routes(None)
        self._graph.reset()

    def _end_routing(self) -> None:
        capture_has_ended(self._stream)
        end_routing(self._stream.device, self)
        # An allocator that was closed meanwhile has ended its use of its pools.
        self._routed = [known for known in self._routed if known is self._allocator or not known.closed]

    def _end_routes(self, holders: list[Allocator | AsyncAllocator] | None) -> None:
        """End every remaining route, even if one fails; add allocators with memory to `holders`, if given."""
        failures = []
        kept = []
        for allocator in reversed(self._routed):  # the graph's own last: postponed frees wait for the last route
            try:
                if holders is not None and (allocator is self._allocator or self._has_memory(allocator)):
                    kept.append(allocator)
                if allocator not in self._ended:
                    noted(self._ended, allocator, allocator.pools.end_allocate_to_pool, self._id)
            except AllotmentError as error:
                failures.append(error)
        for allocator in self._routed:
            try:
                if holders is not None and allocator in kept:
                    holders.append(allocator)
                elif allocator not in self._released and allocator not in self._graph._holders:
                    noted(self._released, allocator, allocator.pools.release, self._id)
                    allocator.empty_cache(self._id)
            except AllotmentError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _has_memory(self, allocator: Allocator | AsyncAllocator) -> bool:
        return isinstance(allocator, Allocator) and allocator.pools.reserved_bytes(self._id) > 0
