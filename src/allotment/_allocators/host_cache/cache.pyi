# Made from cache.pyx by `make stubs`: change it there.

from types import TracebackType
from typing import Any, SupportsIndex

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer
from allotment._allocators.host_cache.host_memory import HostMemory
from allotment._allocators.host_cache.system import System

class CachingAllocator(HostMemory):
    """Host memory that is kept under its exact size when freed, and handed out again, last in first out.

    With `checked`, a free of memory that is already free, or that was never allocated, raises AddressError. Without it,
    the first is not detected and the memory is allocated twice; the second goes straight to the C library, as `free` in
    C does. While a checked allocator exists, memory that the default allocator (`allotment.cpu.allocate`) gets from the
    system is known too, so that it can be freed inside a guard.

    `system` replaces the C library's memory (64-byte aligned) as the source. It has allocate(size) and free(address),
    which are called with no lock held, and lives as long as the process.

    Safe to use from several threads, and in the child after a fork. When the allocator is destroyed, its cached memory
    returns to the system; memory in use stays valid.
    """

    def __init__(self, *, checked: bool = False, system: System | None = None) -> None: ...
    def allocate(self, size: SupportsIndex | str, /) -> int:
        """Return the address of `size` bytes, uninitialized. Size 0 returns 0.

        `size` may also be text such as "1MiB". If the system has no memory, the allocator releases its whole cache and
        asks once more. Raises SizeError, OutOfMemoryError, and DeviceError for a `system` that fails for another
        reason.
        """
    def free(self, address: Buffer | SupportsIndex, /) -> None:
        """Cache memory for the next request of its size. Memory that no caching allocator provided returns to the
        system.

        Another caching allocator may have allocated it; this one caches it. A `Buffer` of this one is closed. Freeing 0
        does nothing.
        """
    def empty_cache(self) -> None:
        """Return the cached memory to the system."""
    @property
    def checked(self) -> bool:
        """Whether frees are checked, as chosen at its creation."""
    @property
    def cached_bytes(self) -> int:
        """Number of cached bytes."""
    def stats(self) -> dict[str, int]:
        """Return hits, misses, retries, cached_frees, system_frees, cached_blocks, cached_bytes."""
    def entry_points(self) -> object:
        """Return the C functions as a capsule named "allotment.cpu.entry_points"; host_cache/entry_points.pxd has their
        form.

        C code may call it at any time, so the allocator then lives as long as the process.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError if the free lists, the allocation map and the counters disagree."""

class Guard:
    """What `caching` returns: entered once at a time, left in reverse order, on the thread that entered it."""

    def __init__(self, cache: CachingAllocator | None) -> None: ...
    @property
    def cache(self) -> CachingAllocator | None:
        """Allocator that it installs; None: no caching."""
    def __enter__(self) -> CachingAllocator | None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def caching(cache: CachingAllocator | None, /) -> Guard:
    """Let the default allocator use `cache` on this thread, inside a `with`; None means no caching."""

def current() -> CachingAllocator | None:
    """Return the allocator that this thread's innermost guard has installed."""

class DefaultAllocator(HostMemory):
    """The default allocator as an object: the owner of buffers that `empty` makes outside of every guard.

    It keeps no record of the memory it provides, so only `empty` makes buffers of its memory.
    """

    def __init__(self) -> None: ...
    def empty(self, size: SupportsIndex | str, /) -> Buffer:
        """`allotment.cpu.empty` outside of every guard."""
    def allocate(self, size: SupportsIndex | str, /) -> int:
        """`allotment.cpu.allocate`."""
    def free(self, address: Buffer | SupportsIndex, /) -> None:
        """`allotment.cpu.free`."""

def empty(size: SupportsIndex | str, /) -> Buffer:
    """Return an uninitialized buffer of `size` bytes, from `current()`, or from the system if there is none.

    When its last reference is dropped, it returns to the allocator that it came from, or as `free` does.
    """

def array(shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
    """Return an uninitialized NumPy array on such memory; the array keeps its memory alive.

    Raises TypeError for a dtype that holds Python objects.
    """

def allocate(size: SupportsIndex | str, /) -> int:
    """Return memory of `current()`, or of the system if there is none: the default allocator."""

def free(address: Buffer | SupportsIndex, /) -> None:
    """Free through `current()`. If there is none, the memory returns to the system, whether it was cached before or
    not.

    A `Buffer` is closed, and its memory returns to the allocator that it came from. Raises AddressError for memory that
    is on a free list.
    """

def record_free(address: SupportsIndex, /) -> None:
    """Declare that other code is freeing this memory: caching allocators forget it.

    The memory itself is not touched. Raises AddressError for memory that is on a checked allocator's free list.
    """

def recorded_size(address: SupportsIndex, /) -> int | None:
    """Return the size of memory that a caching allocator provided, in use or cached; None if none of them knows it."""

def entry_points() -> object:
    """Return the default allocator's C functions; see `CachingAllocator.entry_points`."""

def set_fill(*, on_allocate: int | None = None, on_free: int | None = None) -> None:
    """For debugging: set bytes (0 to 255) to write over memory new from the system, and over memory that returns to it.

    None writes nothing. Memory whose size is unknown when it returns (it was never cached) is not written. Choose
    before other threads allocate.
    """
