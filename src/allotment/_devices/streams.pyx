"""Streams and events as users hold them.

What a device offers beyond the contract it offers as methods, and a device without them is no worse a device:

    submit(stream, function, arguments)     run a Python function in stream order
    take_exception(stream)                  what such a function raised, if not raised yet
    _runs_by_itself                         True if work goes on whether or not somebody waits for it
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from allotment._core.contract.current cimport CurrentStream, current_enter, current_find, current_leave
from allotment._core.contract.raising cimport check_status, require
from allotment._core.contract.table cimport NOT_READY, OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t
from allotment._core.tools.arguments cimport refuse_pickling
from allotment._core.tools.lock cimport allotment_lock_relax

import threading
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from allotment.errors import StreamError


class HasDevice(Protocol):
    """What is made on a device and knows it: an allocator."""

    @property
    def device(self) -> Device:
        """The device."""


# Who is told of what streams do: see `watch_streams`. A plain flag, so that it costs nothing else while there is none.
cdef bint watching = False
cdef object watchers = WeakKeyDictionary()


cdef list watchers_of(Device device):
    return list(watchers.get(device, ()))


def watch_streams(device: Device, watcher: Any) -> None:
    """Tell `watcher`, as long as it lives, what streams and events of a device do: see `Sanitizer`."""
    global watching
    watchers.setdefault(device, WeakSet()).add(watcher)
    watching = True


def unwatch_streams(device: Device, watcher: Any) -> None:
    """Tell it no more."""
    global watching
    watchers.get(device, WeakSet()).discard(watcher)
    watching = any([list(those) for those in watchers.values()])


cdef class Stream:
    """Stream(device)\n--\n
    Work done in order. Streams do not wait for each other unless told to (`wait`).

    `device` is a device, or an allocator, whose device is meant.

    A stream lives until `destroy`, not as long as this object: memory may have been freed on it, and an allocator
    knows it by its handle. Work still running then is finished.

    Safe to use from several threads. Every method raises StreamError once the stream has been destroyed,
    UnsupportedError for what its device cannot do, and DeviceError if the device fails.
    """

    def __init__(self, device: Device | HasDevice):
        cdef Device found = device_of(device)
        cdef stream_t handle
        cdef status_t status
        require(found, found.table.stream_create != NULL, "stream_create")
        with nogil:
            status = found.table.stream_create(found.table.self, &handle)
        check_status(found, status, "stream_create")
        self.device = found
        self.handle = handle

    @staticmethod
    def default(device: Device | HasDevice) -> Stream:
        """The stream that work goes to when none is named; its handle is 0. It cannot be destroyed."""
        cdef Stream stream = Stream.__new__(Stream)
        stream.device = device_of(device)
        stream.is_default = True
        return stream

    @staticmethod
    def external(device: Device | HasDevice, handle: int) -> Stream:
        """A stream that was made elsewhere, by its handle, which is trusted. It is destroyed where it was made."""
        cdef Stream stream = Stream.__new__(Stream)
        stream.device = device_of(device)
        stream.handle = handle
        stream.is_foreign = True
        return stream

    def __enter__(self) -> Stream:
        """Make it the calling thread's current stream of its device, until it is left.

        Whether a request or a free is inside a graph capture is told by the current stream. Without one, a request's
        own stream counts, else the default one.
        """
        cdef CurrentStream* entered
        self.check()
        entered = <CurrentStream*> malloc(sizeof(CurrentStream))
        if entered == NULL:
            raise MemoryError("the host has no memory to remember the current stream")
        current_enter(entered, self.device.table.self, self.handle)
        return self

    def __exit__(self, kind, error, traceback):
        cdef CurrentStream* entered = current_find(self.device.table.self, self.handle)
        if entered == NULL:
            raise StreamError(f"{self!r} is not current in this thread, so it cannot be left")
        current_leave(entered)
        free(entered)

    @property
    def device(self) -> Device:
        """The device that does the stream's work."""
        return self.device

    @property
    def handle(self) -> int:
        """The number by which device and allocators know the stream; 0 is the default stream.

        Raises StreamError when the stream has been destroyed.
        """
        self.check()
        return self.handle

    def submit(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Run `function(*arguments)` when everything submitted before is done. Does not wait for it.

        For devices that run Python functions: the host device does, others raise UnsupportedError.

        An exception in it is raised by the next `synchronize` of this stream or of one of its events. Of several
        the first is; the others, and one that is not asked for before the stream is destroyed or the interpreter
        ends, are reported through `sys.unraisablehook`.

        It may use the allocator: ask for memory, free it, drop buffers, also while another thread waits for this stream
        inside the allocator. It cannot wait for its own stream, and while other streams have work it cannot give memory
        back to the system (`empty_cache`): that waits for them, and they may wait for it. That is a DeviceError.

        While the stream is being captured the function is kept instead, and runs when the graph is replayed.
        """
        self.check()
        submit = getattr(self.device, "submit", None)
        require(self.device, submit is not None, "submit")
        if watching:
            for watcher in watchers_of(self.device):
                function = watcher.submitting(self, function)
        submit(self.handle, function, arguments)

    def query(self) -> bool:
        """Whether everything submitted so far is done. Does not wait."""
        cdef status_t status
        self.check()
        require(self.device, self.device.table.stream_query != NULL, "stream_query")
        with nogil:
            status = self.device.table.stream_query(self.device.table.self, self.handle)
        if status == NOT_READY:
            return False
        check_status(self.device, status, "stream_query")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.synchronized(self)
        return True

    def synchronize(self) -> None:
        """Wait for everything submitted so far.

        Raises what a submitted function raised, and DeviceError if the stream is being captured (which spoils the
        capture) or if called by a function that runs on this stream.
        """
        cdef status_t status
        self.check()
        require(self.device, self.device.table.stream_synchronize != NULL, "stream_synchronize")
        answer_signals(self.device, self.device.table.stream_query, self.handle)
        with nogil:
            status = self.device.table.stream_synchronize(self.device.table.self, self.handle)
        check_status(self.device, status, "stream_synchronize")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.synchronized(self)
        raise_kept_exception(self)

    def wait(self, Event event not None) -> None:
        """Let what is submitted from now on wait for an event of any stream of this device. The caller does not wait.

        Raises StreamError for an event of another device.
        """
        cdef status_t status
        self.check()
        if event.device is not self.device:
            raise StreamError(f"{self!r} cannot wait for {event!r}, which belongs to another device")
        require(self.device, self.device.table.stream_wait != NULL, "stream_wait")
        with nogil:
            status = self.device.table.stream_wait(self.device.table.self, self.handle, event.handle)
        check_status(self.device, status, "stream_wait")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.waited(self, event)

    def record(self) -> Event:
        """An event that is done when everything submitted so far is."""
        cdef Event event
        cdef status_t status
        self.check()
        event = event_on(self)
        with nogil:
            status = self.device.table.event_record(self.device.table.self, event.handle, self.handle)
        check_status(self.device, status, "event_record")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.recorded_event(self, event)
        return event

    def destroy(self) -> None:
        """Give the stream up. Work that was submitted is still done. A second call does nothing.

        Raises StreamError for the default stream.
        """
        cdef status_t status
        if self.destroyed:
            return
        self.check()
        if self.is_default:
            raise StreamError(f"the default stream of {self.device.name} cannot be destroyed")
        if self.is_foreign:
            raise StreamError(f"{self!r} was made elsewhere and must be destroyed there")
        require(self.device, self.device.table.stream_destroy != NULL, "stream_destroy")
        with nogil:
            status = self.device.table.stream_destroy(self.device.table.self, self.handle)
        check_status(self.device, status, "stream_destroy")
        self.destroyed = True

    def _is_captured(self) -> bool:
        """Whether its work is being captured into a graph."""
        cdef capture_t capture = 0
        cdef status_t status
        if self.device.table.capture_status == NULL:
            return False
        with nogil:
            status = self.device.table.capture_status(self.device.table.self, self.handle, &capture)
        return status == OK and capture != 0

    cdef int check(self) except -1:
        if self.device is None:
            raise StreamError("this Stream was made by __new__ alone; make one with Stream(allocator)")
        if self.destroyed:
            raise StreamError(f"stream {self.handle:#x} of {self.device.name} was destroyed")
        return 0

    def __reduce__(self):
        return refuse_pickling(self, "a stream belongs to this process; make one in the other process")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return (<Stream> other).device is self.device and (<Stream> other).handle == self.handle

    def __hash__(self) -> int:
        return hash((id(self.device), self.handle))

    def __repr__(self):
        if self.device is None:
            return "<Stream>"
        return f"<Stream {self.handle:#x} of {self.device.name}{', destroyed' if self.destroyed else ''}>"


cdef class Event:
    """Event()\n--\n
    A place in a stream's work, made by `Stream.record`; done when the work before it is.

    Safe to use from several threads.
    """

    def __init__(self):
        raise TypeError("an Event is made by Stream.record(), not by calling the class")

    @property
    def stream(self) -> Stream:
        """The stream whose work it is a place in."""
        return self.stream

    @property
    def device(self) -> Device:
        """The device of that stream."""
        return self.device

    # A finalizer, not a deallocator: in a collection the device is still whole.
    def __del__(self):
        cdef DeviceTable* table
        if self.handle != 0:
            table = &self.device.table
            with nogil:
                table.event_destroy(table.self, self.handle)
            self.handle = 0

    @property
    def handle(self) -> int:
        """The number by which the device knows the event."""
        return self.handle

    def query(self) -> bool:
        """Whether the work before it is done. Does not wait."""
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        with nogil:
            status = table.event_query(table.self, self.handle)
        if status == NOT_READY:
            return False
        check_status(self.device, status, "event_query")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.synchronized_event(self)
        return True

    def synchronize(self) -> None:
        """Wait for the work before it. Raises what a function submitted to the stream raised."""
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        answer_signals(self.device, table.event_query, self.handle)
        with nogil:
            status = table.event_synchronize(table.self, self.handle)
        check_status(self.device, status, "event_synchronize")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.synchronized_event(self)
        raise_kept_exception(self.stream)

    def __reduce__(self):
        return refuse_pickling(self, "an event belongs to this process; record one in the other process")

    def __repr__(self):
        return f"<Event {self.handle:#x} on {self.stream!r}>"


ctypedef status_t (*query_t)(void* self, uint64_t handle) noexcept nogil


cdef int answer_signals(Device device, query_t query, uint64_t handle) except -1:
    """Wait here for what is about to be waited for, so that Ctrl-C is raised, which no device call could.

    Signals are the main thread's. Devices whose work is done only when it is waited for are not asked.
    """
    cdef int round = 0
    if not getattr(device, "_runs_by_itself", False) or threading.get_ident() != threading.main_thread().ident:
        return 0
    while query(device.table.self, handle) == NOT_READY:
        PyErr_CheckSignals()
        with nogil:
            allotment_lock_relax(round)
        round += 1
    return 0


cdef Event event_on(Stream stream):
    cdef Event event = Event.__new__(Event)
    cdef DeviceTable* table = &stream.device.table
    cdef event_t handle
    cdef status_t status
    require(stream.device, table.event_create != NULL, "event_create")
    with nogil:
        status = table.event_create(table.self, &handle)
    check_status(stream.device, status, "event_create")
    event.device = stream.device
    event.stream = stream
    event.handle = handle
    return event


cdef Device device_of(object device):
    if not isinstance(device, Device):
        device = getattr(device, "device", device)
    if not isinstance(device, Device):
        raise TypeError(
            f"a Stream needs a device object or an allocator, not {type(device).__name__}: Stream(allocator)")
    return device


cdef int raise_kept_exception(Stream stream) except -1:
    take_exception = getattr(stream.device, "take_exception", None)
    if take_exception is not None and not stream.destroyed:
        exception = take_exception(stream.handle)
        if exception is not None:
            raise exception
    return 0
