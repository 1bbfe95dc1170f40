# Made from tenants.pyx by `make stubs`: change it there.

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._devices.streams import Stream

class Tenant:
    """A named user of an allocator that others use too; `Allocator.tenant` makes one.

    `Allocator.tenants` and snapshots report what it allocates under this name. Everything else belongs to the
    allocator: cache, limit, streams. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator, name: str) -> None: ...
    @property
    def allocator(self) -> Allocator:
        """Allocator whose memory it uses."""
    @property
    def name(self) -> str:
        """Name under which its blocks are reported."""
    @property
    def limit(self) -> int | None:
        """The most bytes of blocks in use that it may hold; None means no limit.

        A request that would exceed it raises OutOfMemoryError, whose `facts.limited_by` names the tenant. Set it to
        bytes, to a text such as "2GiB", or to None. Once a tenant of an allocator has had a limit, every request there
        counts what tenants hold.
        """
    @limit.setter
    def limit(self, limit: int | str | None) -> None: ...
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """`Allocator.malloc` for this tenant."""
    def free(self, address: Buffer | int, /) -> None:
        """`Allocator.free`; the block may be another tenant's."""
    def _free_working_on(self, address: int, stream: Stream | int) -> None:
        """`free` for an adapter that knows the caller's current stream, which decides where a graph is captured."""
    def _free_on(self, address: int, stream: int, /) -> None:
        """`free` for an adapter whose framework names the stream after which the block ends."""
    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """`Allocator.empty` for this tenant."""
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """`Allocator.record_stream`."""
