"""Records of the history as rows of a history file: see `history_codes`."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.records.trace cimport TraceRecord

cdef void write_head(unsigned char* out, uint32_t kind, const unsigned char* content, size_t length,
                     size_t records) noexcept nogil
cdef size_t write_rows(const TraceRecord* records, size_t count, unsigned char* out) noexcept nogil
cdef uint32_t last_context(const TraceRecord* records, size_t count, uint32_t* last_name) noexcept nogil
