# Made from engine_allocator.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings

class EngineAllocator(AllocatorBase):
    """An allocator over an engine; users hold an `Allocator`."""

    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
        sanitize: bool = False,
    ) -> None: ...
    def set_reserve_class(self, stream: Stream | int, name: str) -> None:
        """Put a stream in a class of `expandable_segments_reserve_by_class`; "" takes it out of any.

        It counts for segments that are reserved from now on. Raises TypeError for a name that is not a text.
        """
    @property
    def name(self) -> str:
        """ "native": what PyTorch calls this kind of allocator."""
    @property
    def caching(self) -> bool:
        """Whether requests go through the cache, which they do unless it is switched off.

        Off, every request is a device allocation of its own, and every free a device free; what is cached stays
        cached, and what came from the cache still goes back to it.
        """
    @caching.setter
    def caching(self, on: bool) -> None: ...
    def nested_stats(self) -> dict[str, Any]:
        """All counters, by metric, size class and kind: stats["allocated_bytes"]["all"]["current"].

        `stats` has them flattened. Takes the allocator's lock for a moment. Safe to call from several threads.
        """
    def reset_peak_stats(self) -> None:
        """Let the peaks start anew from what is in use now. Safe to call from several threads."""
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
    def pending_events(self) -> list[tuple[int, int, int]]:
        """(stream, event, block address) of every event waited for, in queue order.

        Takes no lock when called from inside the allocator, by a scripted device that is asked about an event.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first rule that does not hold.

        Looks at everything the allocator knows, with its lock held: for tests.
        """
