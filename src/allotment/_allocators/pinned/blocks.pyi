# Made from blocks.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.pinned.memory import PinnedMemory
from allotment._settings.record import Settings

class PinnedBlocks:
    """Blocks in PyTorch's manner: see the header. Users hold a `PinnedAllocator`."""

    def __init__(self, memory: PinnedMemory, settings: Settings) -> None: ...
    def process_events(self) -> bool:
        """`process`, for the thread that does so in the background; whether anything waits still."""
    def close(self) -> None:
        """Give back all but what is lent, waiting for copies."""
    def around(self, address: int) -> tuple[int, int] | None:
        """(start, size) of the lent block that holds an address, or None."""
    def figures(self) -> dict[str, Any]:
        """All counters by metric."""
    def check_figures(self) -> None:
        """Raise InvariantError if the counters do not say what the blocks are, or a place holds what is not its own."""
