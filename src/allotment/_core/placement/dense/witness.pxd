"""When each byte was last freed, kept apart from the clocks of tiles, which are cut, copied and joined.

For the checker alone, who has it kept from his first visit on: a free tile's clock must hold, in every view, at least
what is kept here of its bytes. Bytes that were freed before he came are not known, and not checked.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.placement.dense.structures cimport Clock, DenseChunk

cdef void witness_free(DenseChunk* chunk, bytes_t begin, bytes_t end, const Clock* clock) noexcept nogil
