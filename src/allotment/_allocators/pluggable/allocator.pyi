from _ctypes import CFuncPtr
from collections.abc import Callable
from os import PathLike
from typing import Any, NoReturn, TypeAlias

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import PoolId
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment.errors import OutOfMemoryFacts

Function: TypeAlias = int | CFuncPtr | Callable[..., Any]

class PluggableAllocator:
    """An allocator made of two functions of yours, which find the memory; the books are kept here.

        alloc(size, device, stream) -> pointer          void* alloc(size_t, int, void*)
        free(pointer, size, device, stream)             void free(void*, size_t, int, void*)

    Each function is C code, given by its address or as a ctypes function and called without the interpreter lock,
    or a Python callable; streams and pointers are ints there. What is freed is told with the size, device and stream
    it was asked for with. Functions are called without any lock held, from several threads at once if there are.

    `device` (a name or a device object) is whose memory it is; without one there is no `copy`, no `memory_info`, no
    view of a buffer. Where a method takes a device index, None is that device's, or 0. The optional functions, with
    what Python's take and C's:

        init(device_count)                                          void(int)
        reset()                                                     void(void)
        memory_fraction(fraction, device)                           void(double, int)
        base_alloc(pointer) -> base, or (base, size)                void*(void*, size_t*)
        record_stream(pointer, stream)                              void(void*, void*)
        begin_allocate_to_pool(device, pool, accepts)               void(int, uint64_t, uint64_t, void*)
        end_allocate_to_pool(device, pool)                          void(int, uint64_t, uint64_t)
        release_pool(device, pool)                                  void(int, uint64_t, uint64_t)

    Making it runs `init(device_count)`. A copy (`copy.copy`) has the same functions and books of its own. Memory that
    is still out when the allocator goes is not freed.

    An alloc function that raises MemoryError means OutOfMemoryError; anything else that a function raises is a
    DeviceError with that as its cause. C functions must not raise. Safe to use from several threads.
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
        **hooks: Function | str,
    ) -> PluggableAllocator:
        """Functions of a shared library, by name; the optional ones may be names too.

        Raises RequestError if the library cannot be loaded or has no such function.
        """
    @property
    def name(self) -> str:
        """ "pluggable" """
    @property
    def device(self) -> Device: ...
    @property
    def initialized(self) -> bool:
        """True from the start."""
    def init(self, device_count: int) -> None: ...
    @property
    def caching(self) -> bool:
        """Always true; setting it has no effect: what is cached is up to the functions."""
    @caching.setter
    def caching(self, on: bool) -> None: ...
    def malloc(self, size: int, stream: Stream | int = 0, *, device: int | None = None) -> int:
        """What the alloc function gives, which may be 0. Size 0 is passed on.

        A pointer that is handed out twice is remembered as it was the first time. Raises SizeError, StreamError,
        OutOfMemoryError, DeviceError.
        """
    def free(self, address: int, /) -> None:
        """Forget the pointer, then call the free function with what it was allocated with.

        0 is a pointer like any other here. Raises AddressError for what is not out, DeviceError if the function
        raises (the pointer is forgotten all the same).
        """
    def empty(self, size: int, stream: Stream | int = 0, *, device: int | None = None) -> Buffer:
        """A buffer that frees itself, through this allocator. Raises OutOfMemoryError if there is no memory for it."""
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None: ...
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Runs `reset`; the pool is ignored."""
    def base_allocation(self, address: int) -> tuple[int, int]:
        """(base, size) as `base_alloc` says; without it, the address and the size that was asked for, 0 if unknown."""
    def set_memory_fraction(self, fraction: float, device: int | None = None) -> None: ...
    def get_memory_fraction(self, device: int | None = None) -> float:
        """What was set through this allocator. Raises UnsupportedError if nothing was, or nobody listened."""
    @property
    def memory_fraction(self) -> float: ...
    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None: ...
    def attach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Call `observer`, without any lock held, when a request for memory gets null or a MemoryError.

        Not for segments that a pool asks for: the pool's allocator has observers of its own.
        """
    def begin_allocate_to_pool(
        self, pool: PoolId, *, accepts: Callable[[int], bool] | None = None, device: int | None = None
    ) -> None:
        """`accepts` goes to a Python function as it is; a C function gets NULL for it."""
    def end_allocate_to_pool(self, pool: PoolId, *, device: int | None = None) -> None: ...
    def release_pool(self, pool: PoolId, *, device: int | None = None) -> None: ...
    def pool_use_count(self, pool: PoolId, *, device: int | None = None) -> int:
        """How often the pool was begun and not released yet."""
    def stats(self, device: int | None = None) -> dict[str, int]:
        """All counters, flattened and sorted by key; each pointer that is out counts as a segment of one block."""
    def nested_stats(self, device: int | None = None) -> dict[str, Any]: ...
    def reset_peak_stats(self, device: int | None = None) -> None: ...
    def reset_accumulated_stats(self, device: int | None = None) -> None: ...
    def summary(self, abbreviated: bool = False) -> str: ...
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device it was given."""
    def cache_info(self, largest: int = 0) -> int:
        """`largest`, or the device's free memory when 0: nothing is cached here."""
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """Every pointer that is out, of all devices, as a segment of one block; of a private pool, none."""
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """`segments` in the form PyTorch's memory tools read, without a history."""
    def dump_snapshot(self, path: str | PathLike[str]) -> None: ...
    def enable_peer_access(self, peer: int) -> None:
        """Let the device of index `peer` touch this one's memory."""
    def copy(
        self,
        destination: Buffer | int,
        source: Buffer | int,
        size: int,
        stream: Stream | int = 0,
        *,
        source_device: int | None = None,
    ) -> None:
        """Copy `size` bytes in stream order."""

    # What two functions cannot do. Each raises UnsupportedError that says what can.
    def pool(self, *, use_on_oom: bool = False, no_split: bool = False, allocator: Any = None) -> NoReturn: ...
    def create_or_incref_pool(self, pool: PoolId, allocator: Any = None) -> NoReturn: ...
    def close_pool(self, pool: PoolId) -> NoReturn: ...
    def pool_reserved_bytes(self, pool: PoolId) -> NoReturn: ...
    def set_use_on_oom(self, pool: PoolId, on: bool) -> NoReturn: ...
    def set_no_split(self, pool: PoolId) -> NoReturn: ...
    def check_pool_live_allocations(self, pool: PoolId, addresses: Any) -> NoReturn: ...
    def checkpoint_pool(self, pool: PoolId) -> NoReturn: ...
    def restore_pool(self, state: Any) -> NoReturn: ...
    def tenant(self, name: str) -> NoReturn: ...
    def tenants(self) -> NoReturn: ...
    def share(self, address: int) -> NoReturn: ...
    def expandable_segment_sizes(self) -> NoReturn: ...
    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        *,
        stacks: str = "python",
        max_entries: int | None = None,
        clear_history: bool = False,
        skip_actions: Any = None,
    ) -> NoReturn: ...
    def record_annotation(self, pairs: Any) -> NoReturn: ...
    def attach_trace_tracker(self, tracker: Any) -> NoReturn: ...
