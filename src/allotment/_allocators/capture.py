"""Graph capture: work kept instead of run, with memory that stays where it is for as long as the graph lives.

    with allotment.capture(stream) as graph:
        ...                     # work on `stream`, and on streams that wait for it; requests on them
    graph.replay()              # the same work on the same addresses

Requests of capturing streams are served from the graph's pool, and from nowhere else; all others go on as
before. What is freed inside is reused inside, and by later captures that share the pool. The pool's memory
is given back when the last graph that uses it is reset.

With `backend:cudaMallocAsync` there is no such pool: the device makes the memory a part of the graph itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from allotment._allocators.caching.lending import launching, lent
from allotment._allocators.caching.pools import Pool, PoolId, next_graph_pool_id
from allotment._allocators.current import allocator_on
from allotment._allocators.stream_ordered.allocator import AsyncAllocator
from allotment._devices.graphs import DeviceGraph, begin_capture, end_capture
from allotment._devices.streams import Stream
from allotment.errors import AllotmentError, CaptureError, DeviceError, PoolError, StreamError

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator


class Graph:
    """Captured work, and a use of the pool that its memory is in; `capture` makes one.

    Attributes: `allocator`, `stream` that it was captured on, and `pool`, the id of its pool. It may be replayed from
    several threads; each replay is work on one stream.
    """

    def __init__(self, allocator: Allocator, stream: Stream, pool: PoolId) -> None:
        self.allocator = allocator
        self.stream = stream
        self.pool = pool
        self._work: DeviceGraph | None = None
        self._holds_pool = False

    def replay(self, stream: Stream | None = None) -> None:
        """Run the captured work again, in stream order: on the stream it was captured on, or another.

        Returns at once. Raises CaptureError if there is no work: the capture failed, or the graph was reset; and
        StreamError for a stream of another device.
        """
        if self._work is None:
            raise CaptureError(f"{self!r} has nothing to replay: its capture failed, or it was reset; capture it again")
        stream = stream or self.stream
        if stream.device is not self.stream.device:
            raise StreamError(
                f"a graph captured on {self.stream.device.name} cannot be replayed on {stream!r}, "
                "a stream of another device"
            )
        if not isinstance(self.allocator, AsyncAllocator):
            launching(self.allocator, self.pool, stream)
        self._work.replay(stream)

    def lent(self) -> AbstractContextManager[None]:
        """Let others have the idle memory of its pool inside `with graph.lent():`, see `Pool.lent`."""
        return lent(self.allocator, self.pool)

    def reset(self) -> None:
        """Forget the work and give up the memory; a second time, nothing happens.

        Blocks that are still in use keep their memory until they are freed and the cache is emptied. Raises
        DeviceError.
        """
        self._work = None
        if self._holds_pool:
            self._holds_pool = False
            if isinstance(self.allocator, AsyncAllocator):
                self.allocator.empty_cache(self.pool)
            else:
                self.allocator._give_up_use(self.pool)

    def __repr__(self) -> str:
        state = "captured" if self._work is not None else "without work"
        return f"<Graph {state} on {self.allocator.device.name}, pool {self.pool}>"

    def __del__(self) -> None:
        if getattr(self, "_holds_pool", False):
            with suppress(PoolError):  # collected together with the allocator, which has retired the pool already
                self.reset()


class capture:
    """Keep the work given to a stream, instead of running it, until the end of the block.

    Inside, it is the calling thread's current stream.

    `pool` is a `Pool`, a `Graph` whose pool to share, or a pool id; without one the graph gets a pool of its
    own. `allocator` is the one whose requests are routed: by default the pool's, else the first one made on
    the stream's device. Raises CaptureError; a capture that fails or is abandoned leaves nothing behind.
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
            raise CaptureError(
                f"{stream!r} cannot be captured: no allocator was made on its device; name one with allocator="
            )
        if allocator.device is not stream.device:
            raise CaptureError(
                f"{stream!r} cannot be captured with the memory of {allocator!r}, which is on another device;"
                " make the stream with Stream(allocator)"
            )
        if pool is None:
            pool = next_graph_pool_id()
        if isinstance(pool, Pool):
            pool._check_open()
        self._id = pool.pool if isinstance(pool, Graph) else pool.id if isinstance(pool, Pool) else pool
        self._stream = stream
        self._allocator = allocator
        self._graph = Graph(allocator, stream, self._id)

    def __enter__(self) -> Graph:
        capture_id = begin_capture(self._stream.device, self._stream)
        try:
            self._allocator.begin_allocate_to_pool(self._id, capture=capture_id)
        except BaseException:
            self._abandon_device_capture()
            raise
        self._stream.__enter__()
        return self._graph

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.__exit__(None, None, None)
        if error is not None:
            self._abandon_device_capture()
            self._let_go_of_pool()
            return
        try:
            if isinstance(self._allocator, AsyncAllocator):
                self._allocator.join_capture(self._stream)
            work = end_capture(self._stream.device, self._stream)
        except DeviceError as refused:
            self._abandon_device_capture()
            self._let_go_of_pool()
            raise CaptureError(f"the capture could not be ended: {refused}") from refused
        self._allocator.end_allocate_to_pool(self._id)
        self._graph._work = work
        self._graph._holds_pool = True

    def _abandon_device_capture(self) -> None:
        with suppress(AllotmentError):  # it was broken already, or never whole: either way it has ended
            end_capture(self._stream.device, self._stream)

    def _let_go_of_pool(self) -> None:
        self._allocator.end_allocate_to_pool(self._id)
        self._allocator.release_pool(self._id)
        self._allocator.empty_cache(self._id)
