from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy, memset

from allotment._core.records.tenants cimport stack_of
from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.history_codes cimport (
    HAS_MORE, SAME_CONTEXT, SAME_PLACE, SAME_POOL, checksum, put_number, put_signed)


cdef void write_head(unsigned char* out, uint32_t kind, const unsigned char* content, size_t length,
                     size_t records) noexcept nogil:
    cdef uint32_t head[4]
    head[0] = kind
    head[1] = <uint32_t> length
    head[2] = <uint32_t> records
    head[3] = checksum(content, length)
    memcpy(out, head, sizeof(head))


cdef inline bint has_more(const TraceRecord* record) noexcept nogil:
    return (record.exact_address | record.compile_context | record.metadata) != 0


cdef size_t write_rows(const TraceRecord* records, size_t count, unsigned char* out) noexcept nogil:
    """Return the number of bytes written. pre: room for MOST_OF_ROW bytes per record"""
    cdef unsigned char* begin = out
    cdef unsigned char* flags
    cdef TraceRecord zeros
    cdef const TraceRecord* last = &zeros
    cdef const TraceRecord* record
    cdef bint same_pool
    cdef size_t i
    memset(&zeros, 0, sizeof(zeros))
    for i in range(count):
        record = &records[i]
        flags = out
        flags[0] = <unsigned char> record.action
        out = put_signed(out + 1, record.time_us - last.time_us)
        same_pool = (record.stream == last.stream and record.pool_first == last.pool_first
                     and record.pool_second == last.pool_second)
        if same_pool and record.address == last.address and record.size == last.size:
            flags[0] |= SAME_PLACE
        else:
            out = put_signed(out, <int64_t> (record.address - last.address))
            out = put_number(out, record.size)
            if same_pool:
                flags[0] |= SAME_POOL
            else:
                out = put_number(out, record.stream)
                out = put_number(out, record.pool_first)
                out = put_number(out, record.pool_second)
        if record.stack == last.stack:
            flags[0] |= SAME_CONTEXT
        else:
            out = put_number(out, record.stack)
        if has_more(record):
            flags[0] |= HAS_MORE
            out[0] = record.exact_address != 0
            out = put_number(out + 1, record.compile_context)
            out = put_number(out, record.metadata)
        last = record
    return out - begin


cdef uint32_t last_context(const TraceRecord* records, size_t count, uint32_t* last_name) noexcept nogil:
    """Return the highest stack number and, in `last_name`, the highest name number of these records."""
    cdef uint32_t last = 0
    cdef size_t i
    last_name[0] = 0
    for i in range(count):
        last = max(last, stack_of(records[i].stack))
        last_name[0] = max(last_name[0], records[i].compile_context, records[i].metadata)
    return last
