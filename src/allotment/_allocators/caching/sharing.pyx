cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.string cimport memset

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport BasicSharing
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t
from allotment._core.edge.sharing cimport SharedBlock, end_shares, lease_block, share_block, shared_block_clear
from allotment._core.engine cimport engine_leave
from allotment._core.mechanism.holds cimport holds_end
from allotment._core.model.model cimport Failure
from allotment._core.tools.arguments cimport read_block

from allotment import _logs
from allotment.errors import AddressError, UnsupportedError


cdef object describe_shared(const SharedBlock* shared):
    """Return a shared block's facts as a Python object."""
    cdef size_t i
    from allotment._sharing.owner import SharedBlock as Told

    return Told(
        shared.generation, shared.size, shared.offset, shared.base,
        [(shared.pieces[i].chunk, shared.pieces[i].size) for i in range(shared.piece_count)],
        [shared.streams[i] for i in range(shared.stream_count)])


@cython.final
cdef class Sharing(BasicSharing):
    """Sharing(allocator)\n--\n
    Blocks that other processes and devices use: `allocator.sharing`.

    Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle:
        """See `Allocator.share`."""
        cdef address_t address = read_block(block)
        self.require_sharing("share")
        self.allocator.require_open()
        from allotment._sharing import owner

        return owner.share(self.allocator, address, hold)

    def _send_block(self, block: Buffer | int, hold: float) -> tuple[SharedHandle, int]:
        """Variant of `share` for one receiver; return (handle, number of the hold).

        Opening with that number ends the hold.
        """
        cdef address_t address = read_block(block)
        self.require_sharing("share")
        self.allocator.require_open()
        from allotment._sharing import owner

        return owner.send(self.allocator, address, hold)

    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]:
        """See `Allocator.share_torch`."""
        cdef address_t address = read_block(block)
        cdef object shared
        self.require_sharing("share_torch")
        from allotment._sharing import device_calls, torch_form

        shared = self.shared_block(address, None)
        chunk, page = shared.pieces[0]
        version = self.allocator.rules.handle_version
        if chunk == 0:
            handle = device_calls.export_segment(self.allocator.device, shared.base)
            if len(handle) != torch_form.SEGMENT_LENGTH:
                raise UnsupportedError(
                    f"share_torch: plain memory of {self.allocator.device.name} has no form in PyTorch; use share, "
                    "or expandable_segments:True", operation="share_torch")
            _logs.shared(self.allocator.device.name, address, shared.size, "PyTorch's form: a handle of the device")
            return shared.offset, torch_form.write_segment(version, handle)
        if any([size != page for _, size in shared.pieces]):
            raise UnsupportedError(
                f"share_torch: the block at {address:#x} lies in chunks of several sizes (placement:dense), which "
                "PyTorch's form cannot express; use share, or a pool with placement torch", operation="share_torch")
        handles = [device_calls.export_chunk(self.allocator.device, chunk, True)[1] for chunk, _ in shared.pieces]
        _logs.shared(
            self.allocator.device.name, address, shared.size, f"PyTorch's form: descriptors of {len(handles)} chunks")
        return shared.offset, torch_form.write_pages(version, page, handles)

    cdef int require_sharing(self, str operation) except -1:
        cdef Device device = self.allocator.device
        if device.table.segment_export == NULL and device.table.chunk_export == NULL:
            advice = '; make the allocator with settings="shareable:True"' if device.family == "host" else ""
            raise UnsupportedError(
                f"{operation}: memory of {device.name} is not shared with other processes{advice}",
                operation=operation)
        return 0

    # --- for `_sharing`: an address and a generation identify a block that was shared ---

    cdef object shared_block(self, address_t address, list kept):
        cdef SharedBlock shared
        cdef Failure failure
        cdef bint ok
        memset(&shared, 0, sizeof(shared))
        self.allocator.enter()
        ok = share_block(self.allocator.engine, address, kept is not None, &shared, &failure)
        engine_leave(self.allocator.engine)
        try:
            if not ok:
                raise self.allocator.failed(&failure)
            found = describe_shared(&shared)
            if kept is not None:
                kept.append(found)
            return found
        except BaseException:       # including an interrupt in `describe_shared`
            if ok and kept is not None:
                self._end_shares(address, shared.generation, 0, 1)
            raise
        finally:
            shared_block_clear(&shared)

    def _share_block(self, block: int, kept: list[SharedBlock] | None) -> SharedBlock:
        """Describe a live block. With `kept`, hold it until `_end_shares` ends that.

        The result is also appended to the list: if an interrupt arrives with the return, the caller still knows what it
        holds.
        """
        return self.shared_block(block, kept)

    def _lease_block(self, block: int, generation: int, leased: list[SharedBlock]) -> SharedBlock:
        """Describe a shared block and hold it for one more process. Raises AddressError if it has ended.

        `leased` is used like `kept` of `_share_block`.
        """
        cdef SharedBlock shared
        cdef Failure failure
        cdef address_t address = block
        cdef uint64_t number = generation
        cdef bint ok
        memset(&shared, 0, sizeof(shared))
        self.allocator.enter()
        ok = lease_block(self.allocator.engine, address, number, &shared, &failure)
        engine_leave(self.allocator.engine)
        try:
            if not ok:
                raise self.allocator.failed(&failure)
            found = describe_shared(&shared)
            leased.append(found)
            return found
        except BaseException:
            if ok:
                self._end_shares(block, generation, 1, 0)
            raise
        finally:
            shared_block_clear(&shared)

    def _end_shares(self, block: int, generation: int, leases: int, keeps: int) -> None:
        """End this many leases and keeps of a block. Raises AddressError if it has ended."""
        cdef address_t address = block
        cdef uint64_t number = generation
        cdef uint64_t fewer_leases = leases
        cdef uint64_t fewer_keeps = keeps
        cdef bint ok
        self.allocator.enter()
        with nogil:
            ok = end_shares(self.allocator.engine, address, number, fewer_leases, fewer_keeps)
            engine_leave(self.allocator.engine)
        if not ok:
            raise AddressError(f"{block:#x} is not a shared block, or no longer is", block)
        if self.allocator.closed:
            self.allocator.shut()         # returns blocks that were in use at the close, as they are freed

    def _end_all_shares(self) -> None:
        """End all leases and keeps: in a child of fork, whose blocks are its own."""
        self.allocator.enter()
        with nogil:
            holds_end(self.allocator.engine)
            engine_leave(self.allocator.engine)
