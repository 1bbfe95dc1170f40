# Made from blocks.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.pinned.memory import PinnedMemory
from allotment._settings.record import Settings

class PinnedBlocks:
    """Blocks in PyTorch's manner: see the header. Users hold a `PinnedAllocator`."""

    def __init__(self, memory: PinnedMemory, settings: Settings) -> None: ...
    def process_events(self) -> bool:
        """Variant of `process` for the background thread; return whether any block still waits."""
    def close(self) -> None:
        """Release all blocks that are not in use, after waiting for copies."""
    def around(self, address: int) -> tuple[int, int] | None:
        """Return (start, size) of the block in use that contains an address, or None."""
    def figures(self) -> dict[str, Any]:
        """Return all counters by metric."""
    def check_figures(self) -> None:
        """Raise InvariantError if the counters disagree with the blocks, or a list holds a wrong block."""
