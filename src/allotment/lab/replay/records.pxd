"""The records that a replay's loop shares with NumPy. Python gets their dtypes from here, so each is declared once."""

from libc.stdint cimport int32_t, uint64_t

cdef enum CallKind:             # the kind of a call
    MALLOC
    FREE
    FREE_SHARED                 # FREE of a block that other streams use
    EMPTY_CACHE
    EMPTY_POOL
    RELEASE_POOL                # the last user of a private pool leaves
    POLL                        # frees complete; nothing else happens

cdef packed struct Call:
    uint64_t size
    uint64_t stream             # of a MALLOC; of a FREE_SHARED, which of the other streams it waits for
    int32_t block               # -1: a request that was recorded as out of memory
    int32_t pool                # number of the pool; 0 is the default one
    int32_t due                 # of a FREE_SHARED: the call that completes it
    int32_t kind                # a CallKind

cdef enum PieceState:           # the state of a part of a segment when the history began
    IN_USE
    IDLE
    HOLE                        # of an expandable segment: not mapped

cdef packed struct Piece:
    uint64_t size
    uint64_t requested
    int32_t block               # -1 for none
    int32_t kind                # a PieceState

cdef packed struct MomentBlock:     # a block as it is at one moment
    uint64_t address
    uint64_t size
    uint64_t requested          # 0 unless it is in use
    uint64_t stream
    uint64_t pool_first, pool_second
    uint64_t segment            # the start of the run of addresses that contains it
    uint64_t releasable         # bytes that could be released to the device: whole pages, or a whole plain segment
    int32_t state               # a BlockState
    int32_t small               # of the small half of its pool

cdef packed struct Layout:      # a segment that existed when the history began
    uint64_t address
    uint64_t size
    uint64_t stream
    int32_t pool
    int32_t small
    int32_t expandable
    int32_t pieces              # how many, in order, from behind those of the layout before
