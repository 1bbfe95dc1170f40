"""The free index of one free list, one step at a time. A block is known by its address."""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport BIN_COUNT, Block, FreeList
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.placement.pytorch cimport free_index as index

LARGEST_BIN = BIN_COUNT * MIN_BLOCK


cdef object described(const Block* block):
    return None if block == NULL else (block.size, block.address)


cdef class Index:
    cdef FreeList free_list
    cdef dict blocks        # address -> place of its block in memory

    def __cinit__(self, *, bint with_bins):
        memset(&self.free_list, 0, sizeof(FreeList))
        self.blocks = {}
        if with_bins:
            self.free_list.bins = <Block**> malloc(BIN_COUNT * sizeof(Block*))
            if self.free_list.bins == NULL:
                raise MemoryError

    def __dealloc__(self):
        for place in self.blocks.values():
            free(<void*> <size_t> place)
        free(self.free_list.bins)

    cdef Block* block_at(self, address_t address) except NULL:
        return <Block*> <size_t> self.blocks[address]

    def insert(self, bytes_t size, address_t address):
        cdef Block* block = <Block*> calloc(1, sizeof(Block))
        if block == NULL:
            raise MemoryError
        block.size = size
        block.address = address
        block.mapped = True
        self.blocks[address] = <size_t> block
        index.index_insert(&self.free_list, block)

    def remove(self, address_t address):
        cdef Block* block = self.block_at(address)
        index.index_remove(&self.free_list, block)
        del self.blocks[address]
        free(block)

    def best_fit(self, bytes_t size):
        return described(index.index_best_fit(&self.free_list, size))

    def below(self, bytes_t size):
        return described(index.index_below(&self.free_list, size))

    def first(self):
        return described(index.index_first(&self.free_list))

    def largest(self):
        return described(index.index_largest(&self.free_list))

    def next(self, address_t address):
        return described(index.index_next(&self.free_list, self.block_at(address)))

    def prev(self, address_t address):
        return described(index.index_prev(&self.free_list, self.block_at(address)))

    def bits(self):
        """Return (bits of the words, bits of the summary): numbers of the bins and of the words marked as used."""
        bins = [place for place in range(BIN_COUNT) if self.free_list.words[place // 64] >> place % 64 & 1]
        return bins, [bit for bit in range(64) if self.free_list.summary >> bit & 1]


cdef class AddressTree:
    """Unmapped blocks: one tree, ordered only by address."""
    cdef Block* root
    cdef dict blocks

    def __cinit__(self):
        self.blocks = {}

    def __dealloc__(self):
        for place in self.blocks.values():
            free(<void*> <size_t> place)

    def insert(self, bytes_t size, address_t address):
        cdef Block* block = <Block*> calloc(1, sizeof(Block))
        if block == NULL:
            raise MemoryError
        block.size = size
        block.address = address
        self.blocks[address] = <size_t> block
        index.tree_insert(&self.root, block)

    def remove(self, address_t address):
        cdef Block* block = <Block*> <size_t> self.blocks.pop(address)
        index.tree_remove(&self.root, block)
        free(block)

    def forwards(self):
        cdef Block* at = index.tree_first(self.root) if self.root != NULL else NULL
        found = []
        while at != NULL:
            found.append(at.address)
            at = index.tree_next(at)
        return found

    def backwards(self):
        cdef Block* at = index.tree_last(self.root)
        found = []
        while at != NULL:
            found.append(at.address)
            at = index.tree_prev(at)
        return found

    def depth(self):
        return depth_of(self.root)


cdef int depth_of(const Block* root) noexcept:
    return 0 if root == NULL else 1 + max(depth_of(root.left), depth_of(root.right))
