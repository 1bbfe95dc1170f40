"""Decisions that replace a simulated device's own."""

from abc import abstractmethod
from typing import Protocol


class Script(Protocol):
    """Makes the decisions that a device makes and an allocator cannot: for replaying recordings.

    If an object used as a script lacks a method, the device decides itself. A class that derives from this one must
    define all of them: an inherited method without a body would return None, which refuses.
    """

    @abstractmethod
    def segment(self, size: int, stream: int) -> int | None:
        """Return the address of a new plain segment; None refuses it as out of memory."""

    @abstractmethod
    def reserve(self, size: int, stream: int) -> int | None:
        """Return the base of a new reserved range; None refuses."""

    @abstractmethod
    def create(self, size: int) -> bool:
        """Return whether a physical chunk of this size is available."""

    @abstractmethod
    def event_finished(self, event: int) -> bool:
        """Return whether a queried event has finished (waiting always succeeds)."""

    @abstractmethod
    def free_memory(self) -> int:
        """Return the number of bytes that the device reports as free."""
