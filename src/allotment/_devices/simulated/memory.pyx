from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from allotment._core.contract.table cimport (
    CAN_SHARE, CAN_VIRTUAL, CHUNK_CREATE, CHUNK_EXPORT, CHUNK_IMPORT, CHUNK_RELEASE, GRANULARITY, INVALID, MAP,
    MEMORY_INFO, NOT_READY, OK, OUT_OF_MEMORY, RANGE_RELEASE, RANGE_RESERVE, SEGMENT_ALLOCATE, SEGMENT_CLOSE,
    SEGMENT_EXPORT, SEGMENT_FREE, SEGMENT_IMPORT, SET_ACCESS, SHARE_DESCRIPTOR, SHARE_FABRIC, SHARE_IPC, UNMAP, share_t,
    status_t)
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, device_t, stream_t
from allotment._core.tools.pointer_map cimport (
    PointerMap, map_clear, map_get, map_init, map_pop, map_put, map_reserve)
from allotment._devices.simulated.simulation cimport (
    PAGE, SimChunk, enter, leave, new_handle, scripted, take_addresses)


cdef bint fill_memory(DeviceTable* table, Simulation* device) noexcept:
    table.capabilities |= CAN_VIRTUAL | CAN_SHARE
    table.segment_allocate = segment_allocate
    table.segment_free = segment_free
    table.range_reserve = range_reserve
    table.range_release = range_release
    table.chunk_create = chunk_create
    table.chunk_release = chunk_release
    table.map = map_chunk
    table.unmap = unmap_chunk
    table.set_access = set_access
    table.granularity = granularity
    table.segment_export = segment_export
    table.segment_import = segment_import
    table.segment_close = segment_close
    table.chunk_export = chunk_export
    table.chunk_import = chunk_import
    table.memory_info = memory_info
    return (map_init(&device.segments) and map_init(&device.ranges) and map_init(&device.chunks)
            and map_init(&device.mappings) and map_init(&device.imported))


cdef void clear_memory(Simulation* device) noexcept:
    cdef size_t i
    for i in range(device.chunks.mask + 1 if device.chunks.slots != NULL else 0):
        if device.chunks.slots[i].key != 0:
            free(device.chunks.slots[i].value)
    map_clear(&device.segments)
    map_clear(&device.ranges)
    map_clear(&device.chunks)
    map_clear(&device.mappings)
    map_clear(&device.imported)


cdef inline bytes_t size_at(PointerMap* map, address_t address) noexcept nogil:
    return <bytes_t> <size_t> map_get(map, address)


# --- plain memory ------------------------------------------------------------------------------------------

cdef status_t choose_address(Simulation* device, bint reserving, bytes_t size, stream_t stream,
                             address_t* address) noexcept nogil:
    cdef status_t status = NOT_READY
    if device.script != NULL:
        with gil:
            status = scripted(device, "reserve" if reserving else "segment", (size, stream), address)
    if status == NOT_READY:
        address[0] = take_addresses(device, size)
        status = OK
    return status


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_ALLOCATE)
    if status != OK:
        return status
    if size > device.capacity - device.used or not map_reserve(&device.segments):
        return leave(device, OUT_OF_MEMORY)
    status = choose_address(device, False, size, stream, address)
    if status == OK:
        device.used += size
        map_put(&device.segments, address[0], <void*> <size_t> size)
    return leave(device, status)


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_FREE)
    if status != OK:
        return status
    if size_at(&device.segments, address) != size:
        return leave(device, INVALID)
    map_pop(&device.segments, address)
    device.used -= size
    return leave(device, OK)


# --- virtual memory ----------------------------------------------------------------------------------------

cdef status_t range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, RANGE_RESERVE)
    if status != OK:
        return status
    if not map_reserve(&device.ranges):
        return leave(device, OUT_OF_MEMORY)
    status = choose_address(device, True, size, stream, address)
    if status == OK:
        map_put(&device.ranges, address[0], <void*> <size_t> size)
    return leave(device, status)


cdef status_t range_release(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, RANGE_RELEASE)
    cdef size_t i
    if status != OK:
        return status
    if size_at(&device.ranges, address) != size:
        return leave(device, INVALID)
    for i in range(device.mappings.mask + 1):
        if device.mappings.slots[i].key - address < size and device.mappings.slots[i].key != 0:
            return leave(device, INVALID)
    map_pop(&device.ranges, address)
    return leave(device, OK)


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CHUNK_CREATE)
    cdef uint64_t unused = 0
    cdef SimChunk* made
    if status != OK:
        return status
    if size % PAGE != 0:
        return leave(device, INVALID)
    if size > device.capacity - device.used or not map_reserve(&device.chunks):
        return leave(device, OUT_OF_MEMORY)
    if device.script != NULL:
        with gil:
            status = scripted(device, "create", (size,), &unused)
        if status != OK and status != NOT_READY:
            return leave(device, status)
    made = <SimChunk*> calloc(1, sizeof(SimChunk))
    if made == NULL:
        return leave(device, OUT_OF_MEMORY)
    made.size = size
    device.used += size
    chunk[0] = new_handle(device)
    map_put(&device.chunks, chunk[0], made)
    return leave(device, OK)


cdef void drop_if_unused(Simulation* device, SimChunk* chunk) noexcept nogil:
    if chunk.released and chunk.views == 0:
        if not chunk.imported:
            device.used -= chunk.size
        free(chunk)


cdef status_t chunk_release(void* self, chunk_t handle, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CHUNK_RELEASE)
    cdef SimChunk* chunk
    if status != OK:
        return status
    chunk = <SimChunk*> map_get(&device.chunks, handle)
    if chunk == NULL or chunk.size != size:
        return leave(device, INVALID)
    map_pop(&device.chunks, handle)
    chunk.released = True
    drop_if_unused(device, chunk)
    return leave(device, OK)


cdef bint is_reserved(Simulation* device, address_t address, bytes_t size) noexcept nogil:
    cdef size_t i
    cdef address_t base
    for i in range(device.ranges.mask + 1):
        base = device.ranges.slots[i].key
        if base != 0 and base <= address and address + size <= base + size_at(&device.ranges, base):
            return True
    return False


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t handle) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, MAP)
    cdef SimChunk* chunk
    if status != OK:
        return status
    chunk = <SimChunk*> map_get(&device.chunks, handle)
    if chunk == NULL or chunk.size != size or not is_reserved(device, address, size):
        return leave(device, INVALID)
    if map_get(&device.mappings, address) != NULL:
        return leave(device, INVALID)
    if not map_reserve(&device.mappings):
        return leave(device, OUT_OF_MEMORY)
    chunk.views += 1
    map_put(&device.mappings, address, chunk)
    return leave(device, OK)


cdef status_t unmap_chunk(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, UNMAP)
    cdef SimChunk* chunk
    if status != OK:
        return status
    chunk = <SimChunk*> map_get(&device.mappings, address)
    if chunk == NULL or chunk.size != size:
        return leave(device, INVALID)
    map_pop(&device.mappings, address)
    chunk.views -= 1
    drop_if_unused(device, chunk)
    return leave(device, OK)


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t peer) noexcept nogil:
    """Everything in [address, address + size) must be mapped."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SET_ACCESS)
    cdef address_t end = address + size
    cdef SimChunk* chunk
    if status != OK:
        return status
    while address < end:
        chunk = <SimChunk*> map_get(&device.mappings, address)
        if chunk == NULL:
            return leave(device, INVALID)
        address += chunk.size
    return leave(device, OK if address == end else INVALID)


cdef status_t granularity(void* self, bytes_t* size) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, GRANULARITY)
    if status != OK:
        return status
    size[0] = PAGE
    return leave(device, OK)


# --- sharing, and the whole --------------------------------------------------------------------------------

cdef status_t segment_export(void* self, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil:
    """Handles have the driver's form, but hold only numbers: importing one returns its address."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_EXPORT)
    if status != OK:
        return status
    if size_at(&device.segments, base) == 0 or capacity < 64:
        return leave(device, INVALID)
    memset(handle, 0, 64)
    memcpy(handle, &base, sizeof(address_t))
    length[0] = 64
    return leave(device, OK)


cdef status_t chunk_export(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                           size_t* length) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CHUNK_EXPORT)
    if status != OK:
        return status
    if map_get(&device.chunks, chunk) == NULL or kind == SHARE_IPC or capacity < length_of(kind):
        return leave(device, INVALID)
    memset(handle, 0, length_of(kind))
    memcpy(handle, &chunk, 4)
    length[0] = length_of(kind)
    return leave(device, OK)


cdef inline size_t length_of(share_t kind) noexcept nogil:
    # The 4 bytes that stand for a descriptor are no real one: other processes can import only handles of 64 bytes.
    return 4 if kind == SHARE_DESCRIPTOR else 64


cdef status_t segment_import(void* self, const unsigned char* handle, size_t length, address_t* base) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_IMPORT)
    cdef address_t found = 0
    if status != OK:
        return status
    if length != 64:
        return leave(device, INVALID)
    memcpy(&found, handle, sizeof(address_t))
    if found == 0 or map_get(&device.imported, found) != NULL:
        return leave(device, INVALID)
    if not map_reserve(&device.imported):
        return leave(device, OUT_OF_MEMORY)
    map_put(&device.imported, found, self)
    base[0] = found
    return leave(device, OK)


cdef status_t segment_close(void* self, address_t base) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, SEGMENT_CLOSE)
    if status != OK:
        return status
    return leave(device, OK if base != 0 and map_pop(&device.imported, base) != NULL else INVALID)


cdef status_t chunk_import(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                           chunk_t* chunk) noexcept nogil:
    """Import another process's chunk: it takes none of this device's capacity."""
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, CHUNK_IMPORT)
    cdef SimChunk* made
    if status != OK:
        return status
    if kind != SHARE_FABRIC or length != 64 or size % PAGE != 0:
        return leave(device, INVALID)
    made = <SimChunk*> calloc(1, sizeof(SimChunk)) if map_reserve(&device.chunks) else NULL
    if made == NULL:
        return leave(device, OUT_OF_MEMORY)
    made.size = size
    made.imported = True
    chunk[0] = new_handle(device)
    map_put(&device.chunks, chunk[0], made)
    return leave(device, OK)


cdef status_t memory_info(void* self, bytes_t* free_bytes, bytes_t* total) noexcept nogil:
    cdef Simulation* device = <Simulation*> self
    cdef status_t status = enter(device, MEMORY_INFO)
    cdef uint64_t said = 0
    if status != OK:
        return status
    total[0] = device.capacity
    free_bytes[0] = device.capacity - device.used
    if device.script != NULL:
        with gil:
            if scripted(device, "free_memory", (), &said) == OK:
                free_bytes[0] = said
    return leave(device, OK)
