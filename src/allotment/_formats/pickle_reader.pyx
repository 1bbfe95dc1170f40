"""The pickle machine, reduced to what plain values need. See the .pxd for what it builds."""

import pickletools

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from allotment._core.tools.pickle_codes cimport (
    MARK, STOP, EMPTY_TUPLE, BINBYTES, SHORT_BINBYTES, BINFLOAT, BININT, BININT1, BININT2, NONE_, BINUNICODE,
    EMPTY_LIST, APPEND, APPENDS, BINGET, LONG_BINGET, BINPUT, LONG_BINPUT, SETITEM, TUPLE_, SETITEMS, EMPTY_DICT,
    PROTO, TUPLE1, TUPLE2, TUPLE3, NEWTRUE, NEWFALSE, LONG1, LONG4, SHORT_BINUNICODE, BINUNICODE8, BINBYTES8,
    MEMOIZE, FRAME)

from allotment.errors import FormatError

cdef enum:
    MAX_STRING = 1 << 24            # bytes of one text
    MAX_OPEN_MARKS = 256            # a snapshot opens nine
    MAX_DEPTH = 64                  # of a value that becomes Python objects
    MAX_UNFOLDED = 1 << 20          # parts of such a value; shared ones count each time they appear
    STRING_OVERHEAD = 160           # estimate for a str and its entries in a dict and a list
    FREE_ROWS = 1 << 20             # rows of a table that are allowed for a file of any size
    BYTES_PER_ROW = 8               # a trace entry takes forty bytes or more

cdef enum:
    REFUSED = 255
    LENGTH = 128            # flag: the argument is the length of a text, which follows

cdef uint8_t ARGUMENT_BYTES[256]   # argument bytes of each opcode, without its text


cdef int fill_argument_bytes() except -1:
    memset(ARGUMENT_BYTES, REFUSED, 256)
    for code in (
        MARK, STOP, EMPTY_TUPLE, NONE_, EMPTY_LIST, APPEND, APPENDS, SETITEM, TUPLE_, SETITEMS, EMPTY_DICT,
        TUPLE1, TUPLE2, TUPLE3, NEWTRUE, NEWFALSE, MEMOIZE,
    ):
        ARGUMENT_BYTES[<int> code] = 0
    for code in (BININT1, BINGET, BINPUT, PROTO):
        ARGUMENT_BYTES[<int> code] = 1
    for code in (SHORT_BINUNICODE, SHORT_BINBYTES, LONG1):
        ARGUMENT_BYTES[<int> code] = 1 | LENGTH
    ARGUMENT_BYTES[<int> BININT2] = 2
    for code in (BININT, LONG_BINGET, LONG_BINPUT):
        ARGUMENT_BYTES[<int> code] = 4
    for code in (BINUNICODE, BINBYTES, LONG4):
        ARGUMENT_BYTES[<int> code] = 4 | LENGTH
    for code in (BINFLOAT, FRAME):
        ARGUMENT_BYTES[<int> code] = 8
    for code in (BINUNICODE8, BINBYTES8):
        ARGUMENT_BYTES[<int> code] = 8 | LENGTH
    return 0


fill_argument_bytes()

OBJECT_MAKERS = frozenset({
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX",
    "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID",
})

KINDS = {
    <int> NONE: "none", <int> FALSE: "bool", <int> TRUE: "bool", <int> INT: "int", <int> WIDE_POSITIVE: "int",
    <int> WIDE_NEGATIVE: "int", <int> FLOAT: "float", <int> STR: "str", <int> BYTES: "bytes", <int> LIST: "list",
    <int> TUPLE: "tuple", <int> DICT: "dict",
}


cdef inline uint64_t unsigned_at(const uint8_t* data, int length) noexcept nogil:
    """A little-endian integer of up to 8 bytes."""
    cdef uint64_t value = 0
    cdef int i
    for i in range(length):
        value |= <uint64_t> data[i] << (8 * i)
    return value


def error_at(offset: int, text: str) -> FormatError:
    """Return a complaint about a pickle; all have this form."""
    return FormatError(f"at byte {offset} of the pickle: {text}")


cdef str opcode_name(int code):
    known = pickletools.code2op.get(chr(code))
    return f"byte 0x{code:02x}" if known is None else known.name


cdef str refusal(int code):
    name = opcode_name(code)
    if name in OBJECT_MAKERS:
        return f"{name} would load code or build an object, and a snapshot holds plain values only"
    return f"a snapshot cannot contain {name}"


cdef class PickleTree:
    """PickleTree(*, max_memory, max_density, free_memory)\n--\n
    Reads a pickle of plain values, protocols 2 to 5, from pieces of any size; constructs nothing from it.

    `max_memory` limits what the tree holds. So does `free_memory` plus `max_density` for each byte read, so that a
    small file stays small. Every complaint is a FormatError of one line that names the byte.
    """

    def __cinit__(self, *, uint64_t max_memory, uint64_t max_density, uint64_t free_memory):
        self.strings = []
        self.blobs = []
        self.string_index = {}
        self.waiting = []
        self.plain_values = {}
        self.max_memory = min(max_memory, <uint64_t> 1 << 62)  # sums of two such numbers do not overflow
        self.max_density = max_density
        self.free_memory = min(free_memory, self.max_memory)

    def __dealloc__(self):
        free(self.nodes.data)
        free(self.cells.data)
        free(self.wide.data)
        free(self.stack.data)
        free(self.marks.data)
        free(self.memo.data)

    def feed(self, bytes data not None) -> None:
        """Read the next piece. Raises FormatError at the first error; the tree cannot be used afterwards."""
        cdef uint64_t used = 0
        cdef const uint8_t[::1] view
        if not data:
            return
        if self.stopped:
            raise error_at(self.bytes_read, "the pickle ends here but the file goes on")
        if self.waiting:
            self.waiting.append(data)
            self.waiting_bytes += len(data)
            if self.waiting_bytes < self.wanted:
                return
            data = b"".join(self.waiting)
        view = data
        self._parse(&view[0], view.shape[0], &used)
        self.waiting_bytes = len(data) - used
        self.waiting = [data[used:]] if self.waiting_bytes else []

    def finish(self) -> Value:
        """Return the pickled value. Raises FormatError if the pickle is incomplete. Nothing may be fed afterwards."""
        if not self.stopped:
            if self.waiting:
                raise error_at(self.bytes_read, f"the file ends inside {opcode_name(self.waiting[0][0])}")
            if self.bytes_read == 0:
                raise error_at(0, "the file is empty")
            raise error_at(self.bytes_read, "the file ends before the pickle does")
        # The machine is done; from here on only the tree is needed.
        free(self.memo.data)
        memset(&self.memo, 0, sizeof(Array))
        free(self.stack.data)
        memset(&self.stack, 0, sizeof(Array))
        self.string_index = {}
        return value_of(self, self.root, 0)

    @property
    def row_budget(self) -> int:
        """Rows that a table in a file of this size can have.

        A pickle can refer to one dict any number of times, for two bytes each; honest ones write out every row.
        """
        return FREE_ROWS + self.bytes_read / BYTES_PER_ROW

    cdef int _parse(self, const uint8_t* data, uint64_t length, uint64_t* used) except -1:
        cdef uint64_t base = self.bytes_read
        cdef uint64_t position = 0
        cdef uint64_t left, fixed, has_text, text, count = 0
        cdef const uint8_t* argument
        cdef uint8_t opcode
        while position < length:
            self.bytes_read = base + position
            opcode = data[position]
            argument = data + position + 1
            left = length - position - 1
            fixed = ARGUMENT_BYTES[opcode]
            if self.bytes_read == 0 and opcode != PROTO:
                raise error_at(0, "no protocol header; a snapshot is a pickle of protocol 2 to 5")
            if fixed == REFUSED:
                raise error_at(self.bytes_read, refusal(opcode))
            has_text = fixed & LENGTH
            fixed &= ~<uint64_t> LENGTH
            if left < fixed:
                self.wanted = 1 + fixed
                break
            text = 0
            if has_text:
                text = unsigned_at(argument, <int> fixed)
                if text > MAX_STRING:
                    raise error_at(
                        self.bytes_read, f"{opcode_name(opcode)} of {text} bytes; at most {MAX_STRING} are read"
                    )
                if left < fixed + text:
                    self.wanted = 1 + fixed + text
                    break

            if opcode == BINGET:
                self._get(argument[0])
            elif opcode == LONG_BINGET:
                self._get(unsigned_at(argument, 4))
            elif opcode == MEMOIZE:
                self._put(self.memo_given)
            elif opcode == BINPUT:
                self._put(argument[0])
            elif opcode == LONG_BINPUT:
                self._put(unsigned_at(argument, 4))
            elif opcode == BININT1:
                self._push_signed(argument[0])
            elif opcode == BININT2:
                self._push_signed(<int64_t> unsigned_at(argument, 2))
            elif opcode == BININT:
                self._push_signed(<int32_t> <uint32_t> unsigned_at(argument, 4))
            elif opcode == LONG1 or opcode == LONG4:
                self._push_long(argument + fixed, text)
            elif opcode == BINFLOAT:
                self._push_wide(FLOAT, big_endian_bits(argument))
            elif opcode == NONE_:
                self._push(make_cell(NONE, 0))
            elif opcode == NEWTRUE:
                self._push(make_cell(TRUE, 0))
            elif opcode == NEWFALSE:
                self._push(make_cell(FALSE, 0))
            elif opcode in (SHORT_BINUNICODE, BINUNICODE, BINUNICODE8):
                self._push_text(argument + fixed, text)
            elif opcode in (SHORT_BINBYTES, BINBYTES, BINBYTES8):
                self._push_bytes(argument + fixed, text)
            elif opcode == MARK:
                if self.marks.count >= MAX_OPEN_MARKS:
                    raise error_at(self.bytes_read, f"nested deeper than {MAX_OPEN_MARKS} levels")
                self._room(&self.marks, sizeof(uint64_t), 1)
                (<uint64_t*> self.marks.data)[self.marks.count] = self.stack.count
                self.marks.count += 1
            elif opcode == EMPTY_DICT:
                self._push_node(DICT, 0)
            elif opcode == EMPTY_LIST:
                self._push_node(LIST, 0)
            elif opcode == EMPTY_TUPLE:
                self._push_node(TUPLE, 0)
            elif opcode == SETITEMS:
                self._pop_mark(&count)
                self._extend(count, DICT)
            elif opcode == SETITEM:
                self._extend(2, DICT)
            elif opcode == APPENDS:
                self._pop_mark(&count)
                self._extend(count, LIST)
            elif opcode == APPEND:
                self._extend(1, LIST)
            elif opcode == TUPLE_:
                self._pop_mark(&count)
                self._push_node(TUPLE, count)
            elif opcode == TUPLE1:
                self._push_node(TUPLE, 1)
            elif opcode == TUPLE2:
                self._push_node(TUPLE, 2)
            elif opcode == TUPLE3:
                self._push_node(TUPLE, 3)
            elif opcode == PROTO:
                if self.bytes_read != 0:
                    raise error_at(self.bytes_read, "a second protocol header")
                if argument[0] < 2 or argument[0] > 5:
                    raise error_at(0, f"pickle protocol {argument[0]}; a snapshot is a pickle of protocol 2 to 5")
            elif opcode == STOP:
                if self.marks.count or self.stack.count != 1:
                    raise error_at(self.bytes_read, "the pickle ends with its values unfinished")
                self.root = (<cell_t*> self.stack.data)[0]
                self.stopped = True
            # FRAME only tells how to read the file in pieces, which is done differently here.

            position += 1 + fixed + text
            if self.stopped:
                if position < length:
                    raise error_at(base + position, "the pickle ends here but the file goes on")
                break
        self.bytes_read = base + position
        used[0] = position
        return 0

    # Growing, within the limits.

    cdef int _charge(self, uint64_t more) except -1:
        cdef uint64_t allowed = self.max_memory
        if self.max_density == 0 or self.bytes_read < self.max_memory / self.max_density:
            allowed = min(allowed, self.free_memory + self.max_density * self.bytes_read)
        self.memory += more
        if self.memory > allowed:
            raise error_at(
                self.bytes_read,
                f"the values so far would take more than {allowed} bytes; "
                f"a higher {'max_memory' if allowed == self.max_memory else 'max_density'} would allow them",
            )
        return 0

    cdef int _room(self, Array* array, uint64_t item_size, uint64_t extra) except -1:
        """Make room for `extra` more items; the array may move."""
        cdef uint64_t capacity
        cdef char* data
        if array.capacity - array.count >= extra:
            return 0
        capacity = max(array.count + extra, array.capacity + array.capacity / 2, <uint64_t> 64)
        self._charge((capacity - array.capacity) * item_size)
        data = <char*> realloc(array.data, capacity * item_size)
        if data == NULL:
            raise MemoryError()
        array.data = data
        array.capacity = capacity
        return 0

    # The stack.

    cdef uint64_t _above_mark(self) noexcept:
        """Return the number of usable values: those since the last MARK."""
        cdef uint64_t bottom = 0
        if self.marks.count:
            bottom = (<uint64_t*> self.marks.data)[self.marks.count - 1]
        return self.stack.count - bottom

    cdef int _pop_mark(self, uint64_t* count) except -1:
        if self.marks.count == 0:
            raise error_at(self.bytes_read, "the end of a group that never began")
        count[0] = self._above_mark()
        self.marks.count -= 1
        return 0

    cdef int _push_signed(self, int64_t value) except -1:
        if -(<int64_t> 1 << 59) <= value < (<int64_t> 1 << 59):
            return self._push(make_cell(INT, <uint64_t> value))
        return self._push_wide(WIDE_POSITIVE if value > 0 else WIDE_NEGATIVE, <uint64_t> value)

    cdef int _push_wide(self, Tag tag, uint64_t bits) except -1:
        self._room(&self.wide, sizeof(uint64_t), 1)
        (<uint64_t*> self.wide.data)[self.wide.count] = bits
        self._push(make_cell(tag, self.wide.count))
        self.wide.count += 1
        return 0

    cdef int _push_long(self, const uint8_t* data, uint64_t length) except -1:
        """Push a little-endian integer in two's complement."""
        cdef uint64_t bits
        if length == 9 and data[8] == 0 and data[7] >= 0x80:
            return self._push_wide(WIDE_POSITIVE, unsigned_at(data, 8))
        if length > 8:
            raise error_at(self.bytes_read, "an integer that does not fit 64 bits")
        bits = unsigned_at(data, <int> length)
        if 0 < length < 8 and data[length - 1] >= 0x80:
            bits |= ~<uint64_t> 0 << (8 * length)
        return self._push_signed(<int64_t> bits)

    cdef int _push_text(self, const uint8_t* data, uint64_t length) except -1:
        cdef str text
        try:
            text = PyUnicode_DecodeUTF8(<const char*> data, length, "surrogatepass")
        except UnicodeDecodeError:
            raise error_at(self.bytes_read, "a text that is not UTF-8") from None
        index = self.string_index.get(text)
        if index is None:
            # One wide character makes the whole str wide: at worst four bytes per character.
            self._charge(STRING_OVERHEAD + (length if text.isascii() else 4 * length))
            index = len(self.strings)
            self.string_index[text] = index
            self.strings.append(text)
        return self._push(make_cell(STR, <uint64_t> index))

    cdef int _push_bytes(self, const uint8_t* data, uint64_t length) except -1:
        self._charge(STRING_OVERHEAD + length)
        self.blobs.append(PyBytes_FromStringAndSize(<const char*> data, length))
        return self._push(make_cell(BYTES, <uint64_t> len(self.blobs) - 1))

    # Lists, tuples and dicts.

    cdef int _push_node(self, Tag tag, uint64_t last) except -1:
        """Replace the last `last` values of the stack by a new node of them."""
        cdef Node* node
        if self._above_mark() < last:
            raise error_at(self.bytes_read, "values are missing")
        if last >> 32:
            raise error_at(self.bytes_read, "too many values in one place")
        self._room(&self.nodes, sizeof(Node), 1)
        self._room(&self.cells, sizeof(cell_t), last)
        node = <Node*> self.nodes.data + self.nodes.count
        node.offset = self.bytes_read
        node.first = self.cells.count
        node.count = node.capacity = <uint32_t> last
        self.stack.count -= last
        if last:
            memcpy(
                <cell_t*> self.cells.data + self.cells.count,
                <cell_t*> self.stack.data + self.stack.count,
                last * sizeof(cell_t),
            )
        self.cells.count += last
        self._push(make_cell(tag, self.nodes.count))
        self.nodes.count += 1
        return 0

    cdef int _extend(self, uint64_t last, Tag tag) except -1:
        """Move the last `last` values of the stack into the node below them, which must be a `tag`."""
        cdef Node* node
        cdef uint64_t total, capacity
        cdef cell_t target
        if self._above_mark() < last + 1:
            raise error_at(self.bytes_read, "values are missing")
        target = (<cell_t*> self.stack.data)[self.stack.count - last - 1]
        if tag_of(target) != tag:
            raise error_at(self.bytes_read, f"items for a {KINDS[<int> tag]} but there is {self.describe(target)}")
        if tag == DICT and last % 2:
            raise error_at(self.bytes_read, "a key without a value")
        if last == 0:
            return 0
        node = self.node_of(target)
        total = node.count + last
        if total >> 32:
            raise error_at(self.bytes_read, "too many values in one place")
        if total > node.capacity:
            if node.capacity and node.first + node.capacity == self.cells.count:
                self._room(&self.cells, sizeof(cell_t), total - node.capacity)
                self.cells.count += total - node.capacity
                node.capacity = <uint32_t> total
            else:
                capacity = min(max(total, 2 * <uint64_t> node.capacity), <uint64_t> 0xFFFFFFFF)
                self._room(&self.cells, sizeof(cell_t), capacity)
                if node.count:
                    memcpy(
                        <cell_t*> self.cells.data + self.cells.count,
                        <cell_t*> self.cells.data + node.first,
                        node.count * sizeof(cell_t),
                    )
                node.first = self.cells.count
                node.capacity = <uint32_t> capacity
                self.cells.count += capacity
        self.stack.count -= last
        memcpy(
            <cell_t*> self.cells.data + node.first + node.count,
            <cell_t*> self.stack.data + self.stack.count,
            last * sizeof(cell_t),
        )
        node.count = <uint32_t> total
        return 0

    # The memo.

    cdef int _get(self, uint64_t number) except -1:
        cdef cell_t cell = make_cell(UNSET, 0)
        if number < self.memo.count:
            cell = (<cell_t*> self.memo.data)[number]
        if tag_of(cell) == UNSET:
            raise error_at(self.bytes_read, f"memo number {number} is used but was never given")
        return self._push(cell)

    cdef int _put(self, uint64_t number) except -1:
        cdef uint64_t gap
        if self._above_mark() == 0:
            raise error_at(self.bytes_read, "values are missing")
        # Writers count from zero, and assigning a number takes at least a byte.
        if number >= self.bytes_read:
            raise error_at(self.bytes_read, f"memo number {number} is larger than the pickle so far")
        if number >= self.memo.count:
            gap = number + 1 - self.memo.count
            self._room(&self.memo, sizeof(cell_t), gap)
            memset(<cell_t*> self.memo.data + self.memo.count, 0, gap * sizeof(cell_t))
            self.memo.count += gap
        if tag_of((<cell_t*> self.memo.data)[number]) == UNSET:
            self.memo_given += 1
        (<cell_t*> self.memo.data)[number] = (<cell_t*> self.stack.data)[self.stack.count - 1]
        return 0

    # Values as Python objects.

    cdef object plain(self, cell_t cell):
        """Return `cell` as None, bool, int, float, str, bytes, list, tuple or dict.

        What the pickle shares is shared in the result too. A value that would be huge if written out in full is
        refused, so that printing or copying one is always affordable.
        """
        cdef uint64_t unfolded = 0
        return self._plain(cell, 0, &unfolded)

    cdef object _plain(self, cell_t cell, int depth, uint64_t* unfolded):
        cdef Tag tag = tag_of(cell)
        cdef uint64_t bits
        cdef double number
        unfolded[0] += 1
        if tag == NONE:
            return None
        if tag == TRUE:
            return True
        if tag == FALSE:
            return False
        if tag == INT:
            return small_int_of(cell)
        if tag == WIDE_POSITIVE:
            return self.wide_of(cell)
        if tag == WIDE_NEGATIVE:
            return <int64_t> self.wide_of(cell)
        if tag == FLOAT:
            bits = self.wide_of(cell)
            memcpy(&number, &bits, sizeof(double))
            return number
        if tag == STR:
            return self.strings[payload_of(cell)]
        if tag == BYTES:
            return self.blobs[payload_of(cell)]
        return self._built(cell, depth, unfolded)

    cdef object _built(self, cell_t cell, int depth, uint64_t* unfolded):
        """pre: `cell` is a LIST, TUPLE or DICT"""
        cdef Node* node = self.node_of(cell)
        cdef cell_t* items = self.items_of(cell)
        cdef uint64_t size = 0
        cdef uint32_t i
        index = payload_of(cell)
        if index in self.plain_values:
            known = self.plain_values[index]
            if known is None:
                raise error_at(node.offset, "a value that contains itself")
        else:
            if depth >= MAX_DEPTH:
                raise error_at(node.offset, f"nested deeper than {MAX_DEPTH} levels")
            self.plain_values[index] = None
            if tag_of(cell) == DICT:
                made = {}
                for i in range(0, node.count, 2):
                    made[self._key(cell, i)] = self._plain(items[i + 1], depth + 1, &size)
                    size += 1
            else:
                made = [self._plain(items[i], depth + 1, &size) for i in range(node.count)]
                if tag_of(cell) == TUPLE:
                    made = tuple(made)
            known = (made, size)
            self.plain_values[index] = known
        unfolded[0] += <uint64_t> known[1]
        if unfolded[0] > MAX_UNFOLDED:
            raise error_at(node.offset, f"a value of more than {MAX_UNFOLDED} parts")
        return known[0]

    cdef object _key(self, cell_t cell, uint32_t i):
        """Return the key at `i` of a DICT, a scalar. A tuple of scalars, such as a pool's id, becomes text.

        A real tuple would be dangerous: its hash visits everything below it however often it is shared, and tuples with
        equal hashes are easy to make, so a small dict of them could take hours to build.
        """
        cdef cell_t key = self.items_of(cell)[i]
        cdef uint64_t unfolded = 0
        cdef uint32_t j
        if tag_of(key) in (LIST, DICT):
            raise error_at(self.node_of(cell).offset, f"{self.describe(key)} as the key of a dict")
        if tag_of(key) == TUPLE:
            for j in range(self.node_of(key).count):
                if tag_of(self.items_of(key)[j]) in (LIST, TUPLE, DICT):
                    raise error_at(self.node_of(cell).offset, "a nested tuple as the key of a dict")
            return repr(self._plain(key, 0, &unfolded))
        return self._plain(key, 0, &unfolded)

    cdef str describe(self, cell_t cell):
        """Return a short name of a value for an error message: one line, whatever the value contains."""
        cdef Tag tag = tag_of(cell)
        if tag == STR:
            text = self.strings[payload_of(cell)]
            return f"the text {ascii(text if len(text) <= 40 else text[:40] + '...')}"
        if tag in (LIST, TUPLE, DICT):
            return f"a {KINDS[<int> tag]}"
        if tag == BYTES:
            return "a bytes value"
        if tag in (NONE, TRUE, FALSE):
            return str(self.plain(cell))
        return f"the number {self.plain(cell)}"


cdef inline uint64_t big_endian_bits(const uint8_t* data) noexcept nogil:
    cdef uint64_t bits = 0
    cdef int i
    for i in range(8):
        bits = (bits << 8) | data[i]
    return bits


cdef class Value:
    """Value()\n--\n
    One value of a tree, without making it an object.
    """

    def __init__(self):
        raise TypeError("values are created by PickleTree.finish")

    @property
    def kind(self) -> Literal["none", "bool", "int", "float", "str", "bytes", "list", "tuple", "dict"]:
        return KINDS[<int> tag_of(self.cell)]

    def __len__(self) -> int:
        """Return the number of items of a list or tuple, or of fields of a dict."""
        cdef Tag tag = tag_of(self.cell)
        if tag == DICT:
            return self.tree.node_of(self.cell).count // 2
        if tag == LIST or tag == TUPLE:
            return self.tree.node_of(self.cell).count
        raise TypeError(f"{self.describe()} has no length")

    def __iter__(self) -> Iterator[Value]:
        """Yield the items of a list or tuple."""
        cdef uint32_t i
        if tag_of(self.cell) not in (LIST, TUPLE):
            raise TypeError(f"{self.describe()} has no items")
        for i in range(self.tree.node_of(self.cell).count):
            yield value_of(self.tree, self.tree.items_of(self.cell)[i], self.offset)

    def fields(self) -> dict[str, Value]:
        """Return the fields of a dict. Raises FormatError if one is not named by a string."""
        cdef cell_t* items
        cdef uint32_t i
        if tag_of(self.cell) != DICT:
            raise TypeError(f"{self.describe()} has no fields")
        items = self.tree.items_of(self.cell)
        found = {}
        for i in range(0, self.tree.node_of(self.cell).count, 2):
            if tag_of(items[i]) != STR:
                raise self.error(f"{self.tree.describe(items[i])} as a field's name")
            found[self.tree.strings[payload_of(items[i])]] = value_of(self.tree, items[i + 1], self.offset)
        return found

    def plain(self) -> Plain:
        """Return the value as Python objects; what the pickle shares is shared here too.

        Raises FormatError for a value that contains itself, is nested deeper than 64 levels, or would have more than a
        million parts if written out.
        """
        return self.tree.plain(self.cell)

    def describe(self) -> str:
        """Return a short name of the value for an error message."""
        return self.tree.describe(self.cell)

    def error(self, text: str) -> FormatError:
        """Return a complaint about this value, with the byte where it, or the list or dict around it, begins."""
        return error_at(self.offset, text)


cdef Value value_of(PickleTree tree, cell_t cell, uint64_t owner):
    cdef Value value = Value.__new__(Value)
    value.tree = tree
    value.cell = cell
    value.offset = tree.node_of(cell).offset if tag_of(cell) in (LIST, TUPLE, DICT) else owner
    return value
