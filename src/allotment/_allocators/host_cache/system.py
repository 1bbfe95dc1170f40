"""The source of uncached host memory, if it is not the process's own memory."""

from abc import abstractmethod
from typing import Protocol


class System(Protocol):
    """A source of memory for a `CachingAllocator`, called on any thread and without any lock held."""

    @abstractmethod
    def allocate(self, size: int, /) -> int:
        """Return the address of `size` bytes. Raises MemoryError if it has none."""

    @abstractmethod
    def free(self, address: int, /) -> None:
        """Take memory back."""
