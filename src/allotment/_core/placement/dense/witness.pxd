"""When each byte was last freed; kept apart from the clocks of tiles, which are cut, copied and joined.

Only the checker uses it, and enables it at its first check: in every view, a free tile's clock must contain at least
the frees recorded here for its bytes. Bytes that were freed before are unknown and not checked.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.placement.dense.structures cimport Clock, DenseChunk

cdef void witness_free(DenseChunk* chunk, bytes_t begin, bytes_t end, const Clock* clock) noexcept nogil
