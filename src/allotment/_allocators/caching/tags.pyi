# Made from tags.pyx by `make stubs`: change it there.

from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Self

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.keeping import Keeping
from allotment._allocators.caching.pool import PoolId

class tag:
    """Mark what this thread allocates inside `with allotment.tag(name):`, on every allocator.

    On each allocator, a tag has its own pool on virtual memory, so that it shares no page with others. It can be paused
    and resumed (`Allocator.pause`, `resume`), and has limits (`Allocator.set_limit`). Of two nested tags, the inner one
    counts. A private pool to which requests are routed takes precedence over tags. On devices without virtual memory a
    tag has plain memory, which can be limited but not paused.

    Raises RequestError for an empty name, or for too many tags: 65,535 with memory or a limit, or in use. Only one
    thread at a time may enter a tag object; names hold for the process.
    """

    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str:
        """Name of the tag."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def _enter_everywhere(self) -> None:
        """Put every thread that is in no tag, now and later, into this one, for the rest of the process."""

def pool_of_tag_named(name: str) -> PoolId:
    """The id of the pool that a tag has on each allocator. Raises PoolError if there is no such tag."""

def check_host_limit(tags: list[tuple[Allocator, str]], keeping: Keeping) -> None:
    """Raise RequestError if host memory for the contents of all these tags is more than allowed."""

def sleep(
    keep: str = "host",
    *,
    keep_host: bool = False,
    folder: str | PathLike[str] | None = None,
    host_limit: int | str | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
) -> int:
    """Pause every tag of every allocator of this process, and empty their caches; return the number of bytes released.

    The arguments are those of `Allocator.pause`; `host_limit` is for all tags together, and `progress` is called for
    each of them. Memory outside of tags stays. If a tag cannot be paused, tags paused before stay paused, and the
    error is raised. Raises what `Allocator.pause` raises.
    """

def wake(*, progress: Callable[[int, int], None] | bool | None = None) -> None:
    """Resume every paused tag, on every allocator of this process.

    `progress` is called for each tag, as by `Allocator.resume`. If memory does not suffice for all, the tags that
    fitted are awake, the others asleep as before, and the error is raised. Raises what `Allocator.resume` raises.
    """
