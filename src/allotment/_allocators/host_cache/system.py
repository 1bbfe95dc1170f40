"""Where host memory comes from when nothing is cached, if it is not the process's own memory."""

from typing import Protocol


class System(Protocol):
    """Memory for a `CachingAllocator`: called without any lock held, on any thread."""

    def allocate(self, size: int, /) -> int:
        """Address of `size` bytes; MemoryError if there are none."""

    def free(self, address: int, /) -> None:
        """Take memory back."""
