"""Pinned host memory, kept for reuse.

A block is in one of three places, by its size class:

    lent      in use
    waiting   freed, but copies on some streams may still read or write it: an event for each of them
    kept      nothing can touch it any more

The lock story. Python's containers under one reentrant lock: a collection inside any step may run the finalizer of a
block, which calls `free` on the same thread. So `free` only appends to places, and steps that look through a place go
by what they have taken out of it. Device calls that may wait are made without the interpreter lock.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport (
    CAN_PINNED, INVALID, NOT_READY, OK, OUT_OF_MEMORY, Device, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, event_t, stream_t
from allotment._core.tools.arguments cimport read_address, read_size, read_stream, refuse_pickling

import threading

from allotment._allocators.current import note_holder
from allotment.errors import AddressError, UnsupportedError

cdef enum:
    LEAST_SIZE = 512


cdef bytes_t size_class(object size) except 0:
    """The power of two that serves a request."""
    cdef bytes_t wanted = 0
    if not read_size(size, &wanted):
        raise MemoryError(f"out of pinned memory: {size} bytes were requested, more than any machine has")
    return max(LEAST_SIZE, 1 << (<object> wanted - 1).bit_length())


cdef class PinnedPool:
    """PinnedPool(device)\n--\n
    Pinned host memory of a device, kept for reuse in powers of two. `device` is a device or an allocator on one.

    Freed memory is handed out again once the copies on the streams named at its free are done, so that a copy that is
    still under way never meets another's data. Safe to use from several threads.

    Raises UnsupportedError for a device without pinned memory.
    """

    cdef Device device
    cdef object lock
    cdef dict lent              # address -> size class
    cdef dict waiting           # size class -> [(address, [event])], oldest first
    cdef dict kept              # size class -> [address]
    cdef list spare_events
    cdef object __weakref__
    cdef uint64_t hits
    cdef uint64_t misses

    def __init__(self, device: Device | Allocator):
        cdef Device found = getattr(device, "device", device)
        if not found.table.capabilities & CAN_PINNED:
            raise UnsupportedError(f"{found.name} does not support pinned memory")
        self.device = found
        self.lock = threading.RLock()
        self.lent, self.waiting, self.kept = {}, {}, {}
        self.spare_events = []
        note_holder(self)

    def _block_around(self, address: int) -> tuple[int, int] | None:
        """(start, size) of the block in use that holds an address; None if none of ours does."""
        with self.lock:
            for start, size in list(self.lent.items()):
                if start <= address < start + size:
                    return start, size
        return None

    def __reduce__(self):
        return refuse_pickling(self, "its memory belongs to this process; make one in the other process")

    def __repr__(self):
        return f"<PinnedPool of {self.device.name}: {len(self.lent)} blocks in use>"

    @property
    def device(self) -> Device:
        """The device whose pinned memory this is."""
        return self.device

    @property
    def hits(self) -> int:
        """How many requests were served from memory that was kept."""
        return self.hits

    @property
    def misses(self) -> int:
        """How many requests had to ask the device."""
        return self.misses

    def allocate(self, size: int) -> int:
        """Address of at least `size` bytes. Size 0 gives 0.

        A miss asks the device, which is slow for pinned memory. Raises SizeError, MemoryError, DeviceError.
        """
        cdef object rounded
        if size == 0:
            return 0
        rounded = size_class(size)
        with self.lock:
            address = self.take(rounded)
            if address is None:
                self.misses += 1
                address = self.obtain(rounded)
            else:
                self.hits += 1
            self.lent[address] = rounded
            return address

    def free(self, address: int, streams: Iterable[int] = ()) -> None:
        """Give a block back; `streams` are those whose work until now may touch it. Freeing 0 does nothing.

        A stream that is being captured is not waited for: what a graph copies must outlive the graph. Raises
        AddressError.
        """
        cdef address_t given = read_address(address)
        if given == 0:
            return
        with self.lock:
            if given not in self.lent:
                raise AddressError(
                    f"invalid pinned address: {given:#x} was never allocated from {self!r}, or has been freed", given)
            events = self.record_events(streams)
            rounded = self.lent.pop(given)
            if events:
                self.waiting.setdefault(rounded, []).append((given, events))
            else:
                self.kept.setdefault(rounded, []).append(given)

    def release(self) -> None:
        """Give what nothing can touch any more back to the device. Raises DeviceError."""
        with self.lock:
            for rounded in list(self.waiting):
                self.sort_out(rounded)
            self.give_back()

    def stats(self) -> dict[str, int]:
        """Blocks and bytes that are lent, waiting for copies and kept, and how many requests were hits and misses."""
        with self.lock:
            return {
                "lent_blocks": len(self.lent),
                "lent_bytes": sum(self.lent.values()),
                "waiting_blocks": sum(len(blocks) for blocks in self.waiting.values()),
                "waiting_bytes": sum(rounded * len(blocks) for rounded, blocks in self.waiting.items()),
                "kept_blocks": sum(len(blocks) for blocks in self.kept.values()),
                "kept_bytes": sum(rounded * len(blocks) for rounded, blocks in self.kept.items()),
                "hits": self.hits,
                "misses": self.misses,
            }

    def __del__(self):
        if self.lock is not None:
            with self.lock:
                self.await_all()
                self.give_back()
                self.drop_events()

    # --- places ---

    cdef object take(self, object rounded):
        """The address of a block that nothing can touch, or None."""
        kept = self.kept.get(rounded)
        if not kept:
            self.sort_out(rounded)
            kept = self.kept.get(rounded)
        return kept.pop() if kept else None

    cdef int sort_out(self, object rounded) except -1:
        """Keep the blocks of a size class whose copies are done."""
        for address, events in self.waiting.pop(rounded, ()):
            if self.are_done(events):
                self.spare_events += events
                self.kept.setdefault(rounded, []).append(address)
            else:
                self.waiting.setdefault(rounded, []).append((address, events))
        return 0

    cdef object obtain(self, object rounded):
        """New memory; if there is none, that of everything cached is given back first."""
        cdef address_t address = 0
        status = self.ask(rounded, &address)
        if status == OUT_OF_MEMORY:
            self.await_all()
            self.give_back()
            status = self.ask(rounded, &address)
        if status == OUT_OF_MEMORY:
            raise MemoryError(
                f"out of pinned memory on {self.device.name}: {rounded} bytes were requested,"
                f" {sum(self.lent.values())} are in use; free some"
            ) from device_error(self.device, status, "pinned_allocate")
        self.check(status, "pinned_allocate")
        return address

    cdef status_t ask(self, bytes_t rounded, address_t* address) noexcept:
        cdef DeviceTable* table = &self.device.table
        cdef status_t status
        with nogil:
            status = table.pinned_allocate(table.self, rounded, address)
        return status

    cdef int give_back(self) except -1:
        """Give what is kept back to the device."""
        cdef DeviceTable* table = &self.device.table
        cdef address_t address
        cdef status_t status
        for blocks in list(self.kept.values()):
            while blocks:
                address = blocks.pop()
                with nogil:
                    status = table.pinned_free(table.self, address)
                self.check(status, "pinned_free")
        return 0

    # --- events ---

    cdef list record_events(self, object streams):
        """An event for each stream that is not being captured: a graph's copies have no time of their own."""
        cdef DeviceTable* table = &self.device.table
        cdef stream_t stream
        cdef capture_t capture
        cdef event_t event
        cdef status_t status
        events = []
        if table.event_record == NULL:
            return events
        try:
            for given in streams:
                stream, capture = read_stream(given, self.device), 0
                if table.capture_status != NULL:
                    status = table.capture_status(table.self, stream, &capture)
                    if status != INVALID:       # a stream that was destroyed has left its capture
                        self.check(status, "capture_status")
                if capture == 0:
                    event = self.new_event()
                    events.append(event)
                    status = table.event_record(table.self, event, stream)
                    if status == INVALID and table.device_synchronize != NULL:
                        with nogil:
                            status = table.device_synchronize(table.self)
                    self.check(status, "event_record")
        except BaseException:
            self.spare_events += events     # to be recorded anew
            raise
        return events

    cdef event_t new_event(self) except? 0:
        cdef DeviceTable* table = &self.device.table
        cdef event_t event = 0
        if self.spare_events:
            return self.spare_events.pop()
        self.check(table.event_create(table.self, &event), "event_create")
        return event

    cdef bint are_done(self, list events) except -1:
        cdef DeviceTable* table = &self.device.table
        cdef event_t event
        cdef status_t status
        for event in events:
            status = table.event_query(table.self, event)
            if status == NOT_READY:
                return False
            self.check(status, "event_query")
        return True

    cdef int await_all(self) except -1:
        """Wait for every copy that is waited for, and keep the memory."""
        cdef DeviceTable* table = &self.device.table
        cdef event_t event
        cdef status_t status
        while self.waiting:
            rounded, blocks = self.waiting.popitem()
            for address, events in blocks:
                for event in events:
                    with nogil:
                        status = table.event_synchronize(table.self, event)
                    self.check(status, "event_synchronize")
                self.spare_events += events
                self.kept.setdefault(rounded, []).append(address)
        return 0

    cdef int drop_events(self) except -1:
        cdef DeviceTable* table = &self.device.table
        while self.spare_events:
            self.check(table.event_destroy(table.self, self.spare_events.pop()), "event_destroy")
        return 0

    cdef int check(self, status_t status, str operation) except -1:
        if status != OK:
            raise device_error(self.device, status, operation)
        return 0
