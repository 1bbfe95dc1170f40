# Made from tenants.pyx by `make stubs`: change it there.

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._devices.streams import Stream

class Tenant:
    """A named user of an allocator that others use too; `Allocator.tenant` makes one.

    What is allocated here is reported by `Allocator.tenants`, and shown in snapshots, under this name. Everything else
    is the allocator's: its cache, its limit, its streams. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator, name: str) -> None: ...
    @property
    def allocator(self) -> Allocator:
        """The allocator whose memory it uses."""
    @property
    def name(self) -> str:
        """The name that its blocks are reported under."""
    @property
    def limit(self) -> int | None:
        """The most that it may hold, in bytes of blocks in use; None is no limit.

        A request for more raises OutOfMemoryError, whose `facts.limited_by` names the tenant. Can be set, also to a
        text such as "2GiB". While any tenant of an allocator has had a limit, every request there counts what tenants
        hold.
        """
    @limit.setter
    def limit(self, limit: int | str | None) -> None: ...
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """`Allocator.malloc`, in this tenant's name."""
    def free(self, address: Buffer | int, /) -> None:
        """`Allocator.free`; the block may be another tenant's."""
    def _free_working_on(self, address: int, stream: Stream | int) -> None:
        """`free` for an adapter that knows the caller's current stream, which decides where a graph is captured."""
    def _free_on(self, address: int, stream: int, /) -> None:
        """`free` for an adapter whose framework names the stream that the end of a block comes after."""
    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """`Allocator.empty`, in this tenant's name."""
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """`Allocator.record_stream`."""
