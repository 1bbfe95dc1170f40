# Made from parts.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Any

from allotment._allocators.base import AllocatorBase
from allotment.errors import OutOfMemoryFacts

class Part:
    """Operations of an allocator that belong together; users get one from the allocator."""

    def __init__(self, allocator: AllocatorBase) -> None: ...
    @property
    def allocator(self) -> Any:
        """Allocator that this is a part of."""

class BasicLimits(Part):
    """How much memory an allocator may hold; `allocator.limits` of an `AsyncAllocator`."""

    @property
    def memory_fraction(self) -> float:
        """The limit as a fraction of the device's memory, from 0.0 to 1.0; 1.0 means no limit.

        Setting it raises RequestError for any other number, UnsupportedError if the device does not report its memory
        size.
        """
    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None: ...

class ObservedLimits(BasicLimits):
    """Limits, and observers that are called when a request fails for want of memory."""

    def attach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Call `observer(facts)` with the OutOfMemoryFacts before an OutOfMemoryError is raised, until it is detached.

        It runs on the thread whose request failed, without any lock held, and may use the allocator.
        `sys.unraisablehook` gets its exceptions; the request still ends with its OutOfMemoryError. Raises TypeError if
        it is not callable.
        """
    def detach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Stop calling an observer.

        One attached twice is called once from now on. Raises RequestError if it is not attached.
        """

class BasicSharing(Part):
    """Memory that other devices use too; `allocator.sharing` of an allocator without blocks for other processes."""

    def enable_peer_access(self, peer: int) -> None:
        """Let the device of index `peer` access this allocator's memory, including memory that it gets later.

        That includes memory of other processes that is open on this device (`open_shared`). Does nothing for this
        device's own index. Raises RequestError for an index that no device has, UnsupportedError if the device has no
        peers, and DeviceError.
        """

class BasicInspection(Part):
    """Figures and checks beyond `stats`, for tools and tests."""

    def nested_stats(self) -> dict[str, Any]:
        """Return all counters, by metric, size class and kind: nested["allocated_bytes"]["all"]["current"].

        `stats` has them flattened. Briefly holds the allocator's lock, or calls the device if the device counts. Raises
        DeviceError. Safe to call from several threads.
        """
    def summary(self, abbreviated: bool = False) -> str:
        """Return the counters as a boxed table for people; `abbreviated` omits the rows by size class."""
