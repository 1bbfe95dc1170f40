# Made from hot_path.pyx by `make stubs`: change it there.

from allotment._allocators.caching.allocator import Allocator

class EmptyAllocator:
    """Only the calls: takes a size and returns an address, takes an address, does nothing.

    Its methods are as cheap to call as the allocator's own.
    """

    def __init__(self) -> None: ...
    def malloc(self, size: int, stream: int = 0) -> int: ...
    def free(self, address: int, /) -> None: ...

class CPairs:
    """An allocator as C sees it: by its entry points, without the interpreter."""

    def __init__(self, allocator: Allocator) -> None: ...
    def pair_ns(self, size: int, pairs: int, stream: int = 0) -> float:
        """Nanoseconds per allocate and free of one block that is in the cache."""
    def replacement_ns(self, live: int, size: int, replacements: int) -> float:
        """Nanoseconds to free one of `live` blocks, chosen at random, and allocate another in its place."""

def pointer_walk_ns(records: int, steps: int) -> float:
    """Nanoseconds per step to a random one of `records`, and to its neighbour: only the cost of cache misses."""
