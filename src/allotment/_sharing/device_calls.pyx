"""The contract's operations that sharing needs, callable from Python. Each runs without the interpreter lock."""

from libc.stddef cimport size_t

from allotment._core.contract.raising cimport check_status, device_error, require
from allotment._core.contract.table cimport (
    INVALID, NOT_READY, OK, SHARE_DESCRIPTOR, SHARE_FABRIC, UNSUPPORTED, Device, DeviceTable, share_t, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, chunk_t, device_t, event_t, stream_t

cdef enum:
    HANDLE_MOST = 64

DESCRIPTOR: int = SHARE_DESCRIPTOR
FABRIC: int = SHARE_FABRIC


# --- what is exported --------------------------------------------------------------------------------------

def export_segment(Device device not None, address_t base) -> bytes:
    """Return what another process needs to open a plain segment: 4 bytes are a descriptor, which the device owns."""
    cdef DeviceTable* table = &device.table
    cdef unsigned char[HANDLE_MOST] handle
    cdef size_t length = 0
    cdef status_t status
    require(device, table.segment_export != NULL, "segment_export")
    with nogil:
        status = table.segment_export(table.self, base, handle, HANDLE_MOST, &length)
    check_status(device, status, "segment_export")
    return handle[:length]


def export_chunk(Device device not None, chunk_t chunk, bint by_descriptor=False) -> tuple[int, bytes]:
    """Return (way, handle) of a chunk: over the fabric if possible, else a descriptor, which the device owns."""
    cdef DeviceTable* table = &device.table
    cdef unsigned char[HANDLE_MOST] handle
    cdef size_t length = 0
    cdef status_t status = UNSUPPORTED
    cdef share_t kind = SHARE_FABRIC
    require(device, table.chunk_export != NULL, "chunk_export")
    with nogil:
        if not by_descriptor:
            status = table.chunk_export(table.self, chunk, kind, handle, HANDLE_MOST, &length)
        if status == UNSUPPORTED or status == INVALID:
            kind = SHARE_DESCRIPTOR
            status = table.chunk_export(table.self, chunk, kind, handle, HANDLE_MOST, &length)
    check_status(device, status, "chunk_export")
    return kind, handle[:length]


# --- what is imported --------------------------------------------------------------------------------------

def import_segment(Device device not None, bytes handle not None) -> int:
    """Map another process's segment; return its address here."""
    cdef DeviceTable* table = &device.table
    cdef const unsigned char* given = handle
    cdef size_t length = len(handle)
    cdef address_t base = 0
    cdef status_t status
    require(device, table.segment_import != NULL, "segment_import")
    with nogil:
        status = table.segment_import(table.self, given, length, &base)
    check_status(device, status, "segment_import")
    return base


def close_segment(Device device not None, address_t base) -> None:
    """Close another process's segment."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.segment_close(table.self, base)
    check_status(device, status, "segment_close")


def map_chunks(Device device not None, list pieces not None, list peers not None) -> int:
    """Map other processes' chunks, (way, size, handle) each, side by side in a range of just their size; return its
    address.

    The device itself gets access, and the devices of the indices `peers`. A chunk's handle is released at once: the
    chunk lives as long as it is mapped. On failure nothing is left.
    """
    cdef DeviceTable* table = &device.table
    cdef bytes_t total = sum([size for _, size, _ in pieces])
    cdef bytes_t done = 0
    cdef bytes_t size
    cdef address_t base = 0
    cdef device_t reaching
    cdef status_t status
    cdef str operation = "range_reserve"
    require(device, table.chunk_import != NULL and table.range_reserve != NULL, "chunk_import")
    with nogil:
        status = table.range_reserve(table.self, total, 0, &base)
    check_status(device, status, operation)
    for kind, size, handle in pieces:
        operation = map_one(device, base + done, kind, size, handle, &status)
        if status != OK:
            break
        done += size
    for reaching in [table.device, *peers]:
        if status != OK:
            break
        operation = "set_access"
        with nogil:
            status = table.set_access(table.self, base, total, reaching)
    if status == OK:
        return base
    error = device_error(device, status, operation)
    leave_range(device, base, done, total, [size for _, size, _ in pieces])
    raise error


def open_to_peer(Device device not None, address_t base, bytes_t size, device_t peer) -> None:
    """Give another device access to what `map_chunks` mapped."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.set_access(table.self, base, size, peer)
    check_status(device, status, "set_access")


cdef str map_one(Device device, address_t address, share_t kind, bytes_t size, bytes handle, status_t* status):
    """Return the last operation; `status` is what it returned."""
    cdef DeviceTable* table = &device.table
    cdef const unsigned char* given = handle
    cdef size_t length = len(handle)
    cdef chunk_t chunk = 0
    with nogil:
        status[0] = table.chunk_import(table.self, kind, given, length, size, &chunk)
    if status[0] != OK:
        return "chunk_import"
    with nogil:
        status[0] = table.map(table.self, address, size, chunk)
        table.chunk_release(table.self, chunk, size)
    return "map"


cdef status_t leave_range(Device device, address_t base, bytes_t mapped, bytes_t total, list sizes):
    """Unmap what is mapped, and release the addresses; return the first failure."""
    cdef DeviceTable* table = &device.table
    cdef bytes_t done = 0
    cdef bytes_t size
    cdef status_t status = OK
    cdef status_t last = OK
    for size in sizes:
        if done >= mapped:
            break
        with nogil:
            last = table.unmap(table.self, base + done, size)
        status = status if status != OK else last
        done += size
    with nogil:
        last = table.range_release(table.self, base, total)
    return status if status != OK else last


def unmap_chunks(Device device not None, address_t base, list sizes not None) -> None:
    """Undo `map_chunks`."""
    cdef bytes_t total = sum(sizes)
    check_status(device, leave_range(device, base, total, total, sizes), "unmap")


# --- order -------------------------------------------------------------------------------------------------

def has_events(Device device not None) -> bool:
    """Whether streams run asynchronously, so that there is something to wait for."""
    return device.table.event_record != NULL


def has_shared_events(Device device not None) -> bool:
    """Whether another process can wait for the device's events."""
    return device.table.event_export != NULL and device.table.event_import != NULL


def is_idle(Device device not None, stream_t stream) -> bool:
    """Whether a stream has no work. False for a destroyed stream, which may still have some."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    if table.stream_query == NULL:
        return True
    with nogil:
        status = table.stream_query(table.self, stream)
    if status == NOT_READY or status == INVALID:
        return False
    check_status(device, status, "stream_query")
    return True


def is_captured(Device device not None, stream_t stream) -> bool:
    """Whether work given to a stream is recorded instead of run."""
    cdef DeviceTable* table = &device.table
    cdef capture_t capture = 0
    cdef status_t status
    if table.capture_status == NULL:
        return False
    with nogil:
        status = table.capture_status(table.self, stream, &capture)
    if status == INVALID:
        return False
    check_status(device, status, "capture_status")
    return capture != 0


def create_event(Device device not None, bint shared=False) -> int:
    """Create an event, which another process can wait for if it is `shared`."""
    cdef DeviceTable* table = &device.table
    cdef event_t event = 0
    cdef status_t status
    with nogil:
        status = (table.shared_event_create(table.self, &event) if shared
                  else table.event_create(table.self, &event))
    check_status(device, status, "shared_event_create" if shared else "event_create")
    return event


def record_event(Device device not None, event_t event, stream_t stream) -> None:
    """Record the stream's work so far in an event."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.event_record(table.self, event, stream)
    check_status(device, status, "event_record")


def is_event_done(Device device not None, event_t event) -> bool:
    """Whether that work is done."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.event_query(table.self, event)
    if status == NOT_READY:
        return False
    check_status(device, status, "event_query")
    return True


def wait_for_event(Device device not None, event_t event) -> None:
    """Wait for that work."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.event_synchronize(table.self, event)
    check_status(device, status, "event_synchronize")


def destroy_event(Device device not None, event_t event) -> None:
    """Destroy an event."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.event_destroy(table.self, event)
    check_status(device, status, "event_destroy")


def export_event(Device device not None, event_t event) -> bytes:
    """Return what another process needs to wait for an event."""
    cdef DeviceTable* table = &device.table
    cdef unsigned char[HANDLE_MOST] handle
    cdef size_t length = 0
    cdef status_t status
    with nogil:
        status = table.event_export(table.self, event, handle, HANDLE_MOST, &length)
    check_status(device, status, "event_export")
    return handle[:length]


def let_stream_wait_here(Device device not None, stream_t stream, event_t event) -> None:
    """Make a stream wait, on the device, for an event of this process."""
    cdef DeviceTable* table = &device.table
    cdef status_t status
    with nogil:
        status = table.stream_wait(table.self, stream, event)
    check_status(device, status, "stream_wait")


def let_stream_wait(Device device not None, stream_t stream, bytes handle not None) -> None:
    """Make a stream wait, on the device, for another process's event."""
    cdef DeviceTable* table = &device.table
    cdef const unsigned char* given = handle
    cdef size_t length = len(handle)
    cdef event_t event = 0
    cdef status_t status
    with nogil:
        status = table.event_import(table.self, given, length, &event)
    check_status(device, status, "event_import")
    with nogil:
        status = table.stream_wait(table.self, stream, event)
        table.event_destroy(table.self, event)
    check_status(device, status, "stream_wait")
