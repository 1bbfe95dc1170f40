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
        """The allocator that this is a part of."""

class BasicLimits(Part):
    """How much memory an allocator may hold; `allocator.limits` of an `AsyncAllocator`."""

    @property
    def memory_fraction(self) -> float:
        """The limit as a part of the device's memory, from 0.0 to 1.0; 1.0 is no limit.

        Setting it raises RequestError for a number that is not between them, UnsupportedError if the device cannot
        tell how much memory it has.
        """
    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None: ...

class ObservedLimits(BasicLimits):
    """Limits, and observers that are called when a request fails for want of memory."""

    def attach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Call `observer(facts)` before an OutOfMemoryError is raised, with its OutOfMemoryFacts, until it is detached.

        It runs on the thread whose request failed, without any lock held, and may use the allocator. What it raises is
        reported through `sys.unraisablehook`; the request still ends with its OutOfMemoryError. Raises TypeError for
        what cannot be called.
        """
    def detach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Call an observer no more. Attached twice, it is called once from now on. Raises RequestError if it is not."""

class BasicSharing(Part):
    """Memory that other devices use too; `allocator.sharing` of an allocator without blocks for other processes."""

    def enable_peer_access(self, peer: int) -> None:
        """Let the device of index `peer` touch this allocator's memory, also what it gets later.

        Also memory of other processes that is open on this device (`open_shared`). Does nothing for this device's own
        index. Raises RequestError for an index that no device has, UnsupportedError if the device has no peers,
        DeviceError.
        """

class BasicInspection(Part):
    """Figures and checks beyond `stats`, for tools and tests."""

    def nested_stats(self) -> dict[str, Any]:
        """All counters, by metric, size class and kind: nested["allocated_bytes"]["all"]["current"].

        `stats` has them flattened. Takes the allocator's lock for a moment, or asks the device where the device counts.
        Raises DeviceError. Safe to call from several threads.
        """
    def summary(self, abbreviated: bool = False) -> str:
        """The counters as a boxed table for people; `abbreviated` leaves out the rows by size class."""
