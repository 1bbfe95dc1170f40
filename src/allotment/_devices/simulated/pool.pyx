from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from allotment._core.contract.table cimport (
    CAN_STREAM_ORDERED, DEVICE_ERROR, INVALID, OK, ORDERED_ACCESS, ORDERED_ALLOCATE, ORDERED_FREE, ORDERED_RESET_HIGH,
    ORDERED_TRIM, ORDERED_USAGE, OUT_OF_MEMORY, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.tools.pointer_map cimport map_clear, map_init, map_get, map_pop, map_put, map_reserve
from allotment._devices.simulated.simulation cimport (
    SimMoment, SimPiece, SimPool, Simulation, SimStream, add_node, enter, enter_on, has_come, is_listed_index, leave,
    take_addresses)

cdef enum:
    ALIGNMENT = 512


cdef bint fill_pool(DeviceTable* table, SimPool* pool) noexcept:
    table.capabilities |= CAN_STREAM_ORDERED
    table.ordered_allocate = ordered_allocate
    table.ordered_free = ordered_free
    table.ordered_trim = ordered_trim
    table.ordered_usage = ordered_usage
    table.ordered_reset_high = ordered_reset_high
    table.ordered_access = ordered_access
    return map_init(&pool.pieces)


cdef void clear_pool(SimPool* pool) noexcept:
    cdef size_t i
    for i in range(pool.pieces.mask + 1 if pool.pieces.slots != NULL else 0):
        if pool.pieces.slots[i].key != 0:
            drop(<SimPiece*> pool.pieces.slots[i].value)
    while pool.free_pieces != NULL:
        drop(unlink(&pool.free_pieces))
    map_clear(&pool.pieces)


# --- pieces ------------------------------------------------------------------------------------------------

cdef void drop(SimPiece* piece) noexcept nogil:
    free(piece.freed_after)
    free(piece)


cdef SimPiece* unlink(SimPiece** link) noexcept nogil:
    cdef SimPiece* piece = link[0]
    link[0] = piece.next
    piece.next = NULL
    return piece


cdef bint note_free(SimPiece* piece, SimStream* stream) noexcept nogil:
    """Store when the free takes effect: after the stream's work so far, and everything that this work waits for."""
    cdef size_t count = stream.awaited_count + 1
    cdef SimMoment* moments = <SimMoment*> malloc(count * sizeof(SimMoment))
    if moments == NULL:
        return False
    moments[0].stream = stream
    moments[0].tick = stream.launched
    if count > 1:
        memcpy(&moments[1], stream.awaited, (count - 1) * sizeof(SimMoment))
    free(piece.freed_after)
    piece.freed_after = moments
    piece.freed_after_count = count
    piece.freed_on = stream
    piece.idle = False
    return True


cdef bint takes_effect(const SimPiece* piece) noexcept nogil:
    cdef size_t i
    for i in range(piece.freed_after_count):
        if not has_come(&piece.freed_after[i]):
            return False
    return True


cdef void complete_frees(SimPool* pool) noexcept nogil:
    """Apply every free that is due."""
    cdef SimPiece* piece = pool.free_pieces
    while piece != NULL:
        if not piece.idle and takes_effect(piece):
            piece.idle = True
            pool.used -= piece.size
        piece = piece.next


cdef void release_idle(Simulation* device, bytes_t keep) noexcept nogil:
    """Release idle pieces to the device, until the pool holds at most `keep` bytes."""
    cdef SimPiece** link = &device.pool.free_pieces
    cdef SimPiece* piece
    while link[0] != NULL and device.pool.reserved > keep:
        if not link[0].idle:
            link = &link[0].next
            continue
        piece = unlink(link)
        device.pool.reserved -= piece.size
        device.used -= piece.size
        drop(piece)


cdef SimPiece* find_free(SimPool* pool, bytes_t size, SimStream* stream) noexcept nogil:
    cdef SimPiece** link = &pool.free_pieces
    while link[0] != NULL:
        if link[0].size == size and (link[0].idle or link[0].freed_on == stream):
            return unlink(link)
        link = &link[0].next
    return NULL


cdef SimPiece* new_piece(Simulation* device, bytes_t size) noexcept nogil:
    """Return NULL if the device, or this process, has no memory for it."""
    cdef SimPool* pool = &device.pool
    cdef bytes_t room = device.capacity - device.used
    cdef SimPiece* piece
    if size > room:
        release_idle(device, pool.reserved - min(pool.reserved, size - room))
    if size > device.capacity - device.used:
        return NULL
    piece = <SimPiece*> calloc(1, sizeof(SimPiece))
    if piece != NULL:
        piece.address = take_addresses(device, size)
        piece.size = size
        piece.idle = True
        device.used += size
        pool.reserved += size
        pool.reserved_high = max(pool.reserved_high, pool.reserved)
    return piece


# --- the contract ------------------------------------------------------------------------------------------

cdef status_t ordered_allocate(void* self, bytes_t size, stream_t handle, address_t* address) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, ORDERED_ALLOCATE, handle, &stream)
    cdef SimPool* pool = &device.pool
    cdef SimPiece* piece
    if status != OK:
        return status
    if size > device.capacity or not map_reserve(&pool.pieces):
        return leave(device, OUT_OF_MEMORY)
    size = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    if stream.capture != NULL:
        return leave(device, allocate_in_graph(device, size, stream, address))
    complete_frees(pool)
    piece = find_free(pool, size, stream)
    if piece == NULL:
        piece = new_piece(device, size)
    if piece == NULL:
        return leave(device, OUT_OF_MEMORY)
    if piece.idle:
        pool.used += size
        pool.used_high = max(pool.used_high, pool.used)
    map_put(&pool.pieces, piece.address, piece)
    address[0] = piece.address
    return leave(device, OK)


cdef status_t allocate_in_graph(Simulation* device, bytes_t size, SimStream* stream,
                                address_t* address) noexcept nogil:
    """pre: inside, a slot for the piece is reserved"""
    cdef SimPiece* piece
    if stream.capture.broken:
        return DEVICE_ERROR
    piece = <SimPiece*> calloc(1, sizeof(SimPiece))
    if piece == NULL or add_node(device, stream) == 0:
        free(piece)
        return OUT_OF_MEMORY
    piece.address = take_addresses(device, size)
    piece.size = size
    piece.capture = stream.capture.id
    map_put(&device.pool.pieces, piece.address, piece)
    address[0] = piece.address
    return OK


cdef status_t ordered_free(void* self, address_t address, stream_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef SimStream* stream = NULL
    cdef status_t status = enter_on(device, ORDERED_FREE, handle, &stream)
    cdef SimPool* pool = &device.pool
    cdef SimPiece* piece
    if status != OK:
        return status
    piece = <SimPiece*> map_get(&pool.pieces, address)
    if piece == NULL:
        return leave(device, INVALID)
    if piece.capture != 0 or stream.capture != NULL:
        return leave(device, free_of_graph(device, piece, stream))
    if not note_free(piece, stream):
        return leave(device, OUT_OF_MEMORY)
    map_pop(&pool.pieces, address)
    piece.next = pool.free_pieces
    pool.free_pieces = piece
    complete_frees(pool)
    return leave(device, OK)


cdef status_t free_of_graph(Simulation* device, SimPiece* piece, SimStream* stream) noexcept nogil:
    """Free inside a capture, or free what was allocated inside one."""
    if stream.capture != NULL:
        if stream.capture.broken:
            return DEVICE_ERROR
        if piece.capture != stream.capture.id:
            stream.capture.broken = True
            return INVALID
        if add_node(device, stream) == 0:
            return OUT_OF_MEMORY
    drop(<SimPiece*> map_pop(&device.pool.pieces, piece.address))
    return OK


cdef status_t ordered_trim(void* self, bytes_t keep) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, ORDERED_TRIM)
    if status != OK:
        return status
    complete_frees(&device.pool)
    release_idle(device, keep)
    return leave(device, OK)


cdef status_t ordered_usage(void* self, bytes_t* used, bytes_t* used_high, bytes_t* reserved,
                            bytes_t* reserved_high) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, ORDERED_USAGE)
    if status != OK:
        return status
    complete_frees(&device.pool)
    used[0] = device.pool.used
    used_high[0] = device.pool.used_high
    reserved[0] = device.pool.reserved
    reserved_high[0] = device.pool.reserved_high
    return leave(device, OK)


cdef status_t ordered_reset_high(void* self) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, ORDERED_RESET_HIGH)
    if status != OK:
        return status
    complete_frees(&device.pool)
    device.pool.used_high = device.pool.used
    device.pool.reserved_high = device.pool.reserved
    return leave(device, OK)


cdef status_t ordered_access(void* self, device_t peer) noexcept nogil:
    """Any existing device may have access, since there is no memory."""
    cdef Simulation* device = <Simulation*> self
    cdef bint is_known = is_listed_index(peer)
    cdef status_t status = enter(device, ORDERED_ACCESS)
    return status if status != OK else leave(device, OK if is_known else INVALID)
