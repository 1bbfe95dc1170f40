# Made from pinned.pyx by `make stubs`: change it there.

from collections.abc import Iterable

from allotment._allocators.caching.allocator import Allocator
from allotment._core.contract.table import Device

class PinnedPool:
    """Pinned host memory of a device, kept for reuse in powers of two. `device` is a device or an allocator on one.

    Freed memory is handed out again once the copies on the streams named at its free are done, so that a copy that is
    still under way never meets another's data. Safe to use from several threads.

    Raises UnsupportedError for a device without pinned memory.
    """

    def __init__(self, device: Device | Allocator) -> None: ...
    def _block_around(self, address: int) -> tuple[int, int] | None:
        """(start, size) of the block in use that holds an address; None if none of ours does."""
    @property
    def device(self) -> Device:
        """The device whose pinned memory this is."""
    @property
    def hits(self) -> int:
        """How many requests were served from memory that was kept."""
    @property
    def misses(self) -> int:
        """How many requests had to ask the device."""
    def allocate(self, size: int) -> int:
        """Address of at least `size` bytes. Size 0 gives 0.

        A miss asks the device, which is slow for pinned memory. Raises SizeError, MemoryError, DeviceError.
        """
    def free(self, address: int, streams: Iterable[int] = ()) -> None:
        """Give a block back; `streams` are those whose work until now may touch it. Freeing 0 does nothing.

        A stream that is being captured is not waited for: what a graph copies must outlive the graph. Raises
        AddressError.
        """
    def release(self) -> None:
        """Give what nothing can touch any more back to the device. Raises DeviceError."""
    def stats(self) -> dict[str, int]:
        """Blocks and bytes that are lent, waiting for copies and kept, and how many requests were hits and misses."""
