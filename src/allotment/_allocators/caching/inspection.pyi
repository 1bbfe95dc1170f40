# Made from inspection.pyx by `make stubs`: change it there.

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.sanitizer.reports import Report
from allotment._allocators.parts import BasicInspection
from allotment._devices.streams import Stream

class Inspection(BasicInspection):
    """Figures, checks and findings, for tools and tests: `allocator.inspection`.

    Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def reset_accumulated_stats(self) -> None:
        """Restart the sums of all allocations and frees at 0. Safe to call from several threads."""
    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """Return (base, size) of the plain segment that contains a live block, an address or a `Buffer`.

        Raises AddressError for an address that is not the start of a live block, UnsupportedError for a block of an
        expandable segment.
        """
    def cache_info(self, largest: int = 0) -> int:
        """Return the size of the largest free block, or `largest` if that is larger.

        With 0, the device's free memory takes its place, which calls the device. Examines the largest block of every
        pool and stream. Raises DeviceError.
        """
    def expandable_ranges(self) -> tuple[int, int]:
        """Return (bytes, number) of the address ranges reserved for expandable segments."""
    def expandable_segment_sizes(self) -> list[tuple[int, bool, int]]:
        """Return (stream, is_small, mapped bytes) of each expandable segment of a stream other than 0."""
    def touch(self, address: Buffer | int, stream: Stream | int | None = None, *, write: bool = True) -> None:
        """Tell the sanitizer that work submitted to `stream` now writes, or only reads, memory at `address`.

        `address` may lie anywhere in a block. `stream` None means the calling thread itself, or the stream whose
        function it runs. Arrays from `array` and similar methods report NumPy's functions by themselves. Without
        `sanitize` this does nothing.
        """
    def races(self) -> list[Report]:
        """Return what the sanitizer has found so far, each with the stacks of both places; empty without `sanitize`.

        Each finding is also raised as a SanitizerWarning when it is made. The sanitizer checks freed memory when the
        memory leaves quarantine; `close` and a shortage of memory empty the quarantine.
        """
    def pending_events(self) -> list[tuple[int, int, int]]:
        """Return (stream, event, block address) of every event that is waited for, in queue order.

        Takes no lock when called from inside the allocator, by a scripted device that is queried about an event.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first invariant that does not hold.

        Checks everything that the allocator knows, under its lock: for tests.
        """
