# Made from tags.pyx by `make stubs`: change it there.

from collections.abc import Callable
from types import TracebackType
from typing import Self

from allotment._allocators.caching.pool import PoolId

class tag:
    """Mark what this thread allocates inside `with allotment.tag(name):`, on every allocator.

    A tag has, on each allocator, a pool of its own on virtual memory, so that it shares no page with others: it can be
    paused and resumed (`Allocator.pause`, `resume`), and has limits (`Allocator.set_limit`). The inner of two tags
    counts, and a private pool that requests are routed to comes first: a tag is no route. On devices without virtual
    memory a tag has plain memory, which can be limited and not paused.

    Raises RequestError for an empty name, or when there are too many: 65,535 with memory or a limit, or in use. One
    object is entered by one thread at a time; names are the process's.
    """

    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str:
        """The name of the tag."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def name_of_tag_pool(pool: PoolId) -> str:
    """The name of the tag whose pool has this id; "" if it is not a tag's."""

def sleep(keep: str = "host") -> int:
    """Pause every tag of every allocator of this process, and empty their caches; gives how many bytes went.

    `keep` as for `Allocator.pause`. Memory that is in no tag stays. If one cannot be paused, what was paused stays
    paused, and the error is raised. Raises what `Allocator.pause` raises.
    """

def wake(*, progress: Callable[[int, int], None] | None = None) -> None:
    """Resume every tag that is paused, on every allocator of this process.

    `progress` is called for each of them, as by `Allocator.resume`. If there is not enough memory for all, those that
    fitted are awake, the others asleep as they were, and the error is raised. Raises what `Allocator.resume` raises.
    """
