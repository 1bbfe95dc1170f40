"""Who decides in a simulated device's place."""

from typing import Protocol


class Script(Protocol):
    """Decides what a device decides and an allocator cannot: for replaying recordings.

    Each method is optional; a missing one means the device decides by itself.
    """

    def segment(self, size: int, stream: int) -> int | None:
        """Address of a new plain segment; None refuses it as out of memory."""

    def reserve(self, size: int, stream: int) -> int | None:
        """Base of a new reserved range; None refuses."""

    def create(self, size: int) -> bool:
        """Whether a physical chunk of this size can be had."""

    def event_finished(self, event: int) -> bool:
        """Whether an event that is being queried has finished (waiting always succeeds)."""

    def free_memory(self) -> int:
        """What the device reports as free."""
