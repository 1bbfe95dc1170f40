"""A pickle of plain values, held as a tree of 8-byte cells. Nothing in it ever becomes an object by itself.

A *cell* is one value: four bits of tag, sixty bits of payload. Small integers, None and the booleans are their own
payload; for everything else the payload is an index:

    INT                     the value itself, signed, if it fits 60 bits
    WIDE_POSITIVE/NEGATIVE  into `wide`: 64 bits, unsigned or signed; longer integers are refused
    FLOAT                   into `wide`: the bits of a double
    STR, BYTES              into `strings` (equal texts have one index) or `blobs`
    LIST, TUPLE, DICT       into `nodes`

A *node* is one list, tuple or dict: a run of cells in `cells` (for a dict key, value, key, value, ...). The run is
written when the items arrive, which is once for nearly every node. If a list grows later, its run moves to the end with
twice the room, so `cells` never holds more than four times what the pickle wrote.

The pickle's memo maps its numbers to cells. So two references to one list share a node, and the tree is really a graph,
possibly with cycles: code that walks it must count visits or remember visited nodes.

Everything grows in flat arrays, so neither reading nor freeing recurses. Before any array grows, `memory` (their sizes,
with an estimate for each Python string) is compared with the limits.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

ctypedef uint64_t cell_t

cdef enum Tag:
    UNSET = 0           # a memo number that was never assigned
    NONE
    FALSE
    TRUE
    INT
    WIDE_POSITIVE
    WIDE_NEGATIVE
    FLOAT
    STR
    BYTES
    LIST
    TUPLE
    DICT

cdef struct Node:
    uint64_t offset     # of the opcode that began it, for error messages
    uint64_t first      # its run in `cells`
    uint32_t count      # cells in use
    uint32_t capacity   # cells reserved


cdef inline Tag tag_of(cell_t cell) noexcept nogil:
    return <Tag> (cell & 15)


cdef inline uint64_t payload_of(cell_t cell) noexcept nogil:
    return cell >> 4


cdef inline int64_t small_int_of(cell_t cell) noexcept nogil:
    return <int64_t> cell >> 4


cdef inline cell_t make_cell(Tag tag, uint64_t payload) noexcept nogil:
    return (payload << 4) | <uint64_t> tag


cdef struct Array:      # a flat array that grows; its user knows the item type
    char* data
    uint64_t count
    uint64_t capacity


@cython.final
cdef class PickleTree:
    cdef Array nodes, cells, wide
    cdef list strings                   # list[str], by index
    cdef list blobs                     # list[bytes], by index
    cdef readonly uint64_t bytes_read   # of the pickle, complete opcodes only
    cdef cell_t root

    cdef Array stack, marks, memo       # of the running pickle machine
    cdef uint64_t memo_given            # memo numbers in use; the next one that MEMOIZE assigns
    cdef dict string_index
    cdef list waiting                   # pieces that hold the beginning of an incomplete opcode
    cdef uint64_t waiting_bytes         # in all of them
    cdef uint64_t wanted                # bytes they need before parsing continues
    cdef bint stopped
    cdef uint64_t memory, max_memory, max_density, free_memory
    cdef dict plain_values              # node index -> (object, unfolded size), None while it is being built

    cdef inline Node* node_of(self, cell_t cell) noexcept nogil:
        """pre: `cell` is a LIST, TUPLE or DICT"""
        return <Node*> self.nodes.data + payload_of(cell)

    cdef inline cell_t* items_of(self, cell_t cell) noexcept nogil:
        """pre: `cell` is a LIST, TUPLE or DICT; valid until the next `feed`"""
        return <cell_t*> self.cells.data + self.node_of(cell).first

    cdef inline uint64_t wide_of(self, cell_t cell) noexcept nogil:
        """pre: `cell` is WIDE_POSITIVE, WIDE_NEGATIVE or FLOAT"""
        return (<uint64_t*> self.wide.data)[payload_of(cell)]

    cdef object plain(self, cell_t cell)
    cdef str describe(self, cell_t cell)

    cdef object _plain(self, cell_t cell, int depth, uint64_t* unfolded)
    cdef object _built(self, cell_t cell, int depth, uint64_t* unfolded)
    cdef object _key(self, cell_t cell, uint32_t i)

    cdef int _parse(self, const uint8_t* data, uint64_t length, uint64_t* used) except -1
    cdef int _room(self, Array* array, uint64_t item_size, uint64_t extra) except -1
    cdef int _charge(self, uint64_t more) except -1
    cdef inline int _push(self, cell_t cell) except -1:
        if self.stack.count == self.stack.capacity:
            self._room(&self.stack, sizeof(cell_t), 1)
        (<cell_t*> self.stack.data)[self.stack.count] = cell
        self.stack.count += 1
        return 0
    cdef int _push_signed(self, int64_t value) except -1
    cdef int _push_wide(self, Tag tag, uint64_t bits) except -1
    cdef int _push_long(self, const uint8_t* data, uint64_t length) except -1
    cdef int _push_text(self, const uint8_t* data, uint64_t length) except -1
    cdef int _push_bytes(self, const uint8_t* data, uint64_t length) except -1
    cdef int _push_node(self, Tag tag, uint64_t last) except -1
    cdef int _extend(self, uint64_t last, Tag tag) except -1
    cdef int _pop_mark(self, uint64_t* count) except -1
    cdef int _put(self, uint64_t number) except -1
    cdef int _get(self, uint64_t number) except -1
    cdef uint64_t _above_mark(self) noexcept


@cython.final
cdef class Value:
    """One value of a tree, for Python; only the tree creates it, so its cell is always valid."""

    cdef readonly PickleTree tree
    cdef cell_t cell
    cdef uint64_t offset                # of the value if it is a node, else of the node that contains it


cdef Value value_of(PickleTree tree, cell_t cell, uint64_t owner)
