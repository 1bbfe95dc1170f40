from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.placement.dense.structures cimport (
    TILE_USED, Arena, Node, Tile, place_of, region_of, tile_before, tile_behind)
from allotment._core.placement.dense.tile_index cimport LARGE_TILE, first_fit
from allotment._core.tools.slab cimport slab_give, slab_reserve, slab_take


# --- the treap ----------------------------------------------------------------------------------------------------

cdef inline bint comes_before(const Node* a, const Node* b) noexcept nogil:
    return a.rank < b.rank or (a.rank == b.rank and a.place < b.place)


cdef inline bint update(Node* node) noexcept nogil:
    """Recompute `longest`; return whether it changed."""
    cdef bytes_t longest = node.size
    if node.low != NULL and node.low.longest > longest:
        longest = node.low.longest
    if node.high != NULL and node.high.longest > longest:
        longest = node.high.longest
    if longest == node.longest:
        return False
    node.longest = longest
    return True


cdef inline void update_upwards(Node* node) noexcept nogil:
    while node != NULL and update(node):
        node = node.up


cdef inline void put_in_place_of(Node** root, Node* old, Node* new) noexcept nogil:
    """Make `new` the child that `old` was."""
    if old.up == NULL:
        root[0] = new
    elif old.up.low == old:
        old.up.low = new
    else:
        old.up.high = new
    if new != NULL:
        new.up = old.up


cdef inline void raise_child(Node** root, Node* node, Node* child) noexcept nogil:
    """Rotate: `child` takes the position of its parent."""
    put_in_place_of(root, node, child)
    if node.low == child:
        node.low = child.high
        if node.low != NULL:
            node.low.up = node
        child.high = node
    else:
        node.high = child.low
        if node.high != NULL:
            node.high.up = node
        child.low = node
    node.up = child
    update(node)
    update(child)


cdef void node_insert(Node** root, Node* node) noexcept nogil:
    """pre: key, size and weight are set"""
    cdef Node** link = root
    cdef Node* above = NULL
    while link[0] != NULL:
        above = link[0]
        link = &above.low if comes_before(node, above) else &above.high
    node.up = above
    node.low = node.high = NULL
    node.longest = node.size
    node.inside = True
    link[0] = node
    while node.up != NULL and node.up.weight < node.weight:
        raise_child(root, node.up, node)
    update_upwards(node.up)


cdef void node_remove(Node** root, Node* node) noexcept nogil:
    cdef Node* above
    while node.low != NULL and node.high != NULL:
        raise_child(root, node, node.low if node.low.weight > node.high.weight else node.high)
    put_in_place_of(root, node, node.low if node.low != NULL else node.high)
    above = node.up
    node.inside = False
    update_upwards(above)


cdef Node* node_from(Node* root, uint64_t rank, uint64_t place) noexcept nogil:
    """Return the first node whose key is not less, or NULL."""
    cdef Node* found = NULL
    while root != NULL:
        if root.rank < rank or (root.rank == rank and root.place < place):
            root = root.high
        else:
            found = root
            root = root.low
    return found


cdef Node* node_up_to(Node* root, uint64_t rank, uint64_t place) noexcept nogil:
    """Return the last node whose key is not greater, or NULL."""
    cdef Node* found = NULL
    while root != NULL:
        if root.rank > rank or (root.rank == rank and root.place > place):
            root = root.low
        else:
            found = root
            root = root.high
    return found


cdef Node* node_next(Node* node) noexcept nogil:
    if node.high != NULL:
        node = node.high
        while node.low != NULL:
            node = node.low
        return node
    while node.up != NULL and node.up.high == node:
        node = node.up
    return node.up


cdef Node* next_fit(Node* node, bytes_t size) noexcept nogil:
    """Return the next node after this one that is large enough, or NULL."""
    if node.high != NULL and node.high.longest >= size:
        return first_fit(node.high, size)
    while node.up != NULL:
        if node.up.low == node:
            node = node.up
            if node.size >= size:
                return node
            if node.high != NULL and node.high.longest >= size:
                return first_fit(node.high, size)
        else:
            node = node.up
    return NULL


# --- free tiles ---------------------------------------------------------------------------------------------------

cdef inline uint32_t draw(Arena* arena) noexcept nogil:
    cdef uint32_t x = arena.seed
    x ^= x << 13
    x ^= x >> 17
    x ^= x << 5
    arena.seed = x
    return x


cdef inline Node* aid_make(Arena* arena, Tile* tile) noexcept nogil:
    """Return a node for one of the two optional orders; NULL without host memory."""
    cdef Node* node
    if not slab_reserve(&arena.nodes, 1):
        arena.lacks_aids = True
        return NULL
    node = <Node*> slab_take(&arena.nodes)
    node.tile = tile
    node.size = 0
    node.weight = draw(arena)
    return node


cdef inline void aid_drop(Arena* arena, Node** root, Node** link) noexcept nogil:
    node_remove(root, link[0])
    slab_give(&arena.nodes, link[0])
    link[0] = NULL


cdef void sort_in(Arena* arena, Tile* tile) noexcept nogil:
    """Insert a large tile into the order by size."""
    tile.by_size = aid_make(arena, tile)
    if tile.by_size != NULL:
        tile.by_size.rank = tile.block.size
        tile.by_size.place = tile.by_place.place
        node_insert(&arena.sizes, tile.by_size)


cdef inline void insert_loose(Arena* arena) noexcept nogil:
    cdef Tile* tile = arena.loose
    if tile != NULL:
        arena.loose = NULL
        if tile.block.size >= LARGE_TILE:
            sort_in(arena, tile)


cdef inline void size_changed(Arena* arena, Tile* tile) noexcept nogil:
    if arena.loose == tile:
        return
    if tile.by_size != NULL:
        if tile.by_size.rank == tile.block.size:
            tile.by_size.place = tile.by_place.place
            return
        aid_drop(arena, &arena.sizes, &tile.by_size)
    elif tile.block.size < LARGE_TILE:
        return
    insert_loose(arena)
    arena.loose = tile


cdef inline void side_changed(Arena* arena, Tile* tile, int side, const Tile* neighbour) noexcept nogil:
    cdef bytes_t rank = 0
    cdef Node* node = tile.beside[side]
    if neighbour != NULL and neighbour.state == TILE_USED and neighbour.block.size >= LARGE_TILE:
        rank = neighbour.block.size
    if node != NULL:
        if node.rank == rank:
            return
        aid_drop(arena, &arena.neighbours, &tile.beside[side])
    if rank == 0:
        return
    node = aid_make(arena, tile)
    if node != NULL:
        node.rank = rank
        node.place = tile.by_place.place << 1 | <uint64_t> side
        tile.beside[side] = node
        node_insert(&arena.neighbours, node)


cdef inline void enter_by_place(Arena* arena, Node** root, Tile* tile) noexcept nogil:
    cdef Node* node = &tile.by_place
    node.rank = 0
    node.place = place_of(region_of(tile), tile.block.address)
    node.size = tile.block.size
    node.tile = tile
    node.weight = draw(arena)
    node_insert(root, node)


cdef void tile_enter(Arena* arena, Tile* tile) noexcept nogil:
    """Add a tile that has become free. pre: it and its neighbours are final"""
    tile.by_size = tile.beside[0] = tile.beside[1] = NULL
    enter_by_place(arena, &arena.free_tiles, tile)
    size_changed(arena, tile)
    side_changed(arena, tile, 0, tile_before(tile))
    side_changed(arena, tile, 1, tile_behind(tile))


cdef void tile_leave(Arena* arena, Tile* tile) noexcept nogil:
    """Remove a tile that is no longer free, or is about to become part of another."""
    node_remove(&arena.free_tiles, &tile.by_place)
    if arena.loose == tile:
        arena.loose = NULL
    if tile.by_size != NULL:
        aid_drop(arena, &arena.sizes, &tile.by_size)
    if tile.beside[0] != NULL:
        aid_drop(arena, &arena.neighbours, &tile.beside[0])
    if tile.beside[1] != NULL:
        aid_drop(arena, &arena.neighbours, &tile.beside[1])


cdef void tile_changed(Arena* arena, Tile* tile) noexcept nogil:
    """Update a free tile whose bounds or neighbours changed; its rank among the free tiles is the same."""
    cdef Node* node = &tile.by_place
    node.place = place_of(region_of(tile), tile.block.address)
    if node.size != tile.block.size:
        node.size = tile.block.size
        update_upwards(node)
        size_changed(arena, tile)
    elif tile.by_size != NULL:
        tile.by_size.place = node.place
    # Both keys change before either node moves, because they order the trees.
    if tile.beside[0] != NULL:
        tile.beside[0].place = node.place << 1
    if tile.beside[1] != NULL:
        tile.beside[1].place = node.place << 1 | 1
    side_changed(arena, tile, 0, tile_before(tile))
    side_changed(arena, tile, 1, tile_behind(tile))


cdef Node* first_of_size(Arena* arena, bytes_t size) noexcept nogil:
    """Return the first free tile of exactly this size; the next ones follow by node_next. pre: a large size"""
    insert_loose(arena)
    return node_from(arena.sizes, size, 0)


cdef Node* first_beside(Arena* arena, bytes_t size) noexcept nogil:
    """Return the first free tile next to a used tile of exactly this size; the lowest bit of its place is the side."""
    return node_from(arena.neighbours, size, 0)


cdef void gap_enter(Arena* arena, Tile* gap) noexcept nogil:
    enter_by_place(arena, &arena.gaps, gap)


cdef void gap_leave(Arena* arena, Tile* gap) noexcept nogil:
    node_remove(&arena.gaps, &gap.by_place)
