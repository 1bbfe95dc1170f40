"""The free blocks of one free list, in order of (size, order, address): best fit, insert, remove. No policy.

    small pool:   summary ─> words ─> bins[size / 512 - 1] ─> tree by (order, address)
                  one bit     one bit   exact sizes up to 2 MiB
    the rest:     one tree by (size, order, address)

The content of a bin whose bit is clear is undefined, so that creating a free list need not clear 32 KiB.

PyTorch's versions differ in which of several equal blocks comes first: the one at the lowest address, of the oldest
segment, or created first. Each block carries this as a number, `order`, assigned at its creation (see `block_new`): 0
for all blocks, the number of its segment, or its own number. So one comparison serves all versions.

The trees are treaps, linked through the blocks themselves. A node's priority is a hash of its address, so it needs no
field, and the shape depends only on the content. Unmapped blocks use the same tree, ordered only by address.

Cost: a bin with one block is O(1); k blocks of equal size, or k in the tree, are O(log k).
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport BIN_COUNT, Block, FreeList
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.tools.bits cimport highest_bit, lowest_bit

cdef void tree_insert(Block** root, Block* block) noexcept nogil
cdef void tree_remove(Block** root, Block* block) noexcept nogil
cdef Block* tree_at_least(Block* root, bytes_t size) noexcept nogil
cdef Block* tree_below(Block* root, bytes_t size) noexcept nogil
cdef Block* tree_next(Block* block) noexcept nogil
cdef Block* tree_prev(Block* block) noexcept nogil
cdef Block* tree_last(Block* root) noexcept nogil

cdef Block* index_next(FreeList* free_list, Block* block) noexcept nogil
cdef Block* index_prev(FreeList* free_list, Block* block) noexcept nogil
cdef Block* index_below(FreeList* free_list, bytes_t size) noexcept nogil
cdef Block* index_largest(FreeList* free_list) noexcept nogil


cdef inline bint comes_before(const Block* a, const Block* b) noexcept nogil:
    if a.mapped:
        if a.size != b.size:
            return a.size < b.size
        if a.order != b.order:
            return a.order < b.order
    return a.address < b.address


cdef inline Block* tree_first(Block* root) noexcept nogil:
    while root.left != NULL:
        root = root.left
    return root


cdef inline bint is_binned(const FreeList* free_list, bytes_t size) noexcept nogil:
    return free_list.bins != NULL and size <= BIN_COUNT * MIN_BLOCK


cdef inline uint64_t bin_from(const FreeList* free_list, uint64_t bin) noexcept nogil:
    """Return the first nonempty bin from `bin` on; BIN_COUNT if all are empty."""
    cdef uint64_t word = bin >> 6
    cdef uint64_t bits = free_list.words[word] & (~(<uint64_t> 0) << (bin & 63))
    if bits == 0:
        bits = free_list.summary & (~(<uint64_t> 1) << word)
        if bits == 0:
            return BIN_COUNT
        word = lowest_bit(bits)
        bits = free_list.words[word]
    return (word << 6) | <uint64_t> lowest_bit(bits)


cdef inline Block* first_bin_from(const FreeList* free_list, uint64_t bin) noexcept nogil:
    """Return the lowest block of the first nonempty bin from `bin` on; NULL if all are empty."""
    cdef uint64_t found = bin_from(free_list, bin)
    return tree_first(free_list.bins[found]) if found != BIN_COUNT else NULL


cdef inline Block* index_first(FreeList* free_list) noexcept nogil:
    cdef Block* found = NULL
    if free_list.bins != NULL:
        found = first_bin_from(free_list, 0)
    if found == NULL and free_list.tree != NULL:
        found = tree_first(free_list.tree)
    return found


cdef inline Block* index_best_fit(FreeList* free_list, bytes_t size) noexcept nogil:
    """Return the smallest block of at least `size`, the first in order among equals. pre: a multiple of 512"""
    cdef Block* found
    if is_binned(free_list, size):
        found = first_bin_from(free_list, size // MIN_BLOCK - 1)
        if found != NULL:
            return found
    if free_list.tree == NULL:
        return NULL
    return tree_at_least(free_list.tree, size)


cdef inline bint index_has_no_better(const FreeList* free_list, bytes_t size, const Block* block) noexcept nogil:
    """Whether a block that is not in the index is certainly the best fit; it loads no other block to decide that.

    pre: both sizes are multiples of 512, and the block is large enough
    """
    if free_list.bins == NULL:
        return free_list.tree == NULL
    return block.size <= BIN_COUNT * MIN_BLOCK and (
        bin_from(free_list, size // MIN_BLOCK - 1) > block.size // MIN_BLOCK - 1)


cdef inline void index_insert(FreeList* free_list, Block* block) noexcept nogil:
    cdef uint64_t bin, bit
    if not is_binned(free_list, block.size):
        tree_insert(&free_list.tree, block)
        return
    bin = block.size // MIN_BLOCK - 1
    bit = (<uint64_t> 1) << (bin & 63)
    if free_list.words[bin >> 6] & bit:
        tree_insert(&free_list.bins[bin], block)
        return
    block.parent = block.left = block.right = NULL
    free_list.bins[bin] = block
    free_list.words[bin >> 6] |= bit
    free_list.summary |= (<uint64_t> 1) << (bin >> 6)


cdef inline void index_remove(FreeList* free_list, Block* block) noexcept nogil:
    """pre: in the index, with the size it was inserted with"""
    cdef uint64_t bin
    if not is_binned(free_list, block.size):
        tree_remove(&free_list.tree, block)
        return
    bin = block.size // MIN_BLOCK - 1
    if free_list.bins[bin] == block and block.left == NULL and block.right == NULL:
        free_list.bins[bin] = NULL
    else:
        tree_remove(&free_list.bins[bin], block)
    if free_list.bins[bin] == NULL:
        free_list.words[bin >> 6] &= ~((<uint64_t> 1) << (bin & 63))
        if free_list.words[bin >> 6] == 0:
            free_list.summary &= ~((<uint64_t> 1) << (bin >> 6))
