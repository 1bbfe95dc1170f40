# Made from sharing.pyx by `make stubs`: change it there.

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.parts import BasicSharing
from allotment._sharing.handle import SharedHandle
from allotment._sharing.owner import SharedBlock

class Sharing(BasicSharing):
    """Blocks that other processes and devices use: `allocator.sharing`.

    Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle:
        """See `Allocator.share`."""
    def _send_block(self, block: Buffer | int, hold: float) -> tuple[SharedHandle, int]:
        """Variant of `share` for one receiver; return (handle, number of the hold).

        Opening with that number ends the hold.
        """
    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]:
        """See `Allocator.share_torch`."""
    def _share_block(self, block: int, kept: list[SharedBlock] | None) -> SharedBlock:
        """Describe a live block. With `kept`, hold it until `_end_shares` ends that.

        The result is also appended to the list: if an interrupt arrives with the return, the caller still knows what it
        holds.
        """
    def _lease_block(self, block: int, generation: int, leased: list[SharedBlock]) -> SharedBlock:
        """Describe a shared block and hold it for one more process. Raises AddressError if it has ended.

        `leased` is used like `kept` of `_share_block`.
        """
    def _end_shares(self, block: int, generation: int, leases: int, keeps: int) -> None:
        """End this many leases and keeps of a block. Raises AddressError if it has ended."""
    def _end_all_shares(self) -> None:
        """End all leases and keeps: in a child of fork, whose blocks are its own."""
