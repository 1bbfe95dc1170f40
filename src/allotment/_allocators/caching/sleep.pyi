# Made from sleep.pyx by `make stubs`: change it there.

from collections.abc import Callable
from concurrent.futures import Future
from os import PathLike

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.pool import Pool, PoolId
from allotment._allocators.caching.tenants import Tenant
from allotment._allocators.parts import Part

class Sleep(Part):
    """Tags and pools whose memory is given back while their addresses stay: `allocator.sleep`.

    Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def pause(
        self,
        tag: str | Pool | Tenant,
        *,
        keep: str = "host",
        keep_host: bool = False,
        folder: str | PathLike[str] | None = None,
        host_limit: int | str | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
    ) -> int:
        """See `Allocator.pause`."""
    def contents_of(self, address: int, size: int) -> memoryview | None:
        """The contents of paused memory, read-only, as they are kept on the host; None if they are not there.

        `address` and `size` are those of a block in use when it was paused, or of a part of one. For memory that is
        awake again, the contents at the last pause, while `keep_host` keeps the pages. After the next pause or resume
        its bytes are arbitrary; it keeps the pages until it is gone.
        """
    def release_host_copy(self, tag: str | Pool | Tenant) -> int:
        """Give back the host pages that `keep_host` keeps for memory that is awake; gives how many bytes went."""
    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | bool | None = None) -> None:
        """See `Allocator.resume`."""
    def resume_in_background(
        self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | None = None
    ) -> Future[None]:
        """`resume`, with contents that come back while the caller goes on; gives what can be waited for.

        When this returns, memory is mapped under all addresses, or OutOfMemoryError, DeviceError or PoolError was
        raised and it is asleep as before. The contents are copied by a thread, on streams of its own; `progress` is
        called there. Until `result()` of the future returns, the memory must not be used and requests for it raise
        PausedError; if `result()` raises, it is asleep as before. `close` waits for it. Safe to call from several
        threads.
        """
    def _finish_resume(
        self, job: list[list[PoolId]], progress: Callable[[int, int], None] | None, future: Future[None]
    ) -> None:
        """What the thread of `resume_in_background` runs."""
    def paused(self) -> set[str | PoolId]:
        """See `Allocator.paused`."""
    def tags(self) -> dict[str, dict[str, int]]:
        """By name, in order of their last request, the "reserved_bytes" of each tag and the bytes that are "paused"."""
    def pools_of(self, tag: str) -> list[PoolId]:
        """The ids of a tag's own pool and of those that sleep with it. Raises PoolError if it never had memory here."""
    def _notice_tags(self) -> None:
        """Look from now on which tag a request is in."""
    def _forget_idle_tags(self) -> None:
        """Forget the tags that have neither memory nor a limit here."""
    def _bytes_to_keep(self, tag: str) -> int:
        """How many bytes of contents a pause of the tag would keep."""
