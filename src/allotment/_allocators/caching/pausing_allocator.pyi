# Made from pausing_allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable
from concurrent.futures import Future

from allotment._allocators.caching.limiting_allocator import LimitingAllocator
from allotment._allocators.caching.pools import Pool, PoolId
from allotment._allocators.caching.tenants import Tenant

class PausingAllocator(LimitingAllocator):
    """An engine whose tags can be paused; users hold an `Allocator`."""

    def pause(self, tag: str | Pool | Tenant, *, keep: str = "host") -> int:
        """Give the physical memory of a tag back to the device, and keep every address; gives how many bytes went.

        `keep` is "host": what is in blocks in use is copied to host memory first, and comes back at `resume`; or
        "nothing". `tag` is the name of a tag, a Pool whose memory is virtual (expandable segments), or a Tenant all of
        whose blocks are in such pools and tags, where no one else has any. Until it is resumed, requests for it raise
        PausedError, its blocks may be freed, and touching them is an error: on the host the process ends, with a
        message that names the tag. Graphs that use them stay as they are.

        Waits for all work of the device. If it fails, the memory is as it was, or asleep already and the rest of it can
        be paused again. A second time, nothing happens. Raises PoolError if nothing was ever allocated in this tag,
        PausedError if another process has a block of it open, a tenant shares its pages with others, or it is being
        paused or resumed now, UnsupportedError on devices without virtual memory, DeviceError, and MemoryError if the
        host has no room for the contents. Safe to call from several threads.
        """
    def resume(self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Map memory under the addresses of what was paused, and bring its contents back.

        `progress(done, total)` is called with bytes on the way, for each pool. If it cannot be done, because the memory
        was taken meanwhile or a call fails, it is asleep as before and nothing is lost: it can be tried again. For
        want of memory the cache is given back first, and the steps of `on_out_of_memory` are asked. What is not paused
        stays as it is. Raises OutOfMemoryError, DeviceError, PoolError, and what `progress` raises. Safe to call from
        several threads.
        """
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
        """What is paused now: the names of tags, and the ids of pools."""
    def tags(self) -> dict[str, dict[str, int]]:
        """By name, in order of their last request, the "reserved_bytes" of each tag and the bytes that are "paused"."""
    def _notice_tags(self) -> None:
        """Look from now on which tag a request is in."""
    def _forget_idle_tags(self) -> None:
        """Let go of the tags that have neither memory nor a limit here."""
