# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Iterable

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.parts import BasicInspection
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings import Settings

def meaningless_in_tight(settings: Settings) -> list[str]:
    """The names of settings that are not as usual and have no meaning in the mode "tight"."""

def refuse_settings_of_torch(settings: Settings) -> None:
    """Raise SettingsError for a setting that the mode "tight" gives no meaning."""

class PinnedAllocator(AllocatorBase):
    """Pinned host memory of a device, cached for reuse: a GPU copies from and to it at full speed. The `mode` "torch"
    decides as PyTorch does: sizes are powers of two, and no block is split or merged. "tight" splits and merges blocks
    of segments, which wastes far less of this expensive memory. `settings` are the `pinned_*` keys; a key without a
    meaning here is refused. `numa_node` is the node that provides the memory; `limit` is the most bytes that the
    allocator may hold. Freed memory is reused when the work that its streams had at the free is done.

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
        """Return the address of at least `size` bytes.

        Size 0 returns 0. A miss calls the device, which is slow for pinned memory. Raises SizeError, MemoryError,
        DeviceError.
        """
    def free(self, address: Buffer | int, streams: Iterable[Stream | int] = ()) -> None:
        """Free a block; `streams` are those whose work so far may touch it. Freeing 0 does nothing.

        Without streams, passed here or recorded, no event is needed and the block can be reused at once. The free does
        not wait for a stream that is being captured: memory that a graph copies must outlive the graph. Raises
        AddressError, StreamError.
        """
    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """Return a buffer of `size` bytes that frees itself when the last reference to it is dropped. `stream`, if any,
        is recorded as a user. Raises what `malloc` and `record_stream` raise.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work.

        Raises AddressError, StreamError.
        """
    def empty_cache(self) -> None:
        """Return unused memory that no stream can still touch to the device. Raises DeviceError."""
    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values."""
    @property
    def inspection(self) -> PinnedInspection:
        """Figures and checks, for tools and tests."""

class PinnedInspection(BasicInspection):
    """Figures and checks of a `PinnedAllocator`: its `inspection`. Times are in microseconds."""

    def __init__(self, allocator: PinnedAllocator) -> None: ...
    def summary(self, abbreviated: bool = False) -> str:
        """Return the counters as text, one line each; `abbreviated` omits those by size class."""
    def reset_accumulated_stats(self) -> None:
        """Restart the sums of all allocations and frees at 0."""
    def check_invariants(self) -> None:
        """Raise InvariantError, naming the first invariant that does not hold. For tests."""
