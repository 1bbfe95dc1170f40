from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport BIN_COUNT, Block, FreeList
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.placement.pytorch.free_index cimport comes_before, first_bin_from, is_binned, tree_first
from allotment._core.tools.bits cimport highest_bit


cdef inline uint64_t priority(const Block* block) noexcept nogil:
    cdef uint64_t mixed = block.address * <uint64_t> 0x9E3779B97F4A7C15ULL
    return (mixed ^ (mixed >> 32)) * <uint64_t> 0xD6E8FEB86659FD93ULL


cdef inline void replace_child(Block** root, Block* parent, Block* old, Block* new) noexcept nogil:
    if parent == NULL:
        root[0] = new
    elif parent.left == old:
        parent.left = new
    else:
        parent.right = new
    if new != NULL:
        new.parent = parent


cdef void rotate_up(Block** root, Block* block) noexcept nogil:
    """Exchange a node with its parent, keeping the order."""
    cdef Block* parent = block.parent
    cdef Block* moved
    replace_child(root, parent.parent, parent, block)
    if parent.left == block:
        moved = block.right
        block.right = parent
        parent.left = moved
    else:
        moved = block.left
        block.left = parent
        parent.right = moved
    if moved != NULL:
        moved.parent = parent
    parent.parent = block


cdef void tree_insert(Block** root, Block* block) noexcept nogil:
    """pre: all blocks of one tree are mapped, or none is"""
    cdef Block* at = root[0]
    cdef uint64_t mine
    block.parent = block.left = block.right = NULL
    if at == NULL:
        root[0] = block
        return
    while True:
        if comes_before(block, at):
            if at.left == NULL:
                at.left = block
                break
            at = at.left
        else:
            if at.right == NULL:
                at.right = block
                break
            at = at.right
    block.parent = at
    mine = priority(block)
    while block.parent != NULL and priority(block.parent) < mine:
        rotate_up(root, block)


cdef void tree_remove(Block** root, Block* block) noexcept nogil:
    while block.left != NULL and block.right != NULL:
        rotate_up(root, block.left if priority(block.left) > priority(block.right) else block.right)
    replace_child(root, block.parent, block, block.left if block.left != NULL else block.right)


cdef Block* tree_at_least(Block* root, bytes_t size) noexcept nogil:
    """Return the first block in order of at least `size`."""
    cdef Block* best = NULL
    while root != NULL:
        if root.size >= size:
            best = root
            root = root.left
        else:
            root = root.right
    return best


cdef Block* tree_below(Block* root, bytes_t size) noexcept nogil:
    """Return the last block in order of less than `size`."""
    cdef Block* best = NULL
    while root != NULL:
        if root.size < size:
            best = root
            root = root.right
        else:
            root = root.left
    return best


cdef Block* tree_last(Block* root) noexcept nogil:
    if root != NULL:
        while root.right != NULL:
            root = root.right
    return root


cdef Block* tree_next(Block* block) noexcept nogil:
    if block.right != NULL:
        return tree_first(block.right)
    while block.parent != NULL and block.parent.right == block:
        block = block.parent
    return block.parent


cdef Block* tree_prev(Block* block) noexcept nogil:
    if block.left != NULL:
        return tree_last(block.left)
    while block.parent != NULL and block.parent.left == block:
        block = block.parent
    return block.parent


cdef Block* index_next(FreeList* free_list, Block* block) noexcept nogil:
    """Return the next block of the free list in order of (size, order, address)."""
    cdef Block* following = tree_next(block)
    cdef uint64_t bin
    if following != NULL or not is_binned(free_list, block.size):
        return following
    bin = block.size // MIN_BLOCK
    if bin < BIN_COUNT:
        following = first_bin_from(free_list, bin)
        if following != NULL:
            return following
    return tree_first(free_list.tree) if free_list.tree != NULL else NULL


cdef Block* last_bin_before(const FreeList* free_list, uint64_t bin) noexcept nogil:
    """Return the highest block of the last nonempty bin before `bin`."""
    cdef uint64_t word = bin >> 6
    cdef uint64_t bits = 0
    if bin & 63:
        bits = free_list.words[word] & (((<uint64_t> 1) << (bin & 63)) - 1)
    if bits == 0:
        bits = free_list.summary if word == 64 else free_list.summary & (((<uint64_t> 1) << word) - 1)
        if bits == 0:
            return NULL
        word = highest_bit(bits)
        bits = free_list.words[word]
    return tree_last(free_list.bins[(word << 6) | <uint64_t> highest_bit(bits)])


cdef Block* index_prev(FreeList* free_list, Block* block) noexcept nogil:
    cdef Block* previous = tree_prev(block)
    if previous != NULL or free_list.bins == NULL:
        return previous
    if is_binned(free_list, block.size):
        return last_bin_before(free_list, block.size // MIN_BLOCK - 1)
    return last_bin_before(free_list, BIN_COUNT)


cdef Block* index_below(FreeList* free_list, bytes_t size) noexcept nogil:
    """Return the last block in order that is smaller than `size`."""
    cdef Block* found = tree_below(free_list.tree, size)
    if found != NULL or free_list.bins == NULL:
        return found
    return last_bin_before(free_list, min(<uint64_t> BIN_COUNT, size // MIN_BLOCK - 1))


cdef Block* index_largest(FreeList* free_list) noexcept nogil:
    cdef Block* found = tree_last(free_list.tree)
    if found != NULL or free_list.bins == NULL:
        return found
    return last_bin_before(free_list, BIN_COUNT)
