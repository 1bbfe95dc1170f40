cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.base cimport device_given
from allotment._allocators.buffer cimport free_buffer
from allotment._allocators.parts cimport BasicInspection, BasicSharing, ObservedLimits, Part
from allotment._allocators.pluggable.ledger_snapshot cimport segments_of
from allotment._allocators.pluggable.ledger cimport (
    Entry, ledger_find, ledger_remove, ledger_reset_accumulated, ledger_reset_peak, ledger_stats)
from allotment._allocators.pluggable.plugged_memory cimport (
    PluggedMemory, base_alloc_t, begin_pool_t, end_pool_t, failed_function, init_t, memory_fraction_t, record_stream_t,
    reset_t, unknown_pointer)
from allotment._allocators.sizes cimport whole_size
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.records.stats cimport Stats, stats_flat, stats_nested
from allotment._core.tools.arguments cimport (
    read_address, read_any_size, read_block, read_byte_count, read_device_count, read_fraction, read_pool_id)

import ctypes
import os
import pickle
from functools import partial
from weakref import ref

from allotment._allocators.files import replaced
from allotment._core.edge.snapshot import assembled
from allotment._settings import Settings
from allotment.errors import OutOfMemoryError, RequestError, UnsupportedError

cdef tuple OPTIONAL = (
    "init", "reset", "memory_fraction", "base_alloc", "record_stream", "begin_allocate_to_pool", "end_allocate_to_pool",
    "release_pool")


@cython.final
cdef class PluggableAllocator(PluggedMemory):
    """PluggableAllocator(alloc, free, *, device=None, device_count=0, init=None, reset=None, \
    memory_fraction=None, base_alloc=None, record_stream=None, begin_allocate_to_pool=None, end_allocate_to_pool=None, \
    release_pool=None)\n--\n
    An allocator made of two functions of yours, which provide the memory; it does the accounting.

        alloc(size, device, stream) -> pointer          void* alloc(size_t, int, void*)
        free(pointer, size, device, stream)             void free(void*, size_t, int, void*)

    Each function is C code, given by its address or as a ctypes function and called without the interpreter lock, or a
    Python callable; streams and pointers are ints there. A free is called with the size, device and stream of the
    request. Functions are called without any lock held, from several threads at once if the program has several.

    `device` (a name or a device object) owns the memory; without one there is no `copy`, no `memory_info`, no view of a
    buffer. Where a method takes a device index, None means that device's index, or 0. The optional functions, with
    their arguments in Python and in C:

        init(device_count)                                          void(int)
        reset()                                                     void(void)
        memory_fraction(fraction, device)                           void(double, int)
        base_alloc(pointer) -> base, or (base, size)                void*(void*, size_t*)
        record_stream(pointer, stream)                              void(void*, void*)
        begin_allocate_to_pool(device, pool, accepts)               void(int, uint64_t, uint64_t, void*)
        end_allocate_to_pool(device, pool)                          void(int, uint64_t, uint64_t)
        release_pool(device, pool)                                  void(int, uint64_t, uint64_t)

    Creating it runs `init(device_count)`. A copy (`copy.copy`) has the same functions and its own records. Memory that
    is still allocated when the allocator is deleted is not freed. What two functions cannot do (a history, tags,
    tenants, sharing), a caching allocator can do on top of them: `Allocator(device).pool(allocator=this)`.

    An alloc function that raises MemoryError causes an OutOfMemoryError; any other exception of a function causes a
    DeviceError with that exception as its cause. C functions must not raise. Safe to use from several threads.
    """

    def __cinit__(self, *args, **kwargs):
        self.current_settings = Settings()
        self.fractions = {}
        self.pool_uses = {}

    @cython.embedsignature(False)    # the class has it
    def __init__(
        self,
        alloc: Function,
        free: Function,
        *,
        device: str | Device | None = None,
        device_count: int = 0,
        init: Function | None = None,
        reset: Function | None = None,
        memory_fraction: Function | None = None,
        base_alloc: Function | None = None,
        record_stream: Function | None = None,
        begin_allocate_to_pool: Function | None = None,
        end_allocate_to_pool: Function | None = None,
        release_pool: Function | None = None,
    ):
        if self.initialized:
            raise RequestError(f"{self!r} exists already; make another one for other functions")
        if device is not None:
            self.device = device_given(device)
            self.has_device = True
        self.take_functions({
            "alloc": alloc, "free": free, "init": init, "reset": reset, "memory_fraction": memory_fraction,
            "base_alloc": base_alloc, "record_stream": record_stream,
            "begin_allocate_to_pool": begin_allocate_to_pool, "end_allocate_to_pool": end_allocate_to_pool,
            "release_pool": release_pool})
        self.init(device_count)

    @staticmethod
    def from_library(
        path: str | PathLike[str],
        alloc_name: str,
        free_name: str,
        *,
        device: str | Device | None = None,
        device_count: int = 0,
        **hooks,
    ) -> PluggableAllocator:
        """Return an allocator made of functions of a shared library, by name; the optional ones may be names too.

        Raises RequestError if the library cannot be loaded or has no such function.
        """
        try:
            library = ctypes.CDLL(os.fspath(path))
        except OSError as error:
            raise RequestError(f"{os.fspath(path)!r} cannot be loaded as a library: {error}") from error
        for name, given in hooks.items():
            hooks[name] = symbol(library, given) if isinstance(given, str) else given
        return PluggableAllocator(
            symbol(library, alloc_name), symbol(library, free_name), device=device, device_count=device_count, **hooks)

    def __copy__(self):
        cdef PluggableAllocator other = PluggableAllocator.__new__(PluggableAllocator)
        self.share_functions(other)
        return other

    def __deepcopy__(self, memo):
        return self.__copy__()

    def set_function(self, name: str, function: Function | None) -> None:
        """Replace an optional function, from its next call on; None removes it.

        `name` is one of the optional functions of the class. An earlier copy of the allocator keeps its function.
        Raises RequestError for another name; TypeError and RequestError for an object that is not a function.
        """
        if name not in OPTIONAL:
            raise RequestError(f"unknown function {name!r}; those that can be set are {', '.join(OPTIONAL)}")
        self.replace_function(name, function)

    @property
    def raw_deleter(self) -> Callable[[int], None]:
        """Return `free` as a C function, void(void*), for code that gets memory together with its deleter.

        It is a ctypes function; `ctypes.cast(f, ctypes.c_void_p).value` is its address, valid as long as the allocator
        lives. It takes the interpreter lock, and `sys.unraisablehook` gets the exceptions of `free`.
        """
        if self.plug.functions.free == NULL and "free" not in self.callables:
            raise RequestError("this PluggableAllocator was made by __new__ without __init__, and has nothing to free")
        with cython.critical_section(self):
            if self.deleter is None:
                self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(partial(_free_pointer, ref(self)))
            return self.deleter

    def init(self, device_count: int) -> None:
        """Run the `init` function once more, for `device_count` devices.

        Raises RequestError for a number that no machine has, DeviceError if the function raises.
        """
        cdef init_t hook = self.plug.functions.init
        cdef int count = read_device_count(device_count)
        if hook != NULL:
            with nogil:
                hook(count)
        else:
            self.call("init", (count,))
        self.initialized = True

    # --- its parts: see `parts` ---

    @property
    def history(self) -> PluggableHistory:
        """What is allocated now; it keeps no history."""
        return PluggableHistory(self)

    @property
    def pools(self) -> PluggablePools:
        """Pools that its functions make, by id."""
        return PluggablePools(self)

    @property
    def limits(self) -> PluggableLimits:
        """Limits of its functions' memory use, and observers for running out of memory."""
        return PluggableLimits(self)

    @property
    def sharing(self) -> BasicSharing:
        """Which other devices use its memory."""
        return BasicSharing(self)

    @property
    def inspection(self) -> PluggableInspection:
        """Figures, for tools and tests."""
        return PluggableInspection(self)

    cdef double fraction(self) except? -1:
        return PluggableLimits(self).get_memory_fraction()

    cdef int put_fraction(self, double part) except -1:
        PluggableLimits(self).set_memory_fraction(part)
        return 0

    cdef int apply_settings(self, object settings) except -1:
        raise UnsupportedError(
            "a pluggable allocator has no settings: its functions decide everything", operation="settings")

    # --- allocating and freeing ---

    def malloc(self, size: int | str, stream: Stream | int | None = None, *, device: int | None = None) -> int:
        """Return what the alloc function returns, which may be 0. Size 0 is passed on.

        `stream` is by default the calling thread's current stream, else the default stream, 0. For a pointer that the
        function returns twice, the first record counts. Raises SizeError, StreamError, OutOfMemoryError, DeviceError.
        Safe to call from several threads.
        """
        cdef device_t index = self.device_index(device)
        cdef stream_t handle = self.stream_asked(stream)
        cdef bytes_t wanted = 0
        cdef address_t address
        self.require_open()
        size = whole_size(size)
        if not read_any_size(size, &wanted, 64):    # more than a function's argument can express
            raise OutOfMemoryError(self.too_large_facts(size))
        try:
            address = self.obtain(wanted, index, handle)
        except OutOfMemoryError as error:
            self.tell_observers(error.facts)
            raise
        if address == 0 and wanted != 0 and self.observers:
            self.tell_observers(self.facts(size, index, handle))
        return address

    def free(self, address: Buffer | int, /) -> None:
        """Forget the pointer, then call the free function with the arguments of its request. A `Buffer` is closed.

        Here 0 is a pointer like any other. Raises AddressError for a pointer that is not allocated, DeviceError if the
        function raises (the pointer is forgotten nevertheless). Safe to call from several threads.
        """
        cdef address_t pointer
        cdef Entry entry
        if free_buffer(address, self):
            return
        pointer = read_address(address)
        if not ledger_remove(&self.plug.ledger, pointer, &entry):
            raise unknown_pointer(pointer)
        self.hand_back(entry.address, entry.size, entry.device, entry.stream)

    def empty(self, size: int | str, stream: Stream | int | None = None, *, device: int | None = None) -> Buffer:
        """Return a buffer that frees itself through this allocator.

        Without a stream, memory of its own device that this process can read is ready for the calling thread: the call
        waits until the work queued on the current stream, else the default stream, is done. Raises OutOfMemoryError if
        there is no memory for it, and what `malloc` raises.
        """
        count = whole_size(size)
        if stream is None and device is None and self.is_readable():
            return self.ready_buffer(count, None)
        given = self.stream_asked(None) if stream is None else stream
        address = self.malloc(count, given, device=device)
        if address == 0 and count != 0:
            raise OutOfMemoryError(self.facts(count, self.device_index(device), self.stream_handle(given)))
        return self.owned(address, count, given)

    # --- hooks ---

    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Run `record_stream` for a block (an address or a `Buffer`); without that function, do nothing.

        Raises AddressError, StreamError, DeviceError if the function raises.
        """
        cdef record_stream_t hook = self.plug.functions.record_stream
        cdef address_t address = read_block(block)
        cdef stream_t handle = self.stream_handle(stream)
        if hook != NULL:
            with nogil:
                hook(<void*> address, <void*> handle)
        else:
            self.call("record_stream", (address, handle))

    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Run `reset`; the pool is ignored. Raises DeviceError if the function raises."""
        cdef reset_t hook = self.plug.functions.reset
        if hook != NULL:
            with nogil:
                hook()
        else:
            self.call("reset", ())

    # --- figures ---

    def stats(self, device: int | None = None) -> dict[str, int]:
        """Return all counters of one device, flattened and sorted by key. Safe to call from several threads."""
        return stats_flat(self.counters_of(device))

    def reset_peak_stats(self, device: int | None = None) -> None:
        """Reset the peaks to the current values."""
        ledger_reset_peak(&self.plug.ledger, self.device_index(device))

    cdef dict counters(self):
        return self.counters_of(None)

    cdef dict counters_of(self, object device):
        cdef Stats stats
        ledger_stats(&self.plug.ledger, self.device_index(device), &stats)
        return stats_nested(&stats)

    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """Return what is allocated, in the form that PyTorch's memory tools read, without a history."""
        segments = PluggableHistory(self).segments(pool)
        last = max([segment["device"] for segment in segments] + [self.device.table.device])
        return assembled(segments, {}, last + 1, Settings().as_pytorch_dict(), [])      # no history is kept


@cython.final
cdef class PluggableHistory(Part):
    """PluggableHistory(allocator)\n--\n
    The allocated memory of a `PluggableAllocator`: its `history`.
    """

    cdef PluggableAllocator allocator

    def __cinit__(self, PluggableAllocator allocator not None):
        self.allocator = allocator

    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """Return every allocated pointer, of all devices, as a segment of one block; none for a private pool."""
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if first != 0 or second != 0:
            return []
        return segments_of(&self.allocator.plug.ledger)

    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open."""
        with replaced(path) as file:
            pickle.dump(self.allocator.snapshot(), file)


@cython.final
cdef class PluggablePools(Part):
    """PluggablePools(allocator)\n--\n
    Pools that the functions of a `PluggableAllocator` make: its `pools`.
    """

    cdef PluggableAllocator allocator

    def __cinit__(self, PluggableAllocator allocator not None):
        self.allocator = allocator

    def begin_allocate_to_pool(
        self, pool: PoolId, *, accepts: Callable[[int], bool] | None = None, device: int | None = None
    ) -> None:
        """Run `begin_allocate_to_pool`, and count a use of the pool.

        A Python function gets `accepts` unchanged; a C function gets NULL for it. Raises PoolError for an invalid pool
        id, DeviceError if the function raises.
        """
        cdef begin_pool_t hook = self.allocator.plug.functions.begin_allocate_to_pool
        cdef device_t index = self.allocator.device_index(device)
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if hook != NULL:
            with nogil:
                hook(index, first, second, NULL)
        else:
            self.allocator.call("begin_allocate_to_pool", (index, (first, second), accepts))
        use = index, (first, second)
        with cython.critical_section(self.allocator.pool_uses):
            self.allocator.pool_uses[use] = self.allocator.pool_uses.get(use, 0) + 1

    def end_allocate_to_pool(self, pool: PoolId, *, device: int | None = None) -> None:
        """Run `end_allocate_to_pool`. Raises PoolError, DeviceError if the function raises."""
        cdef end_pool_t hook = self.allocator.plug.functions.end_allocate_to_pool
        cdef device_t index = self.allocator.device_index(device)
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if hook != NULL:
            with nogil:
                hook(index, first, second)
        else:
            self.allocator.call("end_allocate_to_pool", (index, (first, second)))

    def release(self, pool: PoolId, *, device: int | None = None) -> None:
        """Run `release_pool`, and count one use less. Raises PoolError; DeviceError if the function raises."""
        cdef end_pool_t hook = self.allocator.plug.functions.release_pool
        cdef device_t index = self.allocator.device_index(device)
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        if hook != NULL:
            with nogil:
                hook(index, first, second)
        else:
            self.allocator.call("release_pool", (index, (first, second)))
        use = index, (first, second)
        with cython.critical_section(self.allocator.pool_uses):
            left = self.allocator.pool_uses.pop(use, 0) - 1
            if left > 0:
                self.allocator.pool_uses[use] = left

    def use_count(self, pool: PoolId, *, device: int | None = None) -> int:
        """Return how often the pool was begun and not released yet. Raises PoolError for an invalid pool id."""
        cdef uint64_t first, second
        read_pool_id(pool, &first, &second)
        return self.allocator.pool_uses.get((self.allocator.device_index(device), (first, second)), 0)

    @property
    def caching(self) -> bool:
        """Always True. Setting it has no effect: the functions decide what is cached."""
        return True

    @caching.setter
    def caching(self, on: bool) -> None:
        pass    # this allocator has no cache to switch


@cython.final
cdef class PluggableLimits(ObservedLimits):
    """PluggableLimits(allocator)\n--\n
    How much memory a `PluggableAllocator` may use: its `limits`.
    """

    cdef PluggableAllocator allocator

    def __cinit__(self, PluggableAllocator allocator not None):
        self.allocator = allocator

    def set_memory_fraction(self, fraction: float, device: int | None = None) -> None:
        """Run `memory_fraction`, and remember the value; without that function, do nothing.

        Raises RequestError for a number that is not between 0.0 and 1.0, DeviceError if the function raises.
        """
        cdef memory_fraction_t hook = self.allocator.plug.functions.memory_fraction
        cdef double part = read_fraction(fraction)
        cdef device_t index = self.allocator.device_index(device)
        if hook != NULL:
            with nogil:
                hook(part, index)
        elif "memory_fraction" in self.allocator.callables:
            self.allocator.call("memory_fraction", (part, index))
        else:
            return
        self.allocator.fractions[index] = part

    def get_memory_fraction(self, device: int | None = None) -> float:
        """Return the fraction set through this allocator.

        Raises UnsupportedError if none was set, or without that function.
        """
        try:
            return self.allocator.fractions[self.allocator.device_index(device)]
        except KeyError:
            raise UnsupportedError(
                "get_memory_fraction: none was set for this device; give the allocator a memory_fraction function and "
                "set one", operation="get_memory_fraction") from None


@cython.final
cdef class PluggableInspection(BasicInspection):
    """PluggableInspection(allocator)\n--\n
    Figures of a `PluggableAllocator`: its `inspection`.
    """

    cdef PluggableAllocator allocator

    def __cinit__(self, PluggableAllocator allocator not None):
        self.allocator = allocator

    def nested_stats(self, device: int | None = None) -> dict[str, Any]:
        """Return the counters of one device, as `Allocator` has them; each allocated pointer is a segment."""
        return self.allocator.counters_of(device)

    def reset_accumulated_stats(self, device: int | None = None) -> None:
        """Restart the sums of all requests and frees at 0."""
        ledger_reset_accumulated(&self.allocator.plug.ledger, self.allocator.device_index(device))

    def cache_info(self, largest: int = 0) -> int:
        """Return `largest`, or the device's free memory for 0: nothing is cached here.

        Raises UnsupportedError without a device, DeviceError.
        """
        return read_byte_count(largest) or self.allocator.memory_info()[0]

    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """Return (base, size) from `base_alloc`; without it, the address and the requested size, 0 if unknown.

        Raises AddressError; DeviceError if the function raises or returns something else.
        """
        cdef base_alloc_t hook = self.allocator.plug.functions.base_alloc
        cdef address_t base = read_block(block)
        cdef Entry entry
        cdef size_t size = 0
        if ledger_find(&self.allocator.plug.ledger, base, &entry):
            size = entry.size
        if hook != NULL:
            with nogil:
                base = <address_t> hook(<void*> base, &size)
        elif "base_alloc" in self.allocator.callables:
            found = self.allocator.call("base_alloc", (base,))
            try:
                if isinstance(found, tuple):
                    found, length = found
                    size = read_byte_count(length)
                base = read_address(found)
            except (TypeError, ValueError) as error:
                raise failed_function("base_alloc", error) from error
        return base, size


def _free_pointer(allocator, address):
    """What a raw deleter calls. It must not keep its allocator alive, which keeps the deleter."""
    living = allocator()
    if living is not None:
        living.free(address or 0)


cdef object symbol(object library, str name):
    try:
        return library[name]
    except AttributeError as error:
        raise RequestError(f"the library {library._name!r} does not have a function {name!r}") from error
