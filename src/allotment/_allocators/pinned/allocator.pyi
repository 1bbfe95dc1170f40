# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Iterable

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.parts import BasicInspection
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings import Settings

def refuse_settings_of_torch(settings: Settings) -> None:
    """Raise SettingsError for a setting that the mode "tight" gives no meaning."""

class PinnedAllocator(AllocatorBase):
    """Pinned host memory of a device, kept for reuse: what a GPU copies from and to at full speed.

    `mode` "torch" decides as PyTorch does: powers of two, nothing is split or merged. "tight" cuts requests out of
    segments and joins them again, which wastes far less of memory that is dear. `settings` are the `pinned_*` keys; one
    that has no meaning here is refused. `numa_node` is the node whose memory it shall be; `limit` the most bytes to
    own. Memory freed is handed out again once the work until then on the streams named is done.

    Safe to use from several threads. `with allocator:` closes it. Raises UnsupportedError for a device without pinned
    memory, SettingsError, RequestError.
    """

    def __init__(
        self,
        device: str | Device | Allocator = "cuda",
        *,
        settings: str | Settings | None = None,
        mode: str = "torch",
        numa_node: int | None = None,
        limit: int | str | None = None,
    ) -> None: ...
    @property
    def mode(self) -> str:
        """ "torch" or "tight"."""
    def malloc(self, size: int | str) -> int:
        """Address of at least `size` bytes. Size 0 gives 0.

        A miss asks the device, which is slow for pinned memory. Raises SizeError, MemoryError, DeviceError.
        """
    def free(self, address: Buffer | int, streams: Iterable[Stream | int] = ()) -> None:
        """Give a block back; `streams` are those whose work until now may touch it. Freeing 0 does nothing.

        Without streams, here or recorded, no event is needed and the block can be had again at once. A stream that is
        being captured is not waited for: what a graph copies must outlive the graph. Raises AddressError, StreamError.
        """
    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """A buffer of `size` bytes that frees itself when the last reference to it goes.

        `stream`, if given, is recorded as one that uses it. Raises what `malloc` and `record_stream` raise.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work.

        Raises AddressError, StreamError.
        """
    def empty_cache(self) -> None:
        """Give what nothing can touch any more back to the device. Raises DeviceError."""
    def reset_peak_stats(self) -> None:
        """Let the peaks start anew from what is in use now."""
    @property
    def inspection(self) -> PinnedInspection:
        """Figures and checks, for tools and tests."""

class PinnedInspection(BasicInspection):
    """Figures and checks of a `PinnedAllocator`: its `inspection`. Times are in microseconds."""

    def __init__(self, allocator: PinnedAllocator) -> None: ...
    def summary(self, abbreviated: bool = False) -> str:
        """The counters as text, a line each; `abbreviated` leaves out those by size class."""
    def reset_accumulated_stats(self) -> None:
        """Let the sums of all allocations and frees start anew from 0."""
    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first rule that does not hold. For tests."""
