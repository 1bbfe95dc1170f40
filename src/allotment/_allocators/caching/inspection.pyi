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
        """Let the sums of all allocations and frees start anew from 0. Safe to call from several threads."""
    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """(base, size) of the plain segment that holds a live block, an address or a `Buffer`.

        Raises AddressError for what is not a live block's start, UnsupportedError for a block of an expandable
        segment.
        """
    def cache_info(self, largest: int = 0) -> int:
        """The size of the largest free block, or `largest` if that is more.

        With 0, the device's free memory takes its place, which is a call to the device. Looks at the largest block of
        every pool and stream. Raises DeviceError.
        """
    def expandable_ranges(self) -> tuple[int, int]:
        """(bytes, number) of the address ranges that are reserved for expandable segments."""
    def expandable_segment_sizes(self) -> list[tuple[int, bool, int]]:
        """(stream, is_small, mapped bytes) of each expandable segment of a stream other than 0."""
    def touch(self, address: Buffer | int, stream: Stream | int | None = None, *, write: bool = True) -> None:
        """Tell the sanitizer that work submitted to `stream` now touches memory at `address`, or reads it alone.

        `address` may lie anywhere in a block; None is the calling thread itself, or the stream whose function it runs.
        Arrays that `array` and its kin make tell of NumPy's functions by themselves. Without `sanitize` nothing
        happens.
        """
    def races(self) -> list[Report]:
        """What the sanitizer has found so far, each with the stacks of both places; empty without `sanitize`.

        Findings are also SanitizerWarnings as they are made. Freed memory is looked at when it leaves quarantine:
        `close`, and a shortage of memory, let all of it go.
        """
    def pending_events(self) -> list[tuple[int, int, int]]:
        """(stream, event, block address) of every event waited for, in queue order.

        Takes no lock when called from inside the allocator, by a scripted device that is asked about an event.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first rule that does not hold.

        Looks at everything the allocator knows, with its lock held: for tests.
        """
