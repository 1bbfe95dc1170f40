from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from allotment._core.contract.table cimport OK, SHARE_DESCRIPTOR, UNSUPPORTED, DeviceTable, status_t
from allotment._core.contract.types cimport address_t
from allotment._core.edge.sharing cimport SharedHandle
from allotment._core.mechanism.address_map cimport block_at
from allotment._core.mechanism.block cimport is_plain
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.model.model cimport FAILED_ADDRESS, Block, Engine, Failure, Range

cdef enum:
    PREFIX = 2
    HEADER = 24             # owner, page, number of pages
    KIND = 8                # behind them, in the third version: what kind of handle a page has
    SEGMENT_HANDLE = 64
    DESCRIPTOR = 4


cdef bint share_plain(Engine* engine, Block* block, SharedHandle* out, Failure* failure) noexcept nogil:
    cdef DeviceTable* table = engine.table
    cdef size_t length = 0
    cdef status_t status
    if table.segment_export == NULL:
        return device_failed(failure, UNSUPPORTED, b"segment_export")
    out.bytes = <unsigned char*> calloc(1, PREFIX + SEGMENT_HANDLE)
    if out.bytes == NULL:
        return host_memory_failed(failure)
    status = table.segment_export(table.self, block.range.base, out.bytes + PREFIX, SEGMENT_HANDLE, &length)
    if status != OK:
        return device_failed(failure, status, b"segment_export")
    out.bytes[1] = b'c'
    out.length = PREFIX + length
    out.offset = block.address - block.range.base
    return True


cdef bint share_pages(Engine* engine, Block* block, long pid, SharedHandle* out, Failure* failure) noexcept nogil:
    cdef DeviceTable* table = engine.table
    cdef Range* range_ = block.range
    cdef size_t first = (block.address - range_.base) // range_.page
    cdef size_t end = (block.address + block.size - range_.base + range_.page - 1) // range_.page
    cdef uint64_t header[4]
    cdef size_t header_size = HEADER
    cdef size_t page
    cdef size_t written = 0
    cdef status_t status
    if table.chunk_export == NULL:
        return device_failed(failure, UNSUPPORTED, b"chunk_export")
    if engine.rules.handle_version >= 3:
        header_size += KIND
    out.length = PREFIX + header_size + DESCRIPTOR * (end - first)
    out.bytes = <unsigned char*> calloc(1, out.length)
    if out.bytes == NULL:
        return host_memory_failed(failure)
    header[0] = <uint64_t> pid
    header[1] = range_.page
    header[2] = end - first
    header[3] = SHARE_DESCRIPTOR
    out.bytes[1] = b'e'
    memcpy(out.bytes + PREFIX, header, header_size)
    for page in range(first, end):
        status = table.chunk_export(
            table.self, range_.views[page].handle, SHARE_DESCRIPTOR,
            out.bytes + PREFIX + header_size + DESCRIPTOR * (page - first), DESCRIPTOR, &written)
        if status != OK:
            return device_failed(failure, status, b"chunk_export")
    out.offset = block.address - range_.base - first * range_.page
    return True


cdef bint share_block(Engine* engine, address_t address, long pid, SharedHandle* out, Failure* failure) noexcept nogil:
    """The caller frees out.bytes, also after a failure."""
    cdef Block* block = block_at(engine, address)
    out.bytes = NULL
    if block == NULL:
        failure.reason = FAILED_ADDRESS
        failure.address = address
        return False
    if block.shelf.rack.arena != NULL:
        return device_failed(failure, UNSUPPORTED, b"share")    # not yet from a placement with memory of its own
    if not (share_plain(engine, block, out, failure) if is_plain(block)
            else share_pages(engine, block, pid, out, failure)):
        return False
    out.bytes[0] = engine.rules.handle_version
    return True
