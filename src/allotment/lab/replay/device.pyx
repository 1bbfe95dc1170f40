from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove, memset, strlen

from allotment._core.contract.table cimport (
    CAN_EVENTS, CAN_VIRTUAL, IS_RECORDED, NOT_READY, OK, OUT_OF_MEMORY, Device, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, device_t, event_t, stream_t
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.records.trace cimport ACTION_OOM, ACTION_SEGMENT_ALLOC, ACTION_SEGMENT_MAP
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.weak_references cimport clear_weak_references_first
from allotment.lab.replay.device cimport (
    CALL_ACCESS, CALL_CREATE, CALL_FREE, CALL_MALLOC, CALL_MAP, CALL_RECORD, CALL_RELEASE, CALL_RESERVE, CALL_UNMAP,
    CALL_WAIT, Cost, Place, ReplayState)
from allotment.lab.replay.tape cimport tape_next_is, tape_stop, tape_tells_of_refusal

from allotment.lab.replay.driver_costs import driver_costs

cdef enum:
    GRANULARITY = 2097152

# Above every address that a recording can contain, so that the two never meet.
cdef address_t OWN_SEGMENTS = <address_t> 1 << 57
cdef address_t OWN_RANGES = <address_t> 1 << 58


# --- driver costs --------------------------------------------------------------------------------

cdef double cost_of(const Cost* cost, bytes_t size) noexcept nogil:
    cdef double mebibytes = <double> size / 1048576
    cdef double share
    cdef int i = 1
    if cost.count == 1 or mebibytes <= cost.mebibytes[0]:
        return cost.microseconds[0]
    while i < cost.count - 1 and mebibytes > cost.mebibytes[i]:
        i += 1
    share = (mebibytes - cost.mebibytes[i - 1]) / (cost.mebibytes[i] - cost.mebibytes[i - 1])
    return cost.microseconds[i - 1] + share * (cost.microseconds[i] - cost.microseconds[i - 1])


cdef inline void count(ReplayState* device, int kind, bytes_t size) noexcept nogil:
    device.calls[kind] += 1
    device.microseconds += cost_of(&device.costs[kind], size)


# --- memory --------------------------------------------------------------------------------------------------

cdef inline bint follows(const ReplayState* device) noexcept nogil:
    return device.tape != NULL and device.tape.following


cdef inline bint has_room(const ReplayState* device, bytes_t size) noexcept nogil:
    return size <= device.capacity and device.used <= device.capacity - size


cdef inline bytes_t whole_pages(bytes_t size) noexcept nogil:
    return (size + GRANULARITY - 1) // GRANULARITY * GRANULARITY


cdef size_t place_behind(const ReplayState* device, address_t address) noexcept nogil:
    """Return the first place that begins at or after an address."""
    cdef size_t low = 0
    cdef size_t high = device.place_count
    cdef size_t middle
    while low < high:
        middle = (low + high) // 2
        if device.places[middle].address < address:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint is_free(const ReplayState* device, address_t address, bytes_t size) noexcept nogil:
    cdef size_t i = place_behind(device, address)
    if i < device.place_count and device.places[i].address - address < size:
        return False
    return i == 0 or device.places[i - 1].address + device.places[i - 1].size <= address


cdef address_t suggested_address(ReplayState* device, bytes_t size) noexcept nogil:
    """Return the next suggested address for a segment of this size; 0 for none."""
    cdef const Place* place
    if device.suggestions_used == device.suggestion_count:
        return 0
    place = &device.suggestions[device.suggestions_used]
    if place.size != size or not is_free(device, place.address, size):
        return 0
    device.suggestions_used += 1
    return place.address


cdef address_t lowest_address(ReplayState* device, bytes_t size) noexcept nogil:
    cdef address_t address = device.packed_end
    cdef size_t i = place_behind(device, address)
    while i < device.place_count and device.places[i].address - address < size:
        address = device.places[i].address + whole_pages(device.places[i].size)
        if device.places[i].address == device.packed_end:
            device.packed_end = address
        i += 1
    return address


cdef address_t place_segment(ReplayState* device, bytes_t size) noexcept nogil:
    """Take a place for a segment; 0 without host memory to record it."""
    cdef address_t address
    cdef size_t i
    if not make_room(<void**> &device.places, &device.place_room, device.place_count, sizeof(Place)):
        return 0
    address = suggested_address(device, size)
    if address == 0:
        address = lowest_address(device, size)
    i = place_behind(device, address)
    memmove(&device.places[i + 1], &device.places[i], (device.place_count - i) * sizeof(Place))
    device.places[i].address = address
    device.places[i].size = size
    device.place_count += 1
    return address


cdef void unplace_segment(ReplayState* device, address_t address) noexcept nogil:
    cdef size_t i = place_behind(device, address)
    if i < device.place_count and device.places[i].address == address:
        device.place_count -= 1
        memmove(&device.places[i], &device.places[i + 1], (device.place_count - i) * sizeof(Place))
        if OWN_SEGMENTS <= address < device.packed_end:
            device.packed_end = address


cdef address_t place_range(ReplayState* device, bytes_t size) noexcept nogil:
    cdef address_t address = device.next_range
    device.next_range += whole_pages(size)
    return address


cdef inline bint is_recorded_next(const ReplayState* device, int action) noexcept nogil:
    """Whether the tape has a valid place for a segment or page."""
    cdef address_t address
    if not (follows(device) and tape_next_is(device.tape, action)):
        return False
    address = device.tape.address[device.tape.at]
    return 0 < address < OWN_SEGMENTS and address % MIN_BLOCK == 0


cdef inline address_t take_placed(ReplayState* device) noexcept nogil:
    cdef address_t address = device.placed
    device.placed = 0
    return address


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    if device.placed != 0:
        address[0] = take_placed(device)
    elif is_recorded_next(device, ACTION_SEGMENT_ALLOC):
        address[0] = device.tape.address[device.tape.at]
    elif follows(device) and tape_tells_of_refusal(device.tape):
        return OUT_OF_MEMORY
    elif not has_room(device, size):
        return OUT_OF_MEMORY
    else:
        address[0] = place_segment(device, size)
        if address[0] == 0:
            return OUT_OF_MEMORY
        if follows(device):
            tape_stop(device.tape, ACTION_SEGMENT_ALLOC, address[0], size, stream)
    device.used += size
    count(device, CALL_MALLOC, size)
    return OK


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    count(device, CALL_FREE, size)
    device.used -= size
    unplace_segment(device, address)
    return OK


cdef status_t range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    """Reserve a range. A new range is backed from its first page on, so it begins at the page that is mapped next."""
    cdef ReplayState* device = <ReplayState*> self
    if device.placed != 0:
        address[0] = take_placed(device)
    elif is_recorded_next(device, ACTION_SEGMENT_MAP):
        address[0] = device.tape.address[device.tape.at]
    else:
        address[0] = place_range(device, size)
    count(device, CALL_RESERVE, size)
    return OK


cdef status_t range_release(void* self, address_t address, bytes_t size) noexcept nogil:
    return OK


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    if follows(device) and not tape_next_is(device.tape, ACTION_SEGMENT_MAP):
        if tape_tells_of_refusal(device.tape):
            return OUT_OF_MEMORY
        tape_stop(device.tape, ACTION_SEGMENT_MAP, 0, size, 0)
    if not has_room(device, size):
        return OUT_OF_MEMORY
    device.used += size
    count(device, CALL_CREATE, size)
    chunk[0] = device.calls[CALL_CREATE]
    return OK


cdef status_t chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    device.used -= size
    count(device, CALL_RELEASE, size)
    return OK


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    device.unset_views += 1
    count(device, CALL_MAP, size)
    return OK


cdef status_t unmap_chunk(void* self, address_t address, bytes_t size) noexcept nogil:
    count(<ReplayState*> self, CALL_UNMAP, size)
    return OK


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t other) noexcept nogil:
    """Count one call for a run of mappings, with the cost of one call for each of them."""
    cdef ReplayState* device = <ReplayState*> self
    device.calls[CALL_ACCESS] += 1
    device.microseconds += max(device.unset_views, 1) * cost_of(&device.costs[CALL_ACCESS], size)
    device.unset_views = 0
    return OK


cdef status_t granularity(void* self, bytes_t* size) noexcept nogil:
    size[0] = GRANULARITY
    return OK


cdef status_t memory_info(void* self, bytes_t* free_bytes, bytes_t* total) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    total[0] = device.capacity
    free_bytes[0] = device.capacity - device.used
    if follows(device) and tape_next_is(device.tape, ACTION_OOM):
        free_bytes[0] = device.tape.address[device.tape.at]
    return OK


# --- events --------------------------------------------------------------------------------------------------

cdef status_t stream_synchronize(void* self, stream_t stream) noexcept nogil:
    return OK


cdef status_t event_create(void* self, event_t* event) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    if not make_room(<void**> &device.event_due, &device.event_room, device.event_count, sizeof(int64_t)):
        return OUT_OF_MEMORY
    event[0] = device.event_count
    device.event_count += 1
    return OK


cdef status_t event_destroy(void* self, event_t event) noexcept nogil:
    return OK


cdef status_t event_record(void* self, event_t event, stream_t stream) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    count(device, CALL_RECORD, 0)
    device.event_due[event] = device.due
    return OK


cdef status_t event_query(void* self, event_t event) noexcept nogil:
    cdef ReplayState* device = <ReplayState*> self
    return OK if device.event_due[event] <= device.now else NOT_READY


cdef status_t event_synchronize(void* self, event_t event) noexcept nogil:
    return OK


cdef status_t stream_wait(void* self, stream_t stream, event_t event) noexcept nogil:
    count(<ReplayState*> self, CALL_WAIT, 0)
    return OK


cdef status_t device_synchronize(void* self) noexcept nogil:
    return OK


cdef size_t describe(void* self, char* text, size_t capacity) noexcept nogil:
    cdef const char* words = b"the replay's device refused"
    cdef size_t length = min(strlen(words), capacity)
    memcpy(text, words, length)
    return length


cdef class ReplayDevice(Device):
    def __cinit__(self, capacity):
        cdef DeviceTable* table = &self.table
        cdef int kind, i
        memset(&self.state, 0, sizeof(ReplayState))
        for kind, points in enumerate(driver_costs().values()):
            self.state.costs[kind].count = len(points)
            for i, (mebibytes, microseconds) in enumerate(points):
                self.state.costs[kind].mebibytes[i] = mebibytes
                self.state.costs[kind].microseconds[i] = microseconds
        self.state.capacity = capacity
        self.state.packed_end = OWN_SEGMENTS
        self.state.next_range = OWN_RANGES
        self.family = "replay"
        self.name = f"replay:{capacity}"
        table.self = &self.state
        table.capabilities = CAN_VIRTUAL | CAN_EVENTS | IS_RECORDED
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
        table.stream_wait = stream_wait
        table.device_synchronize = device_synchronize
        table.stream_synchronize = stream_synchronize
        table.event_create = event_create
        table.event_destroy = event_destroy
        table.event_record = event_record
        table.event_query = event_query
        table.event_synchronize = event_synchronize
        table.memory_info = memory_info
        table.describe = describe

    def __dealloc__(self):
        free(self.state.event_due)
        free(self.state.places)


clear_weak_references_first(ReplayDevice)
