"""The free tiles of an arena, in the orders in which they are searched, and its gaps. This file makes no decisions.

    by place          the first that is large enough, from any place on
    by size           large ones of one exact size, lowest place first
    by neighbour      those next to a large tile in use of one exact size, lowest place first

One treap implementation serves all three orders, and the gaps, by place. A tile that is cut or grown keeps its rank
among its neighbours, so its keys change in place; only in the second order can its size move it. That order therefore
omits the tile touched last (`loose`) until the order is searched or another tile is touched: a block that comes and
goes costs no insertion.

The second and the third order are optional aids. If host memory is short, a tile may be missing from them.

Cost: O(log n) for n free tiles.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.placement.dense.structures cimport Arena, Node, Tile

cdef enum:
    LARGE_TILE = 4194304        # from this size on, tiles of equal size are kept together

cdef void node_insert(Node** root, Node* node) noexcept nogil
cdef void node_remove(Node** root, Node* node) noexcept nogil
cdef Node* node_from(Node* root, uint64_t rank, uint64_t place) noexcept nogil
cdef Node* node_up_to(Node* root, uint64_t rank, uint64_t place) noexcept nogil
cdef Node* node_next(Node* node) noexcept nogil

cdef Node* next_fit(Node* node, bytes_t size) noexcept nogil
cdef void tile_enter(Arena* arena, Tile* tile) noexcept nogil
cdef void tile_leave(Arena* arena, Tile* tile) noexcept nogil
cdef void tile_changed(Arena* arena, Tile* tile) noexcept nogil
cdef Node* first_of_size(Arena* arena, bytes_t size) noexcept nogil
cdef Node* first_beside(Arena* arena, bytes_t size) noexcept nogil
cdef void gap_enter(Arena* arena, Tile* gap) noexcept nogil
cdef void gap_leave(Arena* arena, Tile* gap) noexcept nogil


cdef inline Node* first_fit(Node* root, bytes_t size) noexcept nogil:
    """Return the node of at least `size` at the lowest place, or NULL."""
    if root == NULL or root.longest < size:
        return NULL
    while True:
        if root.low != NULL and root.low.longest >= size:
            root = root.low
        elif root.size >= size:
            return root
        else:
            root = root.high
