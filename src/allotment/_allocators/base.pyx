cimport cython

from allotment._allocators.sizes cimport whole_size
from allotment._allocators.upcalls cimport report
from allotment._core.contract.current cimport stream_in_use
from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport IS_HOST, OK, Device, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.mechanism.address_lookup cimport ELSEWHERE, IN_BLOCK, IN_UNUSED, AddressLookup
from allotment._core.records.stats cimport stats_flat
from allotment._core.tools.arguments cimport (
    read_address, read_byte_count, read_device_index, read_place, read_stream, refuse_pickling)
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment._devices.streams cimport await_work, has_no_work, stream_of_caller

import operator
import warnings

from allotment import _settings as config
from allotment import _texts as texts
from allotment._allocators import arrays
from allotment._allocators.buffer import Buffer
from allotment._allocators.current import holders_on
from allotment._devices import open_device
from allotment.errors import (
    AddressError, OutOfMemoryFacts, RequestError, SettingsError, SizeError, UnsupportedError)

cdef extern from "Python.h":
    bint PyObject_CheckBuffer(object given) noexcept
    Py_buffer* PyMemoryView_GET_BUFFER(object view) noexcept


@cython.no_gc_clear     # a garbage collection must not clear the device before the memory has returned to it
cdef class AllocatorBase:
    """Base of every kind of allocator. Users hold one of the kinds."""

    def __cinit__(self, *args, **kwargs):
        self.observers = []

    def __reduce__(self):
        return refuse_pickling(self, "its memory belongs to this process; make an allocator in the other process")

    def __repr__(self):
        cdef bytes_t most = 0
        if self.device is None:
            return f"<{type(self).__name__}>"
        limit = f"limit {amount(most)}" if self.find_limit(&most) else "no limit"
        return f"<{type(self).__name__} {self.place()}: {self.figures()}, {limit}>"

    # --- its end ---

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(self, kind, error, traceback):
        self.close()

    def close(self) -> None:
        """Return all memory that is not in use to the device, and serve no more requests.

        A ResourceWarning reports the blocks that are in use. They can still be freed, and the figures can still be
        read. A second call does nothing. Raises RequestError if C code has its entry points, and DeviceError.
        """
        cdef bytes_t live
        with cython.critical_section(self):
            if self.closed or self.closing:
                return
            self.closing = True
        try:
            self.drain()
            live = self.live_bytes()
            self.shut()
            self.closed = True
        finally:
            self.closing = False
        self.warn_of(live)

    @property
    def closed(self) -> bool:
        """Whether it is closed. Requests then raise RequestError."""
        return self.closed

    cdef int require_open(self) except -1:
        if self.closed:
            raise RequestError(f"{self!r} is closed; make another allocator")
        return 0

    cdef bytes_t live_bytes(self) noexcept:
        return 0

    cdef int drain(self) except -1:
        return 0

    cdef int shut(self) except -1:
        return 0

    cdef int warn_of(self, bytes_t live) except -1:
        if live == 0:
            return 0
        try:
            warnings.warn(
                f"{self!r} ends with {amount(live)} in use; free all blocks first", ResourceWarning, source=self)
        except Exception:
            if not interpreter_ends():    # otherwise warning fails, as modules are gone
                raise
        return 0

    @property
    def device(self) -> Device:
        """Device that the memory belongs to: its `name`, `index` and `capabilities`."""
        return self.device

    # --- memory ---

    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """Return a buffer of `size` bytes for work on `stream`. It frees itself when the last reference to it is
        dropped.

        `size` is a number of bytes or text such as "1MiB". Without a stream, the buffer is for the calling thread's
        current stream, else the default stream. Memory that this process can read is then also ready for the calling
        thread: the call waits until no queued work uses it. With a stream, the call waits for nothing, and work on that
        stream may use the buffer. Raises what `malloc` raises. Safe to call from several threads.
        """
        count = whole_size(size)
        if stream is None and self.is_readable():
            return self.ready_buffer(count, None)
        given = self.stream_asked(None) if stream is None else stream
        return self.owned(self.malloc(count, given), count, given)

    def array(
        self, shape: int | tuple[int, ...], dtype: Any = "float64", *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """Return a NumPy array on this allocator's memory, uninitialized. The array keeps its block alive.

        The calling thread may use the array at once: the call waits for the work queued on `stream` that may still use
        the memory. `stream` is by default the calling thread's current stream, else the default stream. A function that
        runs on a stream does not wait; a caching allocator gives it other memory if needed. For a stream in a graph
        capture, the call waits only for the work before the capture.

        Raises UnsupportedError for memory that this process cannot read, TypeError for a dtype that holds Python
        objects, and what `malloc` raises. Safe to call from several threads.
        """
        self.require_readable()
        return arrays.array(self, shape, dtype, stream)

    def zeros(
        self, shape: int | tuple[int, ...], dtype: Any = "float64", *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """Return an `array` that the calling thread has filled with zeros."""
        self.require_readable()
        return arrays.full(self, shape, 0, dtype, stream)

    def full(
        self, shape: int | tuple[int, ...], value: Any, dtype: Any = None, *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """Return an `array` that the calling thread has filled with a value.

        Its dtype is by default that of the value.
        """
        self.require_readable()
        return arrays.full(self, shape, value, dtype, stream)

    def like(self, array: Any, *, stream: Stream | int | None = None) -> NDArray[Any]:
        """Return an `array` with the shape and dtype of another. It is uninitialized: the values are not copied."""
        self.require_readable()
        return arrays.like(self, array, stream)

    cdef bint is_readable(self) noexcept:
        return self.device is not None and self.device.table.capabilities & IS_HOST != 0

    cdef int require_readable(self) except -1:
        if not self.is_readable():
            self.require_device("array")
            raise UnsupportedError(
                f"{self.device.name} does not support arrays: this process cannot read its memory;"
                " PinnedAllocator has memory that both can read", operation="array")
        return 0

    def _ready(self, size: int, stream: Stream | int | None = None) -> Buffer:
        """Return an `empty` buffer that the calling thread may touch at once, even for a given stream."""
        return self.ready_buffer(size, stream)

    cdef object ready_buffer(self, object size, object stream):
        cdef stream_t handle = self.stream_asked(stream)
        buffer = self.empty(size, handle if stream is None else stream)
        if size != 0 and not has_no_work(self.device, handle) and stream_of_caller(self.device) is None:
            await_work(self.device, handle)
        return buffer

    cdef object owned(self, object address, object size, object stream):
        """Return a buffer for a block that was just allocated."""
        try:
            return Buffer(self, address, size, stream)
        except BaseException:
            self.free(address)
            raise

    cdef int free_owned(self, address_t address, void* buffer) except -1:
        self.free(address)
        return 0

    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *:
        return ELSEWHERE

    cdef int require_awake(self, address_t address) except -1:
        return 0

    def _block_around(self, address: int) -> tuple[int, int] | None:
        """Return (start, size) of the live block that contains an address; None if no block of this allocator does."""
        cdef address_t start = 0
        cdef bytes_t size = 0
        return (start, size) if self.find_block(read_address(address), &start, &size) == IN_BLOCK else None

    def copy(
        self,
        destination: Buffer | int,
        source: Buffer | int,
        size: int,
        stream: Stream | int | None = None,
        *,
        source_device: int | None = None,
        destination_device: int | None = None,
    ) -> None:
        """Copy `size` bytes in stream order, from `source` to `destination`.

        `stream` is by default the calling thread's current stream, else the default stream. `source` and `destination`
        are each a buffer, an object with the buffer protocol such as an array, or an address in a live block. All bytes
        must lie in that memory, or AddressError or SizeError is raised. An address that no allocator here knows is
        refused on host memory; other devices decide themselves. `source_device` and `destination_device` are the
        indexes of other devices that hold the memory. Returns at once; the copy is done when the stream has reached it.
        Raises StreamError, UnsupportedError if the device cannot copy, and DeviceError. Safe to call from several
        threads.
        """
        cdef DeviceTable* table = &self.device.table
        cdef bytes_t count = read_byte_count(size)
        cdef device_t source_index = read_device_index(source_device, self.device)
        cdef device_t destination_index = read_device_index(destination_device, self.device)
        cdef stream_t handle = self.stream_asked(stream)
        cdef address_t target, origin
        cdef status_t status
        self.require_device("copy")
        destination, target = memory_of(self, destination, count, True, destination_index)
        source, origin = memory_of(self, source, count, False, source_index)
        if count == 0:
            return
        if table.copy == NULL:
            raise UnsupportedError(f"{self.device.name} does not support copy", operation="copy")
        with nogil:
            status = table.copy(table.self, target, origin, count, destination_index, source_index, handle)
        if status != OK:
            raise device_error(self.device, status, "copy")
        if destination is not None or source is not None:
            keep_until_done(self.device, handle, (destination, source))

    cdef int reach_peer(self, device_t peer) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        if table.peer_enable == NULL:
            raise UnsupportedError(
                f"{self.device.name} does not support access by other devices (peers)", operation="peer_enable")
        with nogil:
            status = table.peer_enable(table.self, peer)
        if status != OK:
            raise device_error(self.device, status, "peer_enable")
        return 0

    cdef int require_device(self, str operation) except -1:
        return 0

    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF:
        return read_stream(stream, self.device)

    cdef stream_t stream_asked(self, object stream) except? 0xFFFFFFFFFFFFFFFF:
        if stream is None:
            return stream_in_use(self.device.table.serial) if self.device is not None else 0
        return self.stream_handle(stream)

    # --- figures ---

    cdef dict counters(self):
        raise NotImplementedError

    cdef str place(self):
        return f"on {self.device.name}"

    cdef str figures(self):
        return ""

    def stats(self) -> dict[str, int]:
        """Return all counters, flattened and sorted by key: {"allocated_bytes.all.current": 512, ...}.

        Creates about a hundred small objects and briefly holds the allocator's lock. Safe to call from several threads.
        """
        return stats_flat(self.counters())

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of the device, as the device reports them.

        Calls the device. Raises UnsupportedError if the device does not report this, and DeviceError. Safe to call from
        several threads.
        """
        cdef DeviceTable* table = &self.device.table
        cdef bytes_t free_bytes = 0, total = 0
        cdef status_t status
        self.require_device("memory_info")
        if table.memory_info == NULL:
            raise cannot_tell_memory(self.device)
        with nogil:
            status = table.memory_info(table.self, &free_bytes, &total)
        if status != OK:
            raise device_error(self.device, status, "memory_info")
        return free_bytes, total

    def process(self) -> dict[str, Any]:
        """Return what this process holds on the device, by library, including what nothing explains; all in bytes.

        The keys are "libraries" (by name), "context", "modules", "unexplained", and their "total", which is the
        driver's figure for this process. Raises UnsupportedError unless the process was started by `python -m
        allotment.preload`. Calls the driver, and visits every block. Safe to call from several threads.
        """
        from allotment._process.ledger import process_ledger

        return process_ledger(self)

    # --- limits ---

    cdef bint find_limit(self, bytes_t* most) noexcept:
        return False

    cdef int put_limit(self, bint limited, bytes_t most) except -1:
        raise UnsupportedError(
            f"{self!r} cannot be limited: its functions decide how much memory they provide", operation="limit")

    cdef bytes_t total_bytes(self) noexcept:
        return 0

    @property
    def limit(self) -> int | None:
        """The most bytes that this allocator may hold, or None. Set it to bytes, to text such as "20GiB", or to None.

        Memory that it already holds stays. Setting raises SettingsError for a value that is not a size.
        """
        cdef bytes_t most = 0
        return most if self.find_limit(&most) else None

    @limit.setter
    def limit(self, limit: int | str | None) -> None:
        self.put_limit(limit is not None, 0 if limit is None else config.parse_size(limit))

    cdef double fraction(self) except? -1:
        """Return the limit as a fraction of the device's memory."""
        cdef bytes_t most = 0
        if not self.find_limit(&most):
            return 1.0
        return <double> most / <double> self.known_total()

    cdef int put_fraction(self, double part) except -1:
        return self.put_limit(part < 1.0, self.limit_of(part))

    cdef bytes_t limit_of(self, double part) except? 0:
        """Return a fraction of the device's memory, in bytes."""
        return <bytes_t> (part * <double> self.known_total())

    cdef bytes_t known_total(self) except 0:
        cdef bytes_t total = self.total_bytes()
        if total == 0:
            raise cannot_tell_memory(self.device)
        return total

    # --- settings ---

    @property
    def settings(self) -> Settings:
        """The settings in force, as a `Settings` record. Assign a text to change them: "max_split_size_mb:64".

        Assigning changes the keys that the text names, all of them or, if one is wrong, none; other keys stay. Memory
        that the allocator already holds stays as it is. Assign from one thread at a time. Assigning raises
        SettingsError.
        """
        return self.present_settings()

    @settings.setter
    def settings(self, text: str) -> None:
        self.change_settings(config.Settings.parse(text, self.present_settings()))

    def _configure_leniently(self, text: str) -> None:
        """Apply a settings text as PyTorch does: apply what precedes a fault, then raise SettingsError."""
        settings, error = config.parse_leniently(text, self.present_settings())
        self.change_settings(settings)
        if error is not None:
            raise error

    @cython.critical_section
    cdef object present_settings(self):
        return self.current_settings

    @cython.critical_section
    cdef int change_settings(self, object settings) except -1:
        self.apply_settings(settings)
        self.current_settings = settings
        return 0

    cdef int apply_settings(self, object settings) except -1:
        return 0

    cdef object expect_backend(self, object settings, str expected):
        """Return the settings; raise if they ask for another kind of allocator."""
        if settings.backend != expected:
            raise SettingsError(
                f"backend:{settings.backend} asks for another class than {type(self).__name__}; "
                "allotment.make_allocator chooses the class that the settings ask for",
                key="backend", value=settings.backend, allowed=expected)
        return settings

    # --- out of memory ---

    cdef object too_large_facts(self, object requested):
        """Return the facts of a request that is refused only because of its size."""
        size = operator.index(requested)
        return OutOfMemoryFacts(
            device=self.device.name, device_index=self.device.table.device, requested=size, rounded=size,
            segment_size=size, device_free=0, device_total=self.total_bytes(), limit=None, allocated=0, reserved=0,
            private_free=0, largest_free=0, stream=0, too_large=True)

    cdef int tell_observers(self, object facts) except -1:
        for observer in list(self.observers):       # a copy, because an observer may detach itself
            try:
                observer(facts)
            except BaseException as error:
                report(error, observer)
        return 0


# --- what is copied from and to ------------------------------------------------------------------------------

cdef tuple memory_of(AllocatorBase allocator, object given, bytes_t size, bint is_written, device_t device):
    """Return (the objects to keep alive, address) of `size` bytes to copy. `device` is where they are."""
    cdef address_t address, start = 0
    cdef bytes_t found = 0
    if isinstance(given, Buffer):
        if size > len(given):
            raise SizeError(f"{size} bytes are more than {given!r} has", size)
        if size == 0:
            return None, 0
        address = given.address
        if isinstance(given.allocator, AllocatorBase):
            require_extent(given.allocator, address, size)
        return None, address
    if PyObject_CheckBuffer(given):
        return memory_of_object(given, size, is_written)
    address = read_place(given)
    if size == 0:
        return None, address
    if address == 0:
        raise AddressError("address 0 has no memory to copy from or to", 0)
    if device != allocator.device.table.device:
        return None, address        # of another device, which this device can reach
    if require_extent(allocator, address, size, True) == ELSEWHERE and allocator.device.table.capabilities & IS_HOST:
        for holder in holders_on(allocator.device):
            around = holder._block_around(address)
            if around is not None:
                start, found = around
                check_extent(address, size, start, found)
                return None, address
        raise AddressError(
            f"{address:#x} is not in a live block of an allocator on {allocator.device.name}; to copy other memory, "
            "pass the object that has it, such as an array", address)
    return None, address


cdef AddressLookup require_extent(
        AllocatorBase allocator, address_t address, bytes_t size, bint passes_elsewhere=False) except *:
    cdef address_t start = 0
    cdef bytes_t found = 0
    cdef AddressLookup where = allocator.find_block(address, &start, &found)
    if where == IN_UNUSED or (where == ELSEWHERE and not passes_elsewhere):
        raise AddressError(f"invalid device pointer: {address:#x} is not in a live block of {allocator!r}", address)
    if where == IN_BLOCK:
        check_extent(address, size, start, found)
        allocator.require_awake(start)
    return where


cdef int check_extent(address_t address, bytes_t size, address_t start, bytes_t found) except -1:
    if size > found - (address - start):
        raise SizeError(
            f"{size} bytes at {address:#x} exceed its block, which has {found} bytes at {start:#x}", size)
    return 0


cdef tuple memory_of_object(object given, bytes_t size, bint is_written):
    cdef object view = memoryview(given)
    if not view.c_contiguous or (is_written and view.readonly):
        raise BufferError(
            f"copy needs {'writable ' if is_written else ''}contiguous memory, which this {type(given).__name__} "
            "does not have")
    if size > <bytes_t> view.nbytes:
        raise SizeError(f"{size} bytes are more than the {view.nbytes} of {type(given).__name__}", size)
    return view, <address_t> PyMemoryView_GET_BUFFER(view).buf


cdef list unfinished = []       # objects that could not be kept alive in any other way


cdef int keep_until_done(Device device, stream_t stream, tuple memory) except -1:
    """Keep objects alive until the stream has reached this point.

    Devices without functions in stream order have copied by now.
    """
    submit = getattr(device, "submit", None)
    if submit is None:
        return 0
    try:
        submit(stream, len, (memory,))
    except BaseException:
        unfinished.append(memory)
    return 0


cdef object cannot_tell_memory(Device device):
    return UnsupportedError(
        f"{device.name} does not report its memory size (memory_info); set `limit` in bytes instead of a fraction",
        operation="memory_info")


cdef Device device_given(object device, bint shareable=False):
    if not isinstance(device, Device):
        return open_device(device, shareable=shareable)
    if shareable and not getattr(device, "shareable", True):
        raise SettingsError(
            f"shareable:True needs a device made with it, which {device!r} is not; use HostDevice(shareable=True)",
            key="shareable", value="True", allowed="False")
    return device


cdef str amount(object size):
    return f"{size} bytes" if size < 1 << 20 else texts.format_size(size)
