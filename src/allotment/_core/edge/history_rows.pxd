"""Records of the history as rows of a history file: see `history_codes`.

A process keeps the stacks and names of all its recordings. A file has its own numbers for those that its records use:
`stacks` and `names` map the process's numbers to the file's, both from 1 on.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.records.trace cimport TraceRecord
from allotment._core.tools.pointer_map cimport PointerMap

cdef void write_head(unsigned char* out, uint32_t kind, const unsigned char* content, size_t length,
                     size_t records) noexcept nogil
cdef bint is_new(const PointerMap* told, uint32_t number) noexcept nogil
cdef size_t next_untold(const TraceRecord* records, size_t count, size_t first, const PointerMap* stacks,
                        const PointerMap* names) noexcept nogil
cdef size_t write_rows(const TraceRecord* records, size_t count, const PointerMap* stacks, const PointerMap* names,
                       unsigned char* out) noexcept nogil
