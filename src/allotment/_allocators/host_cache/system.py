"""Where host memory comes from when nothing is cached, if it is not the process's own memory."""

from abc import abstractmethod
from typing import Protocol


class System(Protocol):
    """A source of memory for a `CachingAllocator`, which calls it on any thread and without any lock held."""

    @abstractmethod
    def allocate(self, size: int, /) -> int:
        """Address of `size` bytes; MemoryError if there are none."""

    @abstractmethod
    def free(self, address: int, /) -> None:
        """Take memory back."""
