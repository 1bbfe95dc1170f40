"""The format of a history file, for writing and for reading.
A file begins with `MAGIC` and a version. Frames follow, each with a header of sixteen bytes:

    | kind, 4 bytes | length of the content, 4 | records in it, 4 | checksum of the content, 4 | content ... |

Numbers are little-endian. The first frame holds a snapshot, without a history, of the moment at which the recording
began. The other frames hold what happened since:

    SNAPSHOT    a pickle, as `dump_snapshot` writes it
    STACKS      JSON: [number of the first, [[name, filename, line], ...], ...], before the first record that has one
    NAMES       JSON: [number of the first, text, ...], likewise
    RECORDS     rows, one after the other
    NOTES       JSON: [{...}, ...]: external annotations
    LOST        nothing; `records` says how many records are missing here

A row holds the difference from the row before it in the same frame; the first one differs from all zeros:

    flags and action        1 byte
    time                    signed difference in microseconds
    address, size           unless SAME_PLACE: signed difference, and the size
    stream, pool            unless SAME_PLACE or SAME_POOL: stream, and both numbers of the pool
    context                 unless SAME_CONTEXT
    exact_address, compile context, metadata    if HAS_MORE

Numbers in rows use seven bits of each byte, lowest first; the highest bit means that more bytes follow. Signed numbers
keep their sign in the lowest bit. A file that ends in the middle of a frame is valid up to its last complete row.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    VERSION = 1
    HEAD = 16                   # bytes of a frame's header
    MOST_OF_ROW = 96            # most bytes that a row takes
    LEAST_OF_ROW = 2

cdef enum FrameKind:
    SNAPSHOT = 1
    STACKS
    NAMES
    RECORDS
    NOTES
    LOST

cdef enum RowFlag:
    ACTION_BITS = 0x0F
    SAME_PLACE = 0x10
    SAME_POOL = 0x20
    SAME_CONTEXT = 0x40
    HAS_MORE = 0x80


cdef inline unsigned char* put_number(unsigned char* out, uint64_t value) noexcept nogil:
    while value >= 0x80:
        out[0] = <unsigned char> (value | 0x80)
        out += 1
        value >>= 7
    out[0] = <unsigned char> value
    return out + 1


cdef inline unsigned char* put_signed(unsigned char* out, int64_t value) noexcept nogil:
    return put_number(out, (<uint64_t> value << 1) ^ <uint64_t> (value >> 63))


cdef inline const unsigned char* get_number(const unsigned char* at, const unsigned char* end,
                                            uint64_t* value) noexcept nogil:
    """Return the position after the number; NULL if it does not end before `end`."""
    cdef int shift = 0
    value[0] = 0
    while at < end and shift < 64:
        value[0] |= <uint64_t> (at[0] & 0x7F) << shift
        if at[0] < 0x80:
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline const unsigned char* get_signed(const unsigned char* at, const unsigned char* end,
                                            int64_t* value) noexcept nogil:
    cdef uint64_t folded
    at = get_number(at, end, &folded)
    value[0] = <int64_t> (folded >> 1) ^ -(<int64_t> (folded & 1))
    return at


cdef inline uint32_t checksum(const unsigned char* content, size_t length) noexcept nogil:
    """Detects content that was not written or only partly written. It does not protect against forgery."""
    cdef uint64_t hash = length + 1
    cdef uint64_t word
    while length >= 8:
        memcpy(&word, content, 8)
        hash = (hash ^ word) * <uint64_t> 11400714819323198485ULL
        hash ^= hash >> 32
        content += 8
        length -= 8
    word = 0
    memcpy(&word, content, length)
    hash = (hash ^ word) * <uint64_t> 11400714819323198485ULL
    return <uint32_t> (hash >> 32)
