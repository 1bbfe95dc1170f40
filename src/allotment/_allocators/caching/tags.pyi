# Made from tags.pyx by `make stubs`: change it there.

from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Self

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.keeping import Keeping
from allotment._allocators.caching.pool import PoolId

class tag:
    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def _enter_everywhere(self) -> None: ...

def pool_of_tag_named(name: str) -> PoolId: ...
def check_host_limit(tags: list[tuple[Allocator, str]], keeping: Keeping) -> None: ...
def sleep(
    keep: str = "host",
    *,
    keep_host: bool = False,
    folder: str | PathLike[str] | None = None,
    host_limit: int | str | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
) -> int: ...
def wake(*, progress: Callable[[int, int], None] | bool | None = None) -> None: ...
