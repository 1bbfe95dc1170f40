from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy, memset

from allotment._core.records.tenants cimport stack_of, tenant_of
from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.history_codes cimport (
    HAS_MORE, SAME_CONTEXT, SAME_PLACE, SAME_POOL, checksum, put_number, put_signed)
from allotment._core.tools.pointer_map cimport PointerMap, map_get


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


cdef inline uint32_t in_file(const PointerMap* told, uint32_t number) noexcept nogil:
    return <uint32_t> <size_t> map_get(told, number)


cdef size_t write_rows(const TraceRecord* records, size_t count, const PointerMap* stacks, const PointerMap* names,
                       unsigned char* out) noexcept nogil:
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
            out = put_number(out, tenant_of(record.stack) | in_file(stacks, stack_of(record.stack)))
        if has_more(record):
            flags[0] |= HAS_MORE
            out[0] = record.exact_address != 0
            out = put_number(out + 1, in_file(names, record.compile_context))
            out = put_number(out, in_file(names, record.metadata))
        last = record
    return out - begin


cdef bint is_new(const PointerMap* told, uint32_t number) noexcept nogil:
    return number != 0 and map_get(told, number) == NULL


cdef size_t next_untold(const TraceRecord* records, size_t count, size_t first, const PointerMap* stacks,
                        const PointerMap* names) noexcept nogil:
    """Return the index of the next record, from `first` on, with a stack or name that the file lacks; else `count`."""
    cdef const TraceRecord* record
    cdef size_t i
    for i in range(first, count):
        record = &records[i]
        if (is_new(stacks, stack_of(record.stack)) or is_new(names, record.compile_context)
                or is_new(names, record.metadata)):
            return i
    return count
