"""Streams and events, as users hold them.

A device may offer more than the contract, as methods; all of them are optional:

    submit(stream, function, arguments)     run a Python function in stream order
    take_exception(stream)                  return what such a function raised, if not raised yet
    _runs_by_itself                         True if work proceeds whether or not somebody waits for it
    _stream_of_caller()                     stream whose function the calling thread runs: see `stream_of_caller`
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from allotment._core.contract.current cimport CurrentStream, current_enter, current_find, current_leave
from allotment._core.contract.raising cimport check_status, require
from allotment._core.contract.table cimport INVALID, IS_HOST, NOT_READY, OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t
from allotment._core.tools.arguments cimport refuse_pickling
from allotment._core.tools.lock cimport allotment_lock_relax

import threading
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._devices.graphs import begin_capture
from allotment.errors import StreamError


class HasDevice(Protocol):
    """An object on a device that knows it, such as an allocator."""

    @property
    def device(self) -> Device:
        """The device."""


# Observers of streams: see `watch_streams`. A plain flag, so that streams cost nothing more while there is no observer.
cdef bint watching = False
cdef object watchers = WeakKeyDictionary()


cdef object watchers_lock = fork_safe_lock()


cdef list watchers_of(Device device):
    with watchers_lock:
        return list(watchers.get(device, ()))


def watch_streams(device: Device, watcher: Any) -> None:
    """Report the actions of a device's streams and events to `watcher`, as long as it lives: see `Sanitizer`."""
    global watching
    with watchers_lock:
        watchers.setdefault(device, WeakSet()).add(watcher)
        watching = True


def unwatch_streams(device: Device, watcher: Any) -> None:
    """Stop reporting to a watcher."""
    global watching
    with watchers_lock:
        watchers.get(device, WeakSet()).discard(watcher)
        watching = any([list(those) for those in watchers.values()])


cdef class Stream:
    """Stream(device)\n--\n
    Work done in order. Streams do not wait for each other unless told to (`wait`).

    `device` is a device, or an allocator, which stands for its device.

    A stream lives until `destroy`, not as long as this object: memory may have been freed on it, and an allocator knows
    it by its handle. Work that is then still running runs to its end.

    Safe to use from several threads. Every method raises StreamError once the stream has been destroyed,
    UnsupportedError for what its device cannot do, and DeviceError if the device fails.
    """

    def __init__(self, device: Device | HasDevice):
        cdef Device found = device_of(device)
        cdef stream_t handle
        cdef status_t status
        if self.device is not None:
            raise StreamError(f"{self!r} exists already; make another Stream")
        require(found, found.table.stream_create != NULL, "stream_create")
        with nogil:
            status = found.table.stream_create(found.table.self, &handle)
        check_status(found, status, "stream_create")
        self.device = found
        self.handle = handle

    @staticmethod
    def default(device: Device | HasDevice) -> Stream:
        """Return the stream for work that names no stream; its handle is 0. It cannot be destroyed."""
        cdef Stream stream = Stream.__new__(Stream)
        stream.device = device_of(device)
        stream.is_default = True
        return stream

    @staticmethod
    def external(device: Device | HasDevice, handle: int) -> Stream:
        """Return a stream that was created elsewhere, by its handle, which is trusted. Its creator destroys it."""
        cdef Stream stream = Stream.__new__(Stream)
        stream.device = device_of(device)
        stream.handle = handle
        stream.is_foreign = True
        return stream

    def __enter__(self) -> Stream:
        """Make it the calling thread's current stream of its device, until the `with` block ends.

        Requests that name no stream use the current one. The current stream also decides whether a request or a free is
        inside a graph capture; without one, the request's own stream decides, else the default stream.
        """
        cdef CurrentStream* entered
        self.check()
        entered = <CurrentStream*> malloc(sizeof(CurrentStream))
        if entered == NULL:
            raise MemoryError("the host has no memory to record the current stream")
        current_enter(entered, self.device.table.serial, self.handle)
        return self

    def __exit__(self, kind, error, traceback):
        cdef CurrentStream* entered = current_find(self.device.table.serial, self.handle)
        if entered == NULL:
            raise StreamError(f"{self!r} is not current in this thread, so this thread cannot leave it")
        current_leave(entered)
        free(entered)

    @property
    def device(self) -> Device:
        """Device that runs the stream's work."""
        return self.device

    @property
    def handle(self) -> int:
        """Number by which the device and allocators know the stream; 0 is the default stream.

        Raises StreamError if the stream has been destroyed.
        """
        self.check()
        return self.handle

    def submit(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Run `function(*arguments)` once everything submitted before is done. Does not wait for it.

        For devices that run Python functions: the host device does, others raise UnsupportedError.

        The next `synchronize` of this stream, or of one of its events, raises an exception of the function. Of several
        exceptions it raises the first. `sys.unraisablehook` gets the others, and any exception that no call has raised
        before the stream is destroyed or the interpreter ends.

        The function may use the allocator: allocate, free, drop buffers, even while another thread waits for this
        stream inside the allocator. It cannot wait for its own stream. While other streams have work, it cannot release
        memory to the system (`empty_cache`) either, because that waits for them, and they may wait for it. Both raise
        DeviceError.

        The thread that ran the function drops it and its arguments after the work counts as done: an argument, such as
        a view of a buffer, can outlive `synchronize` by a moment.

        While the stream is being captured, the function is recorded instead, and runs when the graph is replayed.
        """
        self.check()
        submit = getattr(self.device, "submit", None)
        require(self.device, submit is not None, "submit")
        if watching:
            for watcher in watchers_of(self.device):
                function = watcher.submitting(self, function)
        submit(self.handle, function, arguments)

    def query(self) -> bool:
        """Return whether everything submitted so far is done. Does not wait."""
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

        Raises the exception of a submitted function. Raises DeviceError if the stream is being captured (which
        invalidates the capture) or if a function that runs on this stream calls it.
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
        """Make later work of this stream wait for an event of any stream of this device. The caller does not wait.

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
        """Return an event that is done when everything submitted so far is."""
        cdef Event event
        self.check()
        event = event_on(self)
        check_status(self.device, record_event(self, event), "event_record")
        return event

    def destroy(self) -> None:
        """Destroy the stream. Work that was submitted is still done. A second call does nothing.

        Raises StreamError for the default stream.
        """
        cdef status_t status
        if self.destroyed:
            return
        self.check()
        if self.is_default:
            raise StreamError(f"the default stream of {self.device.name} cannot be destroyed")
        if self.is_foreign:
            raise StreamError(f"{self!r} was created elsewhere and must be destroyed there")
        require(self.device, self.device.table.stream_destroy != NULL, "stream_destroy")
        with cython.critical_section(self):
            if self.destroyed:      # by another thread
                return
            self.destroyed = True
        with nogil:
            status = self.device.table.stream_destroy(self.device.table.self, self.handle)
        self.destroyed = status == OK
        check_status(self.device, status, "stream_destroy")

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
            raise StreamError("this Stream was made by __new__ without __init__; make one with Stream(allocator)")
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
    A point in a stream's work, created by `Stream.record`; done when the work before it is.

    Safe to use from several threads.
    """

    def __init__(self):
        raise TypeError("an Event is created by Stream.record(), not by calling the class")

    @property
    def stream(self) -> Stream:
        """Stream whose work it marks."""
        return self.stream

    @property
    def device(self) -> Device:
        """Device of that stream."""
        return self.device

    # A finalizer, not a deallocator: during a garbage collection the device still exists.
    def __del__(self):
        cdef DeviceTable* table
        if self.handle != 0:
            table = &self.device.table
            with nogil:
                table.event_destroy(table.self, self.handle)
            self.handle = 0

    @property
    def handle(self) -> int:
        """Number by which the device knows the event."""
        return self.handle

    def query(self) -> bool:
        """Return whether the work before it is done. Does not wait."""
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
        self.wait_here()
        raise_kept_exception(self.stream)

    cdef int wait_here(self) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        answer_signals(self.device, table.event_query, self.handle)
        with nogil:
            status = table.event_synchronize(table.self, self.handle)
        check_status(self.device, status, "event_synchronize")
        if watching:
            for watcher in watchers_of(self.device):
                watcher.synchronized_event(self)
        return 0

    def __reduce__(self):
        return refuse_pickling(self, "an event belongs to this process; record one in the other process")

    def __repr__(self):
        return f"<Event {self.handle:#x} on {self.stream!r}>"


# --- memory that the calling thread is about to touch ---

# By device and handle of a stream in a capture: an event for the work submitted before the capture. That work may still
# use memory that the calling thread touches inside the capture, and a captured stream itself cannot be waited for.
cdef dict before_captures = {}


def begin_capture_of(Stream stream not None) -> int:
    """`begin_capture`, where the calling thread may touch memory inside the capture."""
    cdef bint is_noted = stream.device.table.capabilities & IS_HOST and not stream._is_captured()
    if is_noted:
        before_captures[stream.device, stream.handle] = stream.record()
    try:
        return begin_capture(stream.device, stream)
    except BaseException:
        if is_noted:
            capture_has_ended(stream)
        raise


def capture_has_ended(Stream stream not None) -> None:
    """Drop what `begin_capture_of` stored."""
    before_captures.pop((stream.device, stream.handle), None)


cdef bint has_no_work(Device device, stream_t stream) except -1:
    cdef DeviceTable* table = &device.table
    cdef capture_t capture = 0
    cdef status_t status = NOT_READY
    if table.event_record == NULL:
        return True             # the device's streams are always finished
    with nogil:
        if table.capture_status != NULL:
            table.capture_status(table.self, stream, &capture)
        if capture == 0 and table.stream_query != NULL:
            status = table.stream_query(table.self, stream)
    if capture != 0:
        earlier = before_captures.get((device, stream))
        return earlier is None or earlier.query()
    if status == OK and watching:
        for watcher in watchers_of(device):
            watcher.synchronized(Stream.external(device, stream))
    return status == OK


cdef int await_work(Device device, stream_t stream) except -1:
    # An event, to exclude work that other threads submit meanwhile. A destroyed stream can have one too.
    cdef Stream waited = Stream.external(device, stream)
    cdef Event event
    cdef status_t status
    if waited._is_captured():
        event = before_captures.get((device, stream))
        return 0 if event is None else event.wait_here()
    event = event_on(waited)
    status = record_event(waited, event)
    if status == INVALID:
        return 0                # no stream has this number, so no work exists
    check_status(device, status, "event_record")
    return event.wait_here()


cdef object stream_of_caller(Device device):
    asked = getattr(device, "_stream_of_caller", None)
    return None if asked is None else asked()


ctypedef status_t (*query_t)(void* self, uint64_t handle) noexcept nogil


cdef int answer_signals(Device device, query_t query, uint64_t handle) except -1:
    """Wait here, in front of the device call that would wait, so that Ctrl-C raises KeyboardInterrupt.

    Only the main thread handles signals. Devices that work only while a thread waits for them are not polled.
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


cdef status_t record_event(Stream stream, Event event) except *:
    cdef DeviceTable* table = &stream.device.table
    cdef status_t status
    with nogil:
        status = table.event_record(table.self, event.handle, stream.handle)
    if status == OK and watching:
        for watcher in watchers_of(stream.device):
            watcher.recorded_event(stream, event)
    return status


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
