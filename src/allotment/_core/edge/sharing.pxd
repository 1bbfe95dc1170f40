"""What another process needs to open a block: the segment that contains the block, or its chunks.

    plain         | segment .............................. |         one piece, by its base
                       offset ->| block |

    in chunks     | chunk | chunk | chunk |                          the chunks that the block touches, in order;
                  offset ->| block    |                              whole ones, since part of one cannot be mapped

Pieces are device handles. Exporting them needs device calls, but no engine.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, stream_t
from allotment._core.model.model cimport Engine, Failure

cdef struct SharedPiece:
    chunk_t chunk               # 0: a plain segment
    bytes_t size

cdef struct SharedBlock:
    uint64_t generation
    bytes_t size                # as requested
    bytes_t offset              # of the block in the first piece
    address_t base              # of the first piece
    SharedPiece* pieces
    size_t piece_count, piece_room
    stream_t* streams           # streams whose work may use the block: its own, then the other users
    size_t stream_count, stream_room

# The caller clears `out`, which begins as zeros, even after a failure.
cdef bint share_block(Engine* engine, address_t address, bint keep, SharedBlock* out, Failure* failure) noexcept nogil
cdef bint lease_block(Engine* engine, address_t address, uint64_t generation, SharedBlock* out,
                      Failure* failure) noexcept nogil
cdef bint end_shares(Engine* engine, address_t address, uint64_t generation, uint64_t leases,
                     uint64_t keeps) noexcept nogil
cdef void shared_block_clear(SharedBlock* shared) noexcept nogil
