from enum import IntEnum

import numpy

from allotment.lab.replay.records cimport Call, CallKind, Layout, MomentBlock, Piece, PieceState

cdef Call call[1]
cdef Piece piece[1]
cdef Layout layout[1]
cdef MomentBlock moment_block[1]

CALL: np.dtype[np.void] = numpy.asarray(<Call[:1]> call).dtype
PIECE: np.dtype[np.void] = numpy.asarray(<Piece[:1]> piece).dtype
LAYOUT: np.dtype[np.void] = numpy.asarray(<Layout[:1]> layout).dtype
MOMENT_BLOCK: np.dtype[np.void] = numpy.asarray(<MomentBlock[:1]> moment_block).dtype
assert MOMENT_BLOCK.itemsize == sizeof(MomentBlock)
assert CALL.itemsize == sizeof(Call) and PIECE.itemsize == sizeof(Piece) and LAYOUT.itemsize == sizeof(Layout)


class Kind(IntEnum):
    """The kind of a call."""

    MALLOC = CallKind.MALLOC
    FREE = CallKind.FREE
    FREE_SHARED = CallKind.FREE_SHARED
    EMPTY_CACHE = CallKind.EMPTY_CACHE
    EMPTY_POOL = CallKind.EMPTY_POOL
    RELEASE_POOL = CallKind.RELEASE_POOL
    POLL = CallKind.POLL


class PieceKind(IntEnum):
    """The state of a part of a segment when the history began."""

    IN_USE = PieceState.IN_USE
    IDLE = PieceState.IDLE
    HOLE = PieceState.HOLE
