from allotment.allocator import Allocator
from allotment.streams import Stream

class Buffer:
    """A block of an allocator, given back when nobody refers to it any more."""

    allocator: Allocator
    address: int
    size: int
    stream: Stream | int

    def __init__(self, allocator: Allocator, address: int, size: int, stream: Stream | int = 0) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...
    def record_stream(self, stream: Stream | int) -> None:
        """Declare that work on `stream` uses this memory."""
