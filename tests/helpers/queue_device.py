"""A device written in Python that has streams, events and captures, and no memory.

It is the smallest device with the stream half of the contract, so that tests check what the trampolines of that half
mean, not only what they pass on. Addresses are numbers. Work is a place in a stream's queue; it is done when the test
says so, or when a caller waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from allotment._devices.python.backend import Backend
from allotment.errors import AddressError, StreamError


@dataclass(eq=False)
class Work:
    """One entry of a stream: done once it was released and all entries before it are done."""

    after: list[Work]
    is_released: bool = True

    @property
    def is_done(self) -> bool:
        return self.is_released and all(work.is_done for work in self.after)

    def release(self) -> None:
        self.is_released = True

    def wait(self) -> None:
        self.release()
        for work in self.after:
            work.wait()


@dataclass(eq=False)
class Queue:
    last: Work | None = None
    capture: int = 0
    terminals: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Event:
    work: Work | None = None
    capture: int = 0
    terminals: set[int] = field(default_factory=set)


class QueueDevice(Backend):
    def __init__(self, capacity: int = 1 << 30) -> None:
        super().__init__(name="queue")
        self._capacity = capacity
        self._lock = threading.RLock()
        self._last_number = 0
        self._segments: dict[int, int] = {}
        self._streams = {0: Queue()}
        self._gone: list[Queue] = []  # destroyed, with work that may not be done
        self._events: dict[int, Event] = {}
        self._predecessors: dict[int, set[int]] = {}
        self._graphs: set[int] = set()
        self.launched: list[tuple[int, int]] = []
        """(graph, stream) of every launch, also inside captures."""

    # For tests.

    def hold(self, stream: int) -> Work:
        """Submit work that is not done before it is released."""
        with self._lock:
            work = self._submit(self._stream(stream), [])
            work.is_released = False
            return work

    def last_work(self, stream: int) -> Work | None:
        """Return the last work submitted to the stream."""
        with self._lock:
            return self._stream(stream).last

    def launch(self, stream: int) -> None:
        """Submit work that is done at once, or add a node to the stream's capture."""
        with self._lock:
            queue = self._stream(stream)
            if not queue.capture:
                self._submit(queue, [])
                return
            node = self._number()
            self._predecessors[node] = queue.terminals
            queue.terminals = {node}

    # Plain memory.

    def allocate(self, size: int, stream: int) -> int:
        with self._lock:
            if size > self.memory_info()[0]:
                raise MemoryError(f"no room for {size} bytes")
            address = max((start + length for start, length in self._segments.items()), default=1 << 20)
            self._segments[address] = size
            return address

    def free(self, address: int, size: int) -> None:
        with self._lock:
            if self._segments.pop(address, None) is None:
                raise AddressError(f"no segment starts at {address:#x}", address)

    def memory_info(self) -> tuple[int, int]:
        with self._lock:
            return self._capacity - sum(self._segments.values()), self._capacity

    # Streams and events.

    def stream_create(self) -> int:
        with self._lock:
            number = self._number()
            self._streams[number] = Queue()
            return number

    def stream_destroy(self, stream: int) -> None:
        with self._lock:
            self._gone.append(self._stream(stream))
            del self._streams[stream]

    def stream_query(self, stream: int) -> bool:
        with self._lock:
            return is_done(self._stream(stream).last)

    def stream_synchronize(self, stream: int) -> None:
        with self._lock:
            wait_for(self._stream(stream).last)

    def stream_wait(self, stream: int, event: int) -> None:
        with self._lock:
            queue, awaited = self._stream(stream), self._events[event]
            if awaited.capture:
                queue.capture = awaited.capture
                queue.terminals = queue.terminals | awaited.terminals
            elif awaited.work is not None:
                self._submit(queue, [awaited.work])

    def device_synchronize(self) -> None:
        with self._lock:
            for queue in [*self._streams.values(), *self._gone]:
                wait_for(queue.last)

    def event_create(self) -> int:
        with self._lock:
            number = self._number()
            self._events[number] = Event()
            return number

    def event_destroy(self, event: int) -> None:
        with self._lock:
            del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        with self._lock:
            queue = self._stream(stream)
            self._events[event] = Event(queue.last, queue.capture, queue.terminals)

    def event_query(self, event: int) -> bool:
        with self._lock:
            return is_done(self._events[event].work)

    def event_synchronize(self, event: int) -> None:
        with self._lock:
            wait_for(self._events[event].work)

    # Graph capture.

    def capture_begin(self, stream: int) -> int:
        with self._lock:
            queue = self._stream(stream)
            queue.capture, queue.terminals = self._number(), set()
            return queue.capture

    def capture_end(self, stream: int) -> int:
        with self._lock:
            ended = self._stream(stream).capture
            if not ended:
                raise StreamError(f"stream {stream} is not being captured")
            for queue in self._streams.values():
                if queue.capture == ended:
                    queue.capture, queue.terminals = 0, set()
            graph = self._number()
            self._graphs.add(graph)
            return graph

    def capture_status(self, stream: int) -> int:
        with self._lock:
            return self._stream(stream).capture

    def capture_terminals(self, stream: int) -> Collection[int]:
        with self._lock:
            return self._stream(stream).terminals

    def node_predecessors(self, node: int) -> Collection[int]:
        with self._lock:
            return self._predecessors[node]

    def capture_relaxed(self, relaxed: bool) -> None:
        pass  # captures here are never strict

    def graph_launch(self, graph: int, stream: int) -> None:
        with self._lock:
            self._stream(stream)
            self._check_graph(graph)
            self.launched.append((graph, stream))
            self.launch(stream)

    def graph_destroy(self, graph: int) -> None:
        with self._lock:
            self._check_graph(graph)
            self._graphs.remove(graph)

    def _check_graph(self, graph: int) -> None:
        if graph not in self._graphs:
            raise AddressError(f"there is no graph {graph}", graph)

    def _stream(self, stream: int) -> Queue:
        if stream not in self._streams:
            raise StreamError(f"there is no stream {stream}")
        return self._streams[stream]

    def _submit(self, queue: Queue, after: list[Work]) -> Work:
        queue.last = Work([*after, queue.last] if queue.last else after)
        return queue.last

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number


def is_done(work: Work | None) -> bool:
    return work is None or work.is_done


def wait_for(work: Work | None) -> None:
    if work is not None:
        work.wait()
