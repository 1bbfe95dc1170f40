from enum import IntEnum

import numpy

from allotment.lab.replay.records cimport Call, CallKind, Layout, MomentBlock, Piece, PieceState

cdef Call[1] call
cdef Call[::1] call_view = call
cdef Piece[1] piece
cdef Piece[::1] piece_view = piece
cdef Layout[1] layout
cdef Layout[::1] layout_view = layout
cdef MomentBlock[1] moment_block
cdef MomentBlock[::1] moment_block_view = moment_block

CALL: np.dtype[np.void] = numpy.asarray(call_view).dtype
PIECE: np.dtype[np.void] = numpy.asarray(piece_view).dtype
LAYOUT: np.dtype[np.void] = numpy.asarray(layout_view).dtype
MOMENT_BLOCK: np.dtype[np.void] = numpy.asarray(moment_block_view).dtype
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
