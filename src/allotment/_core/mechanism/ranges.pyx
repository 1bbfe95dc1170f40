from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from allotment._core.contract.table cimport OK, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, device_t
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.ranges cimport LEAST_ALIGNMENT, has_recorded_addresses
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.model.model cimport FAILED_GIVEN_ADDRESS, Block, Chunk, Engine, Failure, Range, FreeList
from allotment._core.tools.arrays cimport make_room_for
from allotment._core.tools.lock cimport allotment_lock_relax, this_thread
from allotment._core.tools.pointer_map cimport map_get
from allotment._core.tools.slab cimport slab_give, slab_reserve, slab_take


cdef Range* make(Engine* engine, FreeList* free_list, bytes_t size) noexcept nogil:
    cdef Range* range_
    # Make room in the array by address before the address is known, so that the later insertion cannot fail.
    if not make_room_for(<void**> &engine.by_address, &engine.placed_room, engine.range_count + 1, sizeof(Range*)):
        return NULL
    range_ = <Range*> calloc(1, sizeof(Range))
    if range_ == NULL:
        return NULL
    engine.range_count += 1
    free_list.ranges += 1
    range_.size = size
    range_.free_list = free_list
    range_.prev = engine.last_range
    if engine.last_range != NULL:
        engine.last_range.next = range_
    else:
        engine.first_range = range_
    engine.last_range = range_
    return range_


cdef void range_number(Engine* engine, Range* range_) noexcept nogil:
    """Number a range as the youngest if the rules order free blocks by segment."""
    engine.segments_numbered += engine.rules.numbers_segments
    range_.order = engine.segments_numbered


cdef Range* range_make_plain(Engine* engine, FreeList* free_list, bytes_t size) noexcept nogil:
    """Create a range that gets its addresses later, together with its memory; NULL if host memory is short."""
    return make(engine, free_list, size)


cdef size_t first_behind(Engine* engine, address_t address) noexcept nogil:
    """Return how many ranges begin at or before `address`."""
    cdef size_t low = 0
    cdef size_t high = engine.placed_count
    cdef size_t middle
    while low < high:
        middle = (low + high) // 2
        if engine.by_address[middle].base <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef Range* overlapping(Engine* engine, address_t base, bytes_t size) noexcept nogil:
    """Return a range that contains some of these addresses, or NULL."""
    cdef size_t place = first_behind(engine, base)
    cdef Range* before = engine.by_address[place - 1] if place > 0 else NULL
    if before != NULL and base - before.base < before.size:
        return before
    if place < engine.placed_count and engine.by_address[place].base - base < size:
        return engine.by_address[place]
    return NULL


cdef bint is_anybodys(Engine* engine, address_t base, bytes_t size) noexcept nogil:
    """Whether some of these addresses are in use."""
    return overlapping(engine, base, size) != NULL or map_get(&engine.direct, base) != NULL


cdef void await_departure(Engine* engine, address_t base, bytes_t size) noexcept nogil:
    """Wait until other threads have recorded that a segment is gone, whose address the device has returned again.

    These threads only need to enter the engine. Has an unlocked section.
    """
    cdef unlocked_t unlocked
    cdef Range* range_ = overlapping(engine, base, size)
    cdef int round = 0
    while range_ != NULL and range_.leaving != 0 and range_.leaving != this_thread():
        unlocked = begin_unlocked(engine)
        allotment_lock_relax(round)
        end_unlocked(engine, unlocked)
        round += 1
        range_ = overlapping(engine, base, size)


cdef const char* fault_of_address(Engine* engine, address_t base, bytes_t size, bytes_t alignment) noexcept nogil:
    """Return why this cannot be the address of new memory; NULL if it can.

    An address in use cannot be freed either.
    """
    if base == 0 or base >> 63 != 0 or (base + size - 1) >> 63 != 0:
        return b"which is not from 1 to 2**63 - 1"
    if is_anybodys(engine, base, size):
        return b"which overlaps memory that it returned before"
    if base % alignment != 0:
        return b"which is not aligned as required"
    return NULL


cdef bint range_place(Engine* engine, Range* range_, address_t base, const char* operation,
                      Failure* failure) noexcept nogil:
    """Give a range the address that a device returned, if the address is valid."""
    cdef bytes_t alignment = LEAST_ALIGNMENT
    cdef size_t place
    if has_recorded_addresses(engine):
        range_.base = base
        return True
    if range_.page != 0 and engine.table.granularity != NULL and engine.table.granularity(
            engine.table.self, &alignment) != OK:
        alignment = LEAST_ALIGNMENT
    await_departure(engine, base, range_.size)
    failure.fault = fault_of_address(engine, base, range_.size, max(alignment, <bytes_t> 1))
    if failure.fault != NULL:
        failure.reason = FAILED_GIVEN_ADDRESS
        failure.operation = operation
        failure.address = base
        failure.requested = range_.size
        return False
    place = first_behind(engine, base)
    memmove(&engine.by_address[place + 1], &engine.by_address[place],
            (engine.placed_count - place) * sizeof(Range*))
    engine.by_address[place] = range_
    engine.placed_count += 1
    range_.base = base
    return True


cdef Range* range_reserve(
        Engine* engine, FreeList* free_list, bytes_t page, bytes_t size, Failure* failure) noexcept nogil:
    """Reserve addresses without memory. pre: `size` is a whole number of pages"""
    cdef Chunk** views = <Chunk**> calloc(size // page, sizeof(Chunk*))
    cdef Range* range_ = make(engine, free_list, size) if views != NULL else NULL
    cdef address_t base = 0
    cdef status_t status
    if range_ == NULL:
        free(views)
        host_memory_failed(failure)
        return NULL
    range_.page = page
    range_.views = views
    status = engine.table.range_reserve(engine.table.self, size, free_list.stream.handle, &base)
    if status != OK:
        range_forget(engine, range_)
        device_failed(failure, status, b"range_reserve")
        return NULL
    if not range_place(engine, range_, base, b"range_reserve", failure):
        if not is_anybodys(engine, base, size):
            engine.table.range_release(engine.table.self, base, size)
        range_forget(engine, range_)
        return NULL
    range_number(engine, range_)
    return range_


cdef void range_forget(Engine* engine, Range* range_) noexcept nogil:
    """Delete only the record of a range."""
    cdef size_t place
    if range_.base != 0 and not has_recorded_addresses(engine):
        place = first_behind(engine, range_.base)
        while engine.by_address[place - 1] != range_:
            place -= 1
        memmove(&engine.by_address[place - 1], &engine.by_address[place],
                (engine.placed_count - place) * sizeof(Range*))
        engine.placed_count -= 1
    engine.range_count -= 1
    range_.free_list.ranges -= 1
    if range_.prev != NULL:
        range_.prev.next = range_.next
    else:
        engine.first_range = range_.next
    if range_.next != NULL:
        range_.next.prev = range_.prev
    else:
        engine.last_range = range_.prev
    free(range_.views)
    free(range_)


cdef bint range_give_back(Engine* engine, Range* range_, Failure* failure) noexcept nogil:
    """Release the addresses of an expandable range that has no mapped block."""
    cdef status_t status
    cdef size_t page
    for page in range(range_.page_end):
        if range_.views[page] != NULL:
            drop_view(engine, range_, page, failure)
            if range_.views[page] != NULL:
                return False
    status = engine.table.range_release(engine.table.self, range_.base, range_.size)
    if status != OK:
        return device_failed(failure, status, b"range_release")
    range_forget(engine, range_)
    return True


cdef bint drop_view(Engine* engine, Range* range_, size_t page, Failure* failure) noexcept nogil:
    """Unmap a page and release its chunk, as far as the device allows; return whether the page is unmapped.

    A chunk that was unmapped but could not be released keeps its place: a leftover, with the reason in `failure`.
    """
    cdef DeviceTable* table = engine.table
    cdef Chunk* chunk = range_.views[page]
    cdef status_t status
    if chunk.views > 0:
        status = table.unmap(table.self, range_.base + page * range_.page, range_.page)
        if status != OK:
            return device_failed(failure, status, b"unmap")
        chunk.views -= 1
    status = table.chunk_release(table.self, chunk.handle, chunk.size)
    if status != OK:
        engine.has_leftovers = True
        device_failed(failure, status, b"chunk_release")
        return True
    range_.views[page] = NULL
    slab_give(&engine.chunk_slab, chunk)
    return True


cdef bint give_access(Engine* engine, address_t address, bytes_t size, Failure* failure) noexcept nogil:
    """Give this device and its peers access to a new mapping."""
    cdef DeviceTable* table = engine.table
    cdef status_t status
    cdef int peer
    if table.set_access == NULL:
        return True
    status = table.set_access(table.self, address, size, table.device)
    for peer in range(engine.peer_count):
        if status == OK:
            status = table.set_access(table.self, address, size, engine.peers[peer])
    if status != OK:
        return device_failed(failure, status, b"set_access")
    return True


cdef bint back_page(Engine* engine, Range* range_, size_t page, Failure* failure) noexcept nogil:
    """Create physical memory for a page, not mapped yet."""
    cdef DeviceTable* table = engine.table
    cdef Chunk* chunk
    cdef status_t status
    if range_.views[page] != NULL:
        return True
    if not slab_reserve(&engine.chunk_slab, 1):
        return host_memory_failed(failure)
    chunk = <Chunk*> slab_take(&engine.chunk_slab)
    chunk.size = range_.page
    chunk.views = 0
    status = table.chunk_create(table.self, range_.page, &chunk.handle)
    if status != OK:
        slab_give(&engine.chunk_slab, chunk)
        return device_failed(failure, status, b"chunk_create")
    range_.views[page] = chunk
    range_.page_end = max(range_.page_end, page + 1)
    return True


cdef bint map_page(Engine* engine, Range* range_, size_t page, Failure* failure) noexcept nogil:
    cdef DeviceTable* table = engine.table
    cdef Chunk* chunk = range_.views[page]
    cdef status_t status
    if chunk.views > 0:
        return True
    status = table.map(table.self, range_.base + page * range_.page, range_.page, chunk.handle)
    if status != OK:
        return device_failed(failure, status, b"map")
    chunk.views = 1
    return True


cdef bint map_pages(Engine* engine, Range* range_, address_t address, bytes_t size, bytes_t* mapped,
                    Failure* failure) noexcept nogil:
    """Back all pages that [address, address + size) touches, or none. pre: address on a page boundary

    Out of memory is not a device failure: the function returns False with failure.status OUT_OF_MEMORY.
    """
    cdef size_t first = (address - range_.base) // range_.page
    cdef size_t end = (address + size - range_.base + range_.page - 1) // range_.page
    cdef size_t page = first
    cdef bint ok = True
    cdef Failure undoing
    while ok and page < end:
        ok = back_page(engine, range_, page, failure)
        page += 1
    page = first
    while ok and page < end:
        ok = map_page(engine, range_, page, failure)
        page += 1
    if ok:
        ok = give_access(engine, address, (end - first) * range_.page, failure)
    if not ok:
        for page in range(first, end):
            if range_.views[page] != NULL and not drop_view(engine, range_, page, &undoing):
                engine.has_leftovers = True
        return False
    mapped[0] = (end - first) * range_.page
    range_.mapped += mapped[0]
    return True


cdef bint unmap_pages(Engine* engine, Range* range_, address_t address, bytes_t size, address_t* start,
                      bytes_t* unmapped, Failure* failure) noexcept nogil:
    """Unmap the whole pages inside [address, address + size). pre: all work on them is done (`wait_for_stream`)

    `unmapped` returns the bytes unmapped: fewer than all only if the device refused, which is then also a failure.
    """
    cdef size_t first = (address - range_.base + range_.page - 1) // range_.page
    cdef size_t end = (address + size - range_.base) // range_.page
    cdef size_t page = first
    cdef bint ok = True
    start[0] = range_.base + first * range_.page
    unmapped[0] = 0
    if first >= end:
        return True
    while page < end:
        ok = range_.views[page] == NULL or drop_view(engine, range_, page, failure)
        if not ok:
            break
        page += 1
    unmapped[0] = (page - first) * range_.page
    range_.mapped -= unmapped[0]
    return ok


cdef bytes_t missing_bytes(const Range* range_, address_t address, bytes_t size) noexcept nogil:
    cdef size_t page
    cdef bytes_t missing = 0
    for page in range((address - range_.base + range_.page - 1) // range_.page,
                      (address + size - range_.base) // range_.page):
        missing += range_.page if range_.views[page] == NULL else 0
    return missing


cdef Block* mapped_run(Block* block, address_t* start, bytes_t* size) noexcept nogil:
    """Find the next run of mapped blocks, starting at a block; it begins and ends on page boundaries. NULL if none
    is left.

    Returns the last block of the run; pass its `next` to the next call.
    """
    cdef Block* last
    while block != NULL and not block.mapped:
        block = block.next
    if block == NULL:
        return NULL
    start[0] = block.address
    last = block
    while last.next != NULL and last.next.mapped:
        last = last.next
    size[0] = last.address + last.size - block.address
    return last


cdef bytes_t missing_of(const Range* range_) noexcept nogil:
    cdef address_t start
    cdef bytes_t size
    cdef bytes_t missing = 0
    cdef Block* last = mapped_run(range_.head, &start, &size)
    while last != NULL:
        missing += missing_bytes(range_, start, size)
        last = mapped_run(last.next, &start, &size)
    return missing


cdef bint range_empty(Engine* engine, Range* range_, Failure* failure) noexcept nogil:
    cdef address_t start
    cdef bytes_t size
    cdef size_t page
    cdef Block* last = mapped_run(range_.head, &start, &size)
    while last != NULL:
        for page in range((start - range_.base) // range_.page, (start + size - range_.base) // range_.page):
            if range_.views[page] != NULL and not drop_view(engine, range_, page, failure):
                return False
        last = mapped_run(last.next, &start, &size)
    return True


cdef bint range_fill(Engine* engine, Range* range_, Failure* failure) noexcept nogil:
    cdef address_t start
    cdef bytes_t size
    cdef size_t page
    cdef Block* last = mapped_run(range_.head, &start, &size)
    while last != NULL:
        for page in range((start - range_.base) // range_.page, (start + size - range_.base) // range_.page):
            if not (back_page(engine, range_, page, failure) and map_page(engine, range_, page, failure)):
                return False
        if not give_access(engine, start, size, failure):
            return False
        last = mapped_run(last.next, &start, &size)
    return True


cdef void drop_leftovers(Engine* engine) noexcept nogil:
    """Retry releasing the memory under unmapped blocks that the device refused to take back."""
    cdef Range* range_ = engine.first_range
    cdef Block* block
    cdef Failure failure
    cdef size_t page
    engine.has_leftovers = False
    while range_ != NULL:
        block = range_.head if range_.views != NULL else NULL
        while block != NULL:
            for page in range((block.address - range_.base) // range_.page,
                              (block.address + block.size - range_.base) // range_.page if not block.mapped else 0):
                if range_.views[page] != NULL and not drop_view(engine, range_, page, &failure):
                    engine.has_leftovers = True
            block = block.next
        range_ = range_.next


cdef bint grant_access(Engine* engine, device_t device, Failure* failure) noexcept nogil:
    """Give another device access to everything that is currently mapped."""
    cdef Range* range_ = engine.first_range
    cdef status_t status
    cdef size_t page
    while range_ != NULL:
        if range_.views != NULL:
            for page in range(range_.page_end):
                if range_.views[page] == NULL or range_.views[page].views == 0:
                    continue
                status = engine.table.set_access(
                    engine.table.self, range_.base + page * range_.page, range_.page, device)
                if status != OK:
                    return device_failed(failure, status, b"set_access")
        range_ = range_.next
    return True
