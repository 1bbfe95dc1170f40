# Made from cache.pyx by `make stubs`: change it there.

from types import TracebackType
from typing import Any, SupportsIndex

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer
from allotment._allocators.host_cache.host_memory import HostMemory
from allotment._allocators.host_cache.system import System

class CachingAllocator(HostMemory):
    """Host memory that is kept under its exact size when freed, and handed out again, last in first out.

    `checked` makes a free of memory that is free already, or that was never allocated, an AddressError. Without
    it the first is not seen and hands the memory out twice, and the second goes straight to the C library, as
    `free` in C does. While a checked allocator exists, memory that the default allocator (`allotment.cpu.allocate`)
    gets from the system is known too, so that it can be freed inside a guard.

    `system` replaces the C library's memory (64-byte aligned) as the source; it has allocate(size) and
    free(address), which are called with no lock held, and lives as long as the process.

    Safe to use from several threads, and in the child after a fork. When the allocator is destroyed, what it has
    cached goes back to the system; memory in use stays valid.
    """

    def __init__(self, *, checked: bool = False, system: System | None = None) -> None: ...
    def allocate(self, size: SupportsIndex | str, /) -> int:
        """The address of `size` bytes, its contents undefined. Size 0 gives 0.

        `size` may also be text such as "1MiB". If the system has no memory, everything cached here is released and it
        is asked once more. Raises SizeError, OutOfMemoryError, and DeviceError for a `system` that fails for another
        reason.
        """
    def free(self, address: Buffer | SupportsIndex, /) -> None:
        """Keep memory for the next request of its size. Memory that no caching allocator gave out goes to the system.

        It may have been allocated by another caching allocator; it is cached in this one. A `Buffer` of this one is
        closed. Freeing 0 does nothing.
        """
    def empty_cache(self) -> None:
        """Give what is cached back to the system."""
    @property
    def checked(self) -> bool:
        """Whether frees are checked, as it was made."""
    @property
    def cached_bytes(self) -> int:
        """The bytes that are cached now."""
    def stats(self) -> dict[str, int]:
        """hits, misses, retries, cached_frees, system_frees, cached_blocks, cached_bytes."""
    def entry_points(self) -> object:
        """The C functions, as a capsule named "allotment.cpu.entry_points"; its form is in host_cache/entry_points.pxd.

        Whoever has it may call it at any time, so the allocator then lives as long as the process.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError if the free lists, the allocation map and the counters disagree."""

class Guard:
    """What `caching` returns: entered once at a time, left in reverse order, on the thread that entered it."""

    def __init__(self, cache: CachingAllocator | None) -> None: ...
    @property
    def cache(self) -> CachingAllocator | None:
        """The allocator that it installs; None is no caching."""
    def __enter__(self) -> CachingAllocator | None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def caching(cache: CachingAllocator | None, /) -> Guard:
    """Let the default allocator use `cache` on this thread, for the length of a `with`; None is no caching."""

def current() -> CachingAllocator | None:
    """The allocator that this thread's innermost guard has installed."""

class DefaultAllocator(HostMemory):
    """The default allocator as an object: the owner of buffers that `empty` makes outside of every guard.

    It keeps no record of what it gave out, so only `empty` makes buffers of its memory.
    """

    def __init__(self) -> None: ...
    def empty(self, size: SupportsIndex | str, /) -> Buffer:
        """`allotment.cpu.empty`, outside of every guard."""
    def allocate(self, size: SupportsIndex | str, /) -> int:
        """`allotment.cpu.allocate`."""
    def free(self, address: Buffer | SupportsIndex, /) -> None:
        """`allotment.cpu.free`."""

def empty(size: SupportsIndex | str, /) -> Buffer:
    """A buffer of `size` bytes, contents undefined, from `current()`, or from the system if there is none.

    It goes back with its last reference: to the allocator that it came from, or as `free` does.
    """

def array(shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
    """A NumPy array of such memory, contents undefined; the array keeps its memory alive.

    Raises TypeError for a dtype that holds Python objects.
    """

def allocate(size: SupportsIndex | str, /) -> int:
    """The default allocator: memory from `current()`, or from the system if there is none."""

def free(address: Buffer | SupportsIndex, /) -> None:
    """Free through `current()`. If there is none, the memory goes back to the system, cached once or not.

    A `Buffer` is closed, and its memory goes to the allocator that it came from. Raises AddressError for memory that
    lies on a free list.
    """

def record_free(address: SupportsIndex, /) -> None:
    """Declare that memory is being freed by other means: no caching allocator knows it any more.

    The memory itself is not touched. Raises AddressError for memory that lies on a checked allocator's free list.
    """

def recorded_size(address: SupportsIndex, /) -> int | None:
    """How large memory is that a caching allocator gave out, in use or cached; None if none of them knows it."""

def entry_points() -> object:
    """The default allocator's C functions; see `CachingAllocator.entry_points`."""

def set_fill(*, on_allocate: int | None = None, on_free: int | None = None) -> None:
    """For debugging: bytes (0 to 255) to write over memory new from the system, and over memory that goes back to it.

    None writes nothing. Memory whose size is not known when it goes back (it was never cached) is left as it is. To be
    chosen before other threads allocate.
    """
