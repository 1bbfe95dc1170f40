# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable
from os import PathLike
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pool import PoolId
from allotment._allocators.parts import BasicInspection, BasicSharing, ObservedLimits, Part
from allotment._allocators.pluggable.functions import Function
from allotment._allocators.pluggable.plugged_memory import PluggedMemory
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream

class PluggableAllocator(PluggedMemory):
    """An allocator made of two functions of yours, which provide the memory; it does the accounting.

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
    ) -> None: ...
    @staticmethod
    def from_library(
        path: str | PathLike[str],
        alloc_name: str,
        free_name: str,
        *,
        device: str | Device | None = None,
        device_count: int = 0,
        **hooks: Any,
    ) -> PluggableAllocator:
        """Return an allocator made of functions of a shared library, by name; the optional ones may be names too.

        Raises RequestError if the library cannot be loaded or has no such function.
        """
    def set_function(self, name: str, function: Function | None) -> None:
        """Replace an optional function, from its next call on; None removes it.

        `name` is one of the optional functions of the class. An earlier copy of the allocator keeps its function.
        Raises RequestError for another name; TypeError and RequestError for an object that is not a function.
        """
    @property
    def raw_deleter(self) -> Callable[[int], None]:
        """Return `free` as a C function, void(void*), for code that gets memory together with its deleter.

        It is a ctypes function; `ctypes.cast(f, ctypes.c_void_p).value` is its address, valid as long as the allocator
        lives. It takes the interpreter lock, and `sys.unraisablehook` gets the exceptions of `free`.
        """
    def init(self, device_count: int) -> None:
        """Run the `init` function once more, for `device_count` devices.

        Raises RequestError for a number that no machine has, DeviceError if the function raises.
        """
    @property
    def history(self) -> PluggableHistory:
        """What is allocated now; it keeps no history."""
    @property
    def pools(self) -> PluggablePools:
        """Pools that its functions make, by id."""
    @property
    def limits(self) -> PluggableLimits:
        """Limits of its functions' memory use, and observers for running out of memory."""
    @property
    def sharing(self) -> BasicSharing:
        """Which other devices use its memory."""
    @property
    def inspection(self) -> PluggableInspection:
        """Figures, for tools and tests."""
    def malloc(self, size: int | str, stream: Stream | int | None = None, *, device: int | None = None) -> int:
        """Return what the alloc function returns, which may be 0. Size 0 is passed on.

        `stream` is by default the calling thread's current stream, else the default stream, 0. For a pointer that the
        function returns twice, the first record counts. Raises SizeError, StreamError, OutOfMemoryError, DeviceError.
        Safe to call from several threads.
        """
    def free(self, address: Buffer | int, /) -> None:
        """Forget the pointer, then call the free function with the arguments of its request. A `Buffer` is closed.

        Here 0 is a pointer like any other. Raises AddressError for a pointer that is not allocated, DeviceError if the
        function raises (the pointer is forgotten nevertheless). Safe to call from several threads.
        """
    def empty(self, size: int | str, stream: Stream | int | None = None, *, device: int | None = None) -> Buffer:
        """Return a buffer that frees itself through this allocator.

        Without a stream, memory of its own device that this process can read is ready for the calling thread: the call
        waits until the work queued on the current stream, else the default stream, is done. Raises OutOfMemoryError if
        there is no memory for it, and what `malloc` raises.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Run `record_stream` for a block (an address or a `Buffer`); without that function, do nothing.

        Raises AddressError, StreamError, DeviceError if the function raises.
        """
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Run `reset`; the pool is ignored. Raises DeviceError if the function raises."""
    def stats(self, device: int | None = None) -> dict[str, int]:
        """Return all counters of one device, flattened and sorted by key. Safe to call from several threads."""
    def reset_peak_stats(self, device: int | None = None) -> None:
        """Reset the peaks to the current values."""
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """Return what is allocated, in the form that PyTorch's memory tools read, without a history."""

class PluggableHistory(Part):
    """The allocated memory of a `PluggableAllocator`: its `history`."""

    def __init__(self, allocator: PluggableAllocator) -> None: ...
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """Return every allocated pointer, of all devices, as a segment of one block; none for a private pool."""
    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open."""

class PluggablePools(Part):
    """Pools that the functions of a `PluggableAllocator` make: its `pools`."""

    def __init__(self, allocator: PluggableAllocator) -> None: ...
    def begin_allocate_to_pool(
        self, pool: PoolId, *, accepts: Callable[[int], bool] | None = None, device: int | None = None
    ) -> None:
        """Run `begin_allocate_to_pool`, and count a use of the pool.

        A Python function gets `accepts` unchanged; a C function gets NULL for it. Raises PoolError for an invalid pool
        id, DeviceError if the function raises.
        """
    def end_allocate_to_pool(self, pool: PoolId, *, device: int | None = None) -> None:
        """Run `end_allocate_to_pool`. Raises PoolError, DeviceError if the function raises."""
    def release(self, pool: PoolId, *, device: int | None = None) -> None:
        """Run `release_pool`, and count one use less. Raises PoolError; DeviceError if the function raises."""
    def use_count(self, pool: PoolId, *, device: int | None = None) -> int:
        """Return how often the pool was begun and not released yet. Raises PoolError for an invalid pool id."""
    @property
    def caching(self) -> bool:
        """Always True. Setting it has no effect: the functions decide what is cached."""
    @caching.setter
    def caching(self, on: bool) -> None: ...

class PluggableLimits(ObservedLimits):
    """How much memory a `PluggableAllocator` may use: its `limits`."""

    def __init__(self, allocator: PluggableAllocator) -> None: ...
    def set_memory_fraction(self, fraction: float, device: int | None = None) -> None:
        """Run `memory_fraction`, and remember the value; without that function, do nothing.

        Raises RequestError for a number that is not between 0.0 and 1.0, DeviceError if the function raises.
        """
    def get_memory_fraction(self, device: int | None = None) -> float:
        """Return the fraction set through this allocator.

        Raises UnsupportedError if none was set, or without that function.
        """

class PluggableInspection(BasicInspection):
    """Figures of a `PluggableAllocator`: its `inspection`."""

    def __init__(self, allocator: PluggableAllocator) -> None: ...
    def nested_stats(self, device: int | None = None) -> dict[str, Any]:
        """Return the counters of one device, as `Allocator` has them; each allocated pointer is a segment."""
    def reset_accumulated_stats(self, device: int | None = None) -> None:
        """Restart the sums of all requests and frees at 0."""
    def cache_info(self, largest: int = 0) -> int:
        """Return `largest`, or the device's free memory for 0: nothing is cached here.

        Raises UnsupportedError without a device, DeviceError.
        """
    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """Return (base, size) from `base_alloc`; without it, the address and the requested size, 0 if unknown.

        Raises AddressError; DeviceError if the function raises or returns something else.
        """
