# Made from sharing_allocator.pyx by `make stubs`: change it there.

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pausing_allocator import PausingAllocator
from allotment._sharing.handle import SharedHandle
from allotment._sharing.owner import SharedBlock

class SharingAllocator(PausingAllocator):
    """An engine whose blocks other processes can open; users hold an `Allocator`."""

    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle:
        """A handle by which another process of this user opens the block: `allotment.open_shared(handle)`.

        `block` is an address or a `Buffer`; of a slice, its whole block is shared. Handles of one block are equal. For
        `hold` seconds, or until `SharedHandle.close`, any number of processes can open the handle; after that nobody
        can, until the block is shared again. So long, and while another process has it open, the block is not reused,
        also if it is freed meanwhile. Whoever opens it waits for the work that its streams were given before.

        Raises AddressError for what is not a live block, UnsupportedError if the device does not share memory (host
        memory does with the settings key `shareable:True`), CaptureError while a stream of the block is being captured,
        DeviceError. Costs no copy and no call of the device unless its streams are busy. Safe to call from several
        threads.
        """
    def _send_block(self, block: Buffer | int, hold: float) -> tuple[SharedHandle, int]:
        """`share` for one receiver: (handle, number of the hold, which opening with that number ends)."""
    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]:
        """(offset, handle) in PyTorch's own form: the block lies `offset` bytes into what the handle opens.

        Its version is that of the PyTorch whose rules are in force. Pages always travel as descriptors, never as fabric
        handles, so only processes of this machine can open them; `share` uses the fabric where there is one. Nothing
        holds the block for the process that opens the handle: keep it until then.

        Raises AddressError, UnsupportedError for devices that do not share memory and for blocks of
        `placement:dense`, whose pieces have no common size, DeviceError.
        """
    def _share_block(self, block: int, keep: bool) -> SharedBlock:
        """What a live block is. With `keep` it is held until `_end_shares` takes that back."""
    def _lease_block(self, block: int, generation: int) -> SharedBlock:
        """What a block is that was shared, held for one process more. Raises AddressError if it has ended."""
    def _end_shares(self, block: int, generation: int, leases: int, keeps: int) -> None:
        """So many leases and keeps of a block are over. Raises AddressError if it has ended."""
    def _end_all_shares(self) -> None:
        """No other process has anything open: in a child of fork, whose blocks are its own."""
