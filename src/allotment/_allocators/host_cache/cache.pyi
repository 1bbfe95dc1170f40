# Made from cache.pyx by `make stubs`: change it there.

from types import TracebackType
from typing import SupportsIndex

from allotment._allocators.host_cache.system import System

class CachingAllocator:
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
    def allocate(self, size: SupportsIndex, /) -> int:
        """The address of `size` bytes, its contents undefined. Size 0 gives 0.

        If the system has no memory, everything cached here is released and it is asked once more. Raises
        SizeError, OutOfMemoryError, and DeviceError for a `system` that fails for another reason.
        """
    def free(self, address: SupportsIndex, /) -> None:
        """Keep memory for the next request of its size. Memory that no caching allocator gave out goes to the system.

        It may have been allocated by another caching allocator; it is cached in this one. Freeing 0 does nothing.
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

def caching(cache: CachingAllocator, /) -> Guard:
    """Let the default allocator use `cache` on this thread, for the length of a `with`; None is no caching."""

def current() -> CachingAllocator | None:
    """The allocator that this thread's innermost guard has installed."""

def allocate(size: SupportsIndex, /) -> int:
    """The default allocator: memory from `current()`, or from the system if there is none."""

def free(address: SupportsIndex, /) -> None:
    """Free through `current()`. If there is none, the memory goes back to the system, cached once or not.

    Raises AddressError for memory that lies on a free list.
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
