from libc.stdlib cimport calloc, free as free_memory

from allotment._allocators.pinned.memory cimport PinnedMemory, timing_dict
from allotment._core.contract.current cimport current_stream
from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport INVALID, NOT_READY, OK, OUT_OF_MEMORY, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, count_t, event_t, stream_t
from allotment._core.tools.arguments cimport read_stream
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve

import warnings
from collections import deque

from allotment._allocators.pinned.background import Background
from allotment.errors import AddressError, AllotmentError, InvariantError

cdef enum:
    PER_THREAD_STREAM = 2       # of CUDA: one number for many streams, so only the calling thread can record it now

cdef stream_t NO_STREAM = ~<stream_t> 0

cdef inline int class_of(bytes_t size) noexcept:
    """ceil(log2 size). pre: size > 0"""
    cdef int found = 0
    while (<bytes_t> 1 << found) < size:
        found += 1
    return found


cdef inline void count_up(Count* count, count_t amount) noexcept:
    count.current += amount
    count.allocated += amount
    if count.current > count.peak:
        count.peak = count.current


cdef inline void count_down(Count* count, count_t amount) noexcept:
    count.current -= amount
    count.freed += amount


cdef class PinnedBlocks:
    """PinnedBlocks(memory, settings)\n--\n
    Blocks in PyTorch's manner: see the header. Users hold a `PinnedAllocator`.
    """

    def __cinit__(self, PinnedMemory memory, settings: Settings):
        self.memory = memory
        self.most_kept = settings.pinned_max_cached_size
        self.most_rounded = min(self.most_kept, <bytes_t> settings.pinned_max_round_threshold)
        self.catches_all = settings.pinned_free_catch_all
        self.looks_in_background = settings.pinned_use_background_threads
        self.streams, self.loose, self.queue, self.spare_events = {}, {}, deque(), []
        if not map_init(&self.by_address):
            raise MemoryError("the host has no memory for the records of pinned memory")

    def __dealloc__(self):
        cdef size_t place
        if self.by_address.slots != NULL:
            for place in range(self.by_address.mask + 1):
                if self.by_address.slots[place].key != 0:
                    free_memory(self.by_address.slots[place].value)
            map_clear(&self.by_address)

    # --- requests and frees ---

    cdef address_t allocate(self, bytes_t size) except? 0:
        """pre: size > 0"""
        cdef PinnedBlock* block
        cdef int size_class
        if self.loose or (not self.looks_in_background and self.queue):
            self.process()
        size_class = class_of(size)
        if size <= self.most_rounded:
            size = <bytes_t> 1 << size_class
        block = self.kept[size_class]
        if block != NULL and block.size >= size:
            self.kept[size_class] = block.next
        else:
            block = self.obtain(size, size_class)
        block.next = NULL
        block.lent = True
        block.in_capture = self.works_in_capture()
        count_up(&self.active[size_class], 1)
        count_up(&self.active_bytes[size_class], block.size)
        return block.address

    cdef int free(self, address_t address, object streams) except -1:
        cdef PinnedBlock* block = self.lent_block(address)
        cdef set recorded = self.streams.get(address)
        cdef set used = recorded
        cdef stream_t stream
        if streams:
            used = {*(recorded or ()), *[read_stream(given, self.memory.inner) for given in streams]}
        if not used:
            block.lent = False
            self.keep(block)
            return 0
        if block.in_capture:
            # A graph's copies have no time of their own: the block waits for an event that never comes.
            block.lent = False
            block.awaited = 1
            self.streams.pop(address, None)
            return 0
        for stream in list(used):
            if self.is_capturing(stream):       # what a graph copies must outlive the graph
                used.discard(stream)
        block.lent = False
        block.awaited = len(used)
        self.streams.pop(address, None)
        if not used:
            self.keep(block)
            return 0
        if PER_THREAD_STREAM in used:
            try:
                self.record(PER_THREAD_STREAM, [address])
            except BaseException:
                block.lent, block.awaited = True, 0
                if recorded:
                    self.streams[address] = recorded
                raise
        for stream in used:
            if stream != PER_THREAD_STREAM:
                self.loose.setdefault(stream, []).append(address)
        if self.background is not None:
            self.background.wake()
        return 0

    cdef PinnedBlock* lent_block(self, address_t address) except NULL:
        cdef PinnedBlock* block = <PinnedBlock*> map_get(&self.by_address, address)
        if block == NULL or not block.lent:
            raise AddressError(
                f"invalid pinned address: {address:#x} was never allocated from {self.memory.name}, or has been freed",
                address)
        return block

    def use(self, address: int, stream: Stream | int) -> None:
        """Another stream copies from or to a block."""
        self.lent_block(address)
        self.streams.setdefault(address, set()).add(read_stream(stream, self.memory.inner))

    cdef bint works_in_capture(self) except -1:
        """Whether the calling thread's current stream is being captured; it has none unless it said so."""
        cdef stream_t current = current_stream(self.memory.inner.table.self, NO_STREAM)
        return current != NO_STREAM and self.is_capturing(current)

    cdef void keep(self, PinnedBlock* block) noexcept:
        count_down(&self.active[block.size_class], 1)
        count_down(&self.active_bytes[block.size_class], block.size)
        if block.size > self.most_kept:
            try:
                self.release(block)
                return
            except AllotmentError as error:
                warnings.warn(f"pinned memory stays cached: {error}", stacklevel=2)
        block.next = self.kept[block.size_class]
        self.kept[block.size_class] = block

    # --- the device ---

    cdef PinnedBlock* obtain(self, bytes_t size, int size_class) except NULL:
        cdef PinnedBlock* block = <PinnedBlock*> calloc(1, sizeof(PinnedBlock))
        cdef status_t status
        if block == NULL or not map_reserve(&self.by_address, 1):
            free_memory(block)
            raise MemoryError("the host has no memory for the records of pinned memory")
        if self.looks_in_background and self.background is None:
            self.background = Background(self)
        try:
            status = self.ask(size, &block.address)
            if status == OUT_OF_MEMORY:
                self.await_all()
                self.empty()
                status = self.ask(size, &block.address)
            if status == OUT_OF_MEMORY:
                limit = f", of at most {self.limit}" if self.limited else ""
                raise MemoryError(
                    f"out of pinned memory on {self.memory.inner.name}: {size} bytes were requested,"
                    f" {self.active_now()} are in use{limit}; free some")
            self.check(status, "pinned_allocate")
            if not map_reserve(&self.by_address, 1):        # others may have come in meanwhile
                self.memory.release(block.address)
                raise MemoryError("the host has no memory for the records of pinned memory")
        except BaseException:
            free_memory(block)
            raise
        block.size = size
        block.size_class = size_class
        map_put(&self.by_address, block.address, block)
        count_up(&self.owned, 1)
        count_up(&self.owned_bytes, size)
        count_up(&self.buckets[size_class], 1)
        return block

    cdef status_t ask(self, bytes_t size, address_t* address) except *:
        if self.limited and <bytes_t> self.owned_bytes.current + size > self.limit:
            return OUT_OF_MEMORY
        return self.memory.obtain(size, address)

    cdef int release(self, PinnedBlock* block) except -1:
        """Give a block back to the device. pre: on no list"""
        cdef status_t status = self.memory.release(block.address)
        if status != OK and not self.catches_all:
            block.next = self.kept[block.size_class]
            self.kept[block.size_class] = block
            self.check(status, "pinned_free")
        if self.memory.is_reserved(block.address):
            block.next = self.kept[block.size_class]        # what is set aside is never given back
            self.kept[block.size_class] = block
            return 0
        map_pop(&self.by_address, block.address)
        count_down(&self.owned, 1)
        count_down(&self.owned_bytes, block.size)
        count_down(&self.buckets[block.size_class], 1)
        free_memory(block)
        return 0

    cdef int empty(self) except -1:
        """Give all blocks back that no stream can touch any more."""
        cdef PinnedBlock* block
        cdef PinnedBlock* following
        cdef int size_class
        self.process()
        for size_class in range(CLASS_COUNT):
            block = self.kept[size_class]
            self.kept[size_class] = NULL
            while block != NULL:
                following = block.next
                try:
                    self.release(block)
                except BaseException:
                    while following != NULL:
                        block = following
                        following = block.next
                        block.next = self.kept[size_class]
                        self.kept[size_class] = block
                    raise
                block = following
        return 0

    # --- events ---

    cdef bint is_capturing(self, stream_t stream) except -1:
        cdef DeviceTable* table = &self.memory.inner.table
        cdef capture_t capture = 0
        cdef status_t status
        if table.capture_status == NULL:
            return False
        status = table.capture_status(table.self, stream, &capture)
        if status == INVALID:           # a stream that was destroyed has left its capture
            return False
        self.check(status, "capture_status")
        return capture != 0

    cdef bint record(self, stream_t stream, list addresses) except -1:
        """Queue blocks behind an event of their stream; False if it is being captured, and can have none now."""
        cdef DeviceTable* table = &self.memory.inner.table
        cdef event_t event = 0
        cdef status_t status
        if table.event_record == NULL:
            self.finished(addresses)
            return True
        if self.is_capturing(stream):
            return False
        if self.spare_events:
            event = self.spare_events.pop()
        else:
            self.check(table.event_create(table.self, &event), "event_create")
        status = table.event_record(table.self, event, stream)
        if status != OK:
            self.spare_events.append(event)
            if status != INVALID or table.device_synchronize == NULL:
                self.check(status, "event_record")
            with nogil:                 # its stream is gone: what it did may still be under way
                status = table.device_synchronize(table.self)
            self.check(status, "device_synchronize")
            self.finished(addresses)
            return True
        self.queue.append((event, addresses))
        return True

    cdef int record_loose(self) except -1:
        cdef stream_t stream
        cdef list addresses
        for stream in list(self.loose):
            addresses = self.loose.pop(stream, None)
            if addresses is None:
                continue
            try:
                if self.record(stream, addresses):
                    continue
            except BaseException:
                self.loose.setdefault(stream, []).extend(addresses)
                raise
            self.loose.setdefault(stream, []).extend(addresses)
        return 0

    def finished(self, addresses: list[int]) -> None:
        """An event of these blocks has come to pass."""
        cdef PinnedBlock* block
        cdef address_t address
        for address in addresses:
            block = <PinnedBlock*> map_get(&self.by_address, address)
            block.awaited -= 1
            if block.awaited == 0:
                self.keep(block)

    cdef int process(self) except -1:
        """Keep what events have been reached for, oldest first, up to the first that has not."""
        cdef DeviceTable* table = &self.memory.inner.table
        cdef event_t event
        cdef status_t status
        if self.processing:
            return 0
        self.processing = True
        try:
            if self.loose:
                self.record_loose()
            while self.queue:
                event, addresses = self.queue.popleft()
                status = table.event_query(table.self, event)
                if status != OK:
                    self.queue.appendleft((event, addresses))
                    if status == NOT_READY:
                        break
                    self.check(status, "event_query")
                self.spare_events.append(event)
                self.finished(addresses)
        finally:
            self.processing = False
        return 0

    def process_events(self) -> bool:
        """`process`, for the thread that does so in the background; whether anything waits still."""
        self.process()
        return bool(self.queue or self.loose)

    cdef int await_all(self) except -1:
        """Wait for everything that is waited for."""
        cdef DeviceTable* table = &self.memory.inner.table
        cdef event_t event
        cdef status_t status
        self.record_loose()
        while self.queue:
            event, addresses = self.queue.popleft()
            with nogil:
                status = table.event_synchronize(table.self, event)
            if status != OK:
                self.queue.appendleft((event, addresses))
                self.check(status, "event_synchronize")
            self.spare_events.append(event)
            self.finished(addresses)
        return 0

    def close(self) -> None:
        """Give back all but what is lent, waiting for copies."""
        cdef DeviceTable* table = &self.memory.inner.table
        if self.background is not None:
            self.background.stop()
            self.background = None
        self.await_all()
        self.empty()
        while self.spare_events:
            self.check(table.event_destroy(table.self, self.spare_events.pop()), "event_destroy")

    cdef int check(self, status_t status, str operation) except -1:
        if status != OK:
            raise device_error(self.memory.inner, status, operation)
        return 0

    # --- figures ---

    cdef count_t active_now(self) noexcept:
        cdef count_t total = 0
        cdef int size_class
        for size_class in range(CLASS_COUNT):
            total += self.active_bytes[size_class].current
        return total

    def around(self, address_t address) -> tuple[int, int] | None:
        """(start, size) of the lent block that holds an address, or None."""
        cdef PinnedBlock* block
        cdef size_t place
        for place in range(self.by_address.mask + 1):
            if self.by_address.slots[place].key != 0:
                block = <PinnedBlock*> self.by_address.slots[place].value
                if block.lent and block.address <= address < block.address + block.size:
                    return block.address, block.size
        return None

    def figures(self) -> dict[str, Any]:
        """All counters by metric."""
        cdef int size_class
        cdef dict sums = {}
        for name, counts in (("active_requests", False), ("active_bytes", True)):
            total = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
            for size_class in range(CLASS_COUNT):
                one = count_dict(&self.active_bytes[size_class] if counts else &self.active[size_class])
                for key in total:
                    total[key] += one[key]
            sums[name] = total
        return {
            "allocations": count_dict(&self.owned),
            "allocated_bytes": count_dict(&self.owned_bytes),
            **sums,
            "num_host_alloc": self.owned.allocated,
            "num_host_free": self.owned.freed,
            "host_alloc_time": timing_dict(&self.memory.obtaining),
            "host_free_time": timing_dict(&self.memory.releasing),
            "bucket_allocation": {
                str(size_class): count_dict(&self.buckets[size_class])
                for size_class in range(CLASS_COUNT) if self.buckets[size_class].allocated
            },
        }

    def check_figures(self) -> None:
        """Raise InvariantError if the counters do not say what the blocks are, or a place holds what is not its own."""
        cdef PinnedBlock* block
        cdef size_t place
        cdef int size_class
        cdef count_t owned = 0, lent = 0, kept = 0, waiting = 0, active = 0
        for place in range(self.by_address.mask + 1):
            if self.by_address.slots[place].key != 0:
                block = <PinnedBlock*> self.by_address.slots[place].value
                owned += block.size
                lent += block.lent
                waiting += block.awaited > 0
        for size_class in range(CLASS_COUNT):
            active += self.active[size_class].current
            block = self.kept[size_class]
            while block != NULL:
                if block.lent or block.awaited or block.size_class != size_class:
                    raise InvariantError(
                        "kept blocks", f"{block.address:#x} is on a list, and in use or of another class")
                kept += 1
                block = block.next
        if owned != self.owned_bytes.current or active != lent + waiting:
            raise InvariantError(
                "figures of pinned memory", f"{owned} bytes and {lent + waiting} active blocks are there, "
                f"{self.owned_bytes.current} and {active} are counted")
        if lent + waiting + kept != <count_t> self.by_address.count:
            raise InvariantError("places of pinned blocks", f"{self.by_address.count} blocks, {kept} of them kept")

    def reset_peaks(self) -> None:
        """Peaks start anew from what is there now."""
        cdef int size_class
        self.owned.peak, self.owned_bytes.peak = self.owned.current, self.owned_bytes.current
        for size_class in range(CLASS_COUNT):
            self.active[size_class].peak = self.active[size_class].current
            self.active_bytes[size_class].peak = self.active_bytes[size_class].current
            self.buckets[size_class].peak = self.buckets[size_class].current
        self.memory.obtaining.shortest = self.memory.obtaining.longest = 0
        self.memory.releasing.shortest = self.memory.releasing.longest = 0

    def reset_sums(self) -> None:
        """Sums of all allocations and frees start anew from 0."""
        cdef int size_class
        self.owned.allocated = self.owned.freed = self.owned_bytes.allocated = self.owned_bytes.freed = 0
        for size_class in range(CLASS_COUNT):
            self.active[size_class].allocated = self.active[size_class].freed = 0
            self.active_bytes[size_class].allocated = self.active_bytes[size_class].freed = 0
            self.buckets[size_class].allocated = self.buckets[size_class].freed = 0
        self.memory.obtaining.total = self.memory.obtaining.count = 0
        self.memory.releasing.total = self.memory.releasing.count = 0


cdef dict count_dict(const Count* count):
    return {"current": count.current, "peak": count.peak, "allocated": count.allocated, "freed": count.freed}
