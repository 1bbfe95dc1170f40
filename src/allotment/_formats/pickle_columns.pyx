"""Turns lists of dicts in a pickle into columns, without creating the dicts.

A `RowReader` first learns which fields a row may have; each becomes a *slot* with an array. Keys are texts of the tree,
so finding a key's slot is one lookup in `slot_of_string`. Reading a row is one pass over its cells; fields without a
slot are kept as plain values, by key and row.

A pickle can refer to one dict or list any number of times, for two bytes each. So rows, visited cells and kept values
each have a budget, which an honest file, which writes out every row, never approaches.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from typing import NamedTuple

import numpy as np

from allotment._formats.pickle_reader cimport (
    DICT, FALSE, INT, LIST, NONE, STR, TRUE, TUPLE, WIDE_NEGATIVE, WIDE_POSITIVE,
    Node, PickleTree, Tag, Value, cell_t, payload_of, small_int_of, tag_of, value_of,
)

from allotment._formats.pickle_reader import error_at

cdef enum:
    FREE_VISITS = 1 << 22           # visited cells that are allowed for a file of any size
    MAX_SLOTS = 32

cdef enum SlotKind:
    UNSIGNED
    SIGNED
    FLAG
    PAIR
    CHOICE
    TEXT
    STACK
    CHILDREN

cdef struct Slot:
    SlotKind kind
    uint64_t maximum        # UNSIGNED, PAIR: the largest value
    int16_t* codes          # CHOICE: 1 + code, by string, 0 for a text that is not a choice
    uint8_t unknown         # CHOICE: the code of such a text
    char* column            # the array, of the kind's own type
    char* second            # PAIR: the array of the second number


cdef void* zeros(uint64_t count, size_t item_size, PickleTree tree) except NULL:
    """Return an array with an entry for each string or node of the tree, which cannot grow any more."""
    cdef void* data
    if not tree.stopped:
        raise ValueError("the pickle is not read to its end yet")
    if count > <uint64_t> INT32_MAX:
        raise error_at(tree.bytes_read, "too many different values")
    data = calloc(count + 1, item_size)
    if data == NULL:
        raise MemoryError()
    return data


class Frame(NamedTuple):
    """One line of a stack."""

    name: str
    filename: str
    line: int


class Rows(NamedTuple):
    """The result of reading a list of dicts."""

    total: int
    columns: dict[str, NDArray[Any]]        # by column name, `total` long
    present: frozenset[str]                 # columns, or children, for which at least one row had a value
    extra: dict[str, dict[int, Plain]]      # by key and row: fields without a column, texts that are not a known choice
    children: dict[str, dict[int, Value]]   # by name and row: lists inside rows


cdef inline bint none_is_missing(SlotKind kind) noexcept nogil:
    return kind == TEXT or kind == PAIR


@cython.final
cdef class TextTable:
    """TextTable(tree)\n--\n
    Texts of one field, numbered from zero in order of appearance.
    """

    cdef list known
    cdef PickleTree tree
    cdef int32_t* number_of_string      # 1 + number, 0 for a text not seen yet

    def __cinit__(self, PickleTree tree not None):
        self.known = []
        self.tree = tree
        self.number_of_string = <int32_t*> zeros(len(tree.strings), sizeof(int32_t), tree)

    def __dealloc__(self):
        free(self.number_of_string)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.known)

    cdef int32_t number_of(self, cell_t cell) except -1:
        """pre: `cell` is a STR"""
        cdef int32_t* number = self.number_of_string + payload_of(cell)
        if number[0] == 0:
            self.known.append(self.tree.strings[payload_of(cell)])
            number[0] = <int32_t> len(self.known)
        return number[0] - 1


@cython.final
cdef class StackTable:
    """StackTable(tree)\n--\n
    Stacks of frames, equal ones once, numbered from zero in order of appearance.

    A pickle refers back to a list or dict where it knows that two are the same object, so each node is read only once;
    the content is compared only between different nodes.
    """

    cdef list known_stacks              # list[tuple[Frame, ...]]
    cdef list known_frames              # list[Frame]
    cdef dict extra                     # unknown key -> frame -> value
    cdef PickleTree tree
    cdef dict number_of_frame, number_of_stack
    cdef int32_t* number_of_node        # 1 + number of the stack (for a list) or frame (for a dict), 0 for new ones

    def __cinit__(self, PickleTree tree not None):
        self.known_stacks = []
        self.known_frames = []
        self.extra = {}
        self.tree = tree
        self.number_of_frame = {}
        self.number_of_stack = {}
        self.number_of_node = <int32_t*> zeros(tree.nodes.count, sizeof(int32_t), tree)

    def __dealloc__(self):
        free(self.number_of_node)

    @property
    def extra(self) -> dict[str, dict[Frame, Plain]]:
        """Unknown fields of frames: key, frame, value."""
        return self.extra

    @property
    def stacks(self) -> tuple[tuple[Frame, ...], ...]:
        return tuple(self.known_stacks)

    def number(self, frames: tuple[Frame, ...]) -> int:
        """Return the number of a stack given as frames."""
        content = PyBytes_FromStringAndSize(NULL, len(frames) * sizeof(int32_t))
        cdef int32_t* numbers = <int32_t*> <char*> content
        for i, frame in enumerate(frames):
            numbers[<Py_ssize_t> i] = self._frame_number(frame)
        return self._stack_number(content)

    cdef int32_t _frame_number(self, frame) except -1:
        number = self.number_of_frame.get(frame)
        if number is None:
            number = len(self.known_frames)
            self.number_of_frame[frame] = number
            self.known_frames.append(frame)
        return number

    cdef int32_t _stack_number(self, bytes content) except -1:
        """pre: `content` is an array of int32, numbers of frames"""
        cdef const int32_t* numbers = <const int32_t*> <const char*> content
        cdef Py_ssize_t i
        number = self.number_of_stack.get(content)
        if number is None:
            number = len(self.known_stacks)
            self.number_of_stack[content] = number
            frames = [self.known_frames[numbers[i]] for i in range(len(content) // <Py_ssize_t> sizeof(int32_t))]
            self.known_stacks.append(tuple(frames))
        return number

    cdef int32_t number_of(self, cell_t cell) except -1:
        """pre: `cell` is a LIST of at least one item"""
        cdef int32_t* known = self.number_of_node + payload_of(cell)
        cdef Node* node = self.tree.node_of(cell)
        cdef cell_t* items = self.tree.items_of(cell)
        cdef int32_t* numbers
        cdef uint32_t i
        if known[0] == 0:
            content = PyBytes_FromStringAndSize(NULL, node.count * sizeof(int32_t))
            numbers = <int32_t*> <char*> content
            for i in range(node.count):
                if tag_of(items[i]) != DICT:
                    raise error_at(node.offset, f"{self.tree.describe(items[i])} where a frame should be")
                numbers[i] = self._frame_of(items[i])
            known[0] = self._stack_number(content) + 1
        return known[0] - 1

    cdef int32_t _frame_of(self, cell_t cell) except -1:
        """pre: `cell` is a DICT"""
        cdef int32_t* known = self.number_of_node + payload_of(cell)
        cdef Node* node = self.tree.node_of(cell)
        cdef cell_t* items = self.tree.items_of(cell)
        cdef uint32_t i
        cdef cell_t value
        if known[0]:
            return known[0] - 1
        name = filename = ""
        line = 0
        unknown = {}
        for i in range(0, node.count, 2):
            value = items[i + 1]
            if tag_of(items[i]) != STR:
                raise error_at(node.offset, f"{self.tree.describe(items[i])} as the name of a frame's field")
            key = self.tree.strings[payload_of(items[i])]
            if key == "name" or key == "filename":
                if tag_of(value) != STR:
                    raise error_at(node.offset, f"a frame's {key} is {self.tree.describe(value)}, not a text")
                if key == "name":
                    name = self.tree.strings[payload_of(value)]
                else:
                    filename = self.tree.strings[payload_of(value)]
            elif key == "line":
                if tag_of(value) != INT:
                    raise error_at(node.offset, f"a frame's line is {self.tree.describe(value)}, not a line number")
                line = small_int_of(value)
            else:
                unknown[key] = self.tree.plain(value)
        frame = Frame(name, filename, line)
        known[0] = self._frame_number(frame) + 1
        for key, kept in unknown.items():
            self.extra.setdefault(key, {}).setdefault(frame, kept)
        return known[0] - 1


@cython.final
cdef class RowReader:
    """RowReader(what, tree)\n--\n
    Turns lists of dicts into columns. Name the columns first, then call `read`, as often as needed.

    `what` names a row in error messages. Each column takes its value from any of `keys`; a missing field leaves 0,
    False or -1 unless it is `required`. The tree must be finished before readers are created for it.
    """

    cdef PickleTree tree
    cdef str what
    cdef Slot slots[MAX_SLOTS]
    cdef int slot_count
    cdef uint32_t required
    cdef int16_t* slot_of_string        # 1 + slot, 0 for a text that is not a known key
    cdef dict string_numbers            # str -> index in the tree
    cdef list columns                   # per slot: (column names, dtype, value of a row that lacks the field)
    cdef list keys                      # per slot: its keys
    cdef list helpers                   # per slot: its TextTable or StackTable, or None
    cdef int64_t rows_left, visits_left, extra_left

    def __cinit__(self, str what not None, PickleTree tree not None):
        self.tree = tree
        self.what = what
        self.string_numbers = {text: number for number, text in enumerate(tree.strings)}
        self.columns = []
        self.keys = []
        self.helpers = []
        self.rows_left = tree.row_budget
        self.extra_left = self.rows_left
        self.visits_left = FREE_VISITS + <int64_t> tree.bytes_read
        self.slot_of_string = <int16_t*> zeros(len(tree.strings), sizeof(int16_t), tree)

    def __dealloc__(self):
        cdef int i
        free(self.slot_of_string)
        for i in range(self.slot_count):
            free(self.slots[i].codes)

    cdef Slot* _add(self, SlotKind kind, keys, names, dtype, missing, bint required, helper) except NULL:
        cdef Slot* slot = &self.slots[self.slot_count]
        if self.slot_count == MAX_SLOTS:
            raise ValueError(f"a row has at most {MAX_SLOTS} fields")
        memset(slot, 0, sizeof(Slot))
        slot.kind = kind
        slot.maximum = ~<uint64_t> 0
        if required:
            self.required |= <uint32_t> 1 << self.slot_count
        self.slot_count += 1
        for key in keys:
            number = self.string_numbers.get(key)
            if number is not None:
                self.slot_of_string[<uint64_t> number] = <int16_t> self.slot_count
        self.keys.append(keys)
        self.columns.append((names, dtype, missing))
        self.helpers.append(helper)
        return slot

    def unsigned(self, str name, *keys: str, bint required=False, uint64_t maximum=~<uint64_t> 0) -> None:
        """Add a column of uint64."""
        self._add(UNSIGNED, keys, (name,), np.uint64, 0, required, None).maximum = maximum

    def signed(self, str name, *keys: str, bint required=False) -> None:
        """Add a column of int64."""
        self._add(SIGNED, keys, (name,), np.int64, 0, required, None)

    def flag(self, str name, *keys: str, bint required=False) -> None:
        """Add a column of bool."""
        self._add(FLAG, keys, (name,), np.bool_, False, required, None)

    def pair(self, str first, str second, *keys: str, bint required=False) -> None:
        """Add two columns of uint64 from a tuple or list of two integers; None is a missing field."""
        self._add(PAIR, keys, (first, second), np.uint64, 0, required, None)

    def choice(self, str name, *keys: str, choices: Mapping[str, int], uint8_t unknown, bint required=False) -> None:
        """Add a column of uint8: the code of a text, or `unknown`, in which case the text is in `extra`."""
        cdef Slot* slot = self._add(CHOICE, keys, (name,), np.uint8, unknown, required, None)
        slot.unknown = unknown
        slot.codes = <int16_t*> zeros(len(self.tree.strings), sizeof(int16_t), self.tree)
        for text, code in choices.items():
            number = self.string_numbers.get(text)
            if number is not None:
                slot.codes[<uint64_t> number] = 1 + <uint8_t> code

    def text(self, str name, *keys: str, TextTable table not None, bint required=False) -> None:
        """Add a column of int32: the text's number in `table`; None is a missing field."""
        if table.tree is not self.tree:
            raise ValueError("the table belongs to another pickle")
        self._add(TEXT, keys, (name,), np.int32, -1, required, table)

    def stack(self, str name, *keys: str, StackTable table not None, bint required=False) -> None:
        """Add a column of int32: the stack's number in `table`; an empty list is a missing field."""
        if table.tree is not self.tree:
            raise ValueError("the table belongs to another pickle")
        self._add(STACK, keys, (name,), np.int32, -1, required, table)

    def children(self, str name, *keys: str, bint required=False) -> None:
        """Read no column: keep the list inside each row for another reader."""
        self._add(CHILDREN, keys, (name,), None, None, required, None)

    def read(self, lists: Sequence[Value]) -> Rows:
        """Read the rows of all `lists`, one after the other.

        Raises FormatError, naming row, field and byte, for anything that is not as described.
        """
        cdef Value value
        cdef cell_t* cells
        cdef uint64_t row = 0
        cdef uint32_t i, seen = 0
        cdef int64_t total = 0
        lists = list(lists)
        for value in lists:
            if value.tree is not self.tree:
                raise ValueError("the list belongs to another pickle")
            if tag_of(value.cell) != LIST:
                raise value.error(f"{value.describe()} where a list of {self.what} rows should be")
            total += self.tree.node_of(value.cell).count
            if total > self.rows_left:
                raise value.error(f"one {self.what} is listed more often than a file of this size can hold")
        self.rows_left -= total

        arrays = {}
        children = {}
        extra = {}
        for slot in range(self.slot_count):
            self._attach(slot, total, arrays, children)
        for value in lists:
            cells = self.tree.items_of(value.cell)
            for i in range(self.tree.node_of(value.cell).count):
                seen |= self._read_row(cells[i], row, value, extra, children)
                row += 1
        present = [name for slot in range(self.slot_count) if seen >> slot & 1 for name in self.columns[slot][0]]
        return Rows(total, arrays, frozenset(present), extra, children)

    cdef int _attach(self, int index, int64_t total, dict arrays, dict children) except -1:
        """Give the slot its arrays, filled with the value for a missing field."""
        cdef Slot* slot = &self.slots[index]
        cdef uint8_t[::1] view
        names, dtype, missing = self.columns[index]
        slot.column = slot.second = NULL
        if slot.kind == CHILDREN:
            children[names[0]] = {}
            return 0
        for name in names:
            arrays[name] = np.full(total, missing, dtype=dtype) if missing else np.zeros(total, dtype=dtype)
            if total:
                view = arrays[name].view(np.uint8)
                if slot.column == NULL:
                    slot.column = <char*> &view[0]
                else:
                    slot.second = <char*> &view[0]
        return 0

    cdef object _error(self, cell_t dictionary, uint64_t row, str text):
        return error_at(self.tree.node_of(dictionary).offset, f"{self.what} {row}: {text}")

    cdef uint32_t _read_row(self, cell_t cell, uint64_t row, Value owner, dict extra, dict children) except? 0xFFFFFFFF:
        """Write one row; return the bits of the slots that it had."""
        cdef Node* node
        cdef cell_t* items
        cdef cell_t key, value
        cdef uint32_t i, seen = 0
        cdef int slot
        if tag_of(cell) != DICT:
            raise owner.error(f"{self.what} {row} is {self.tree.describe(cell)}, not a dict")
        node = self.tree.node_of(cell)
        items = self.tree.items_of(cell)
        self.visits_left -= node.count + 1
        if self.visits_left < 0:
            raise self._error(cell, row, "listed more often than a file of this size can hold")
        for i in range(0, node.count, 2):
            key = items[i]
            value = items[i + 1]
            if tag_of(key) != STR:
                raise self._error(cell, row, f"{self.tree.describe(key)} as a field's name")
            slot = self.slot_of_string[payload_of(key)] - 1
            if slot < 0:
                self._keep(cell, row, key, value, extra)
            elif tag_of(value) != NONE or not none_is_missing(self.slots[slot].kind):
                seen |= <uint32_t> 1 << slot
                self._write(&self.slots[slot], slot, cell, row, key, value, extra, children)
        if self.required & ~seen:
            raise self._error(cell, row, self._what_lacks(self.required & ~seen))
        return seen

    cdef str _what_lacks(self, uint32_t missing):
        keys = [" or ".join([repr(key) for key in self.keys[i]]) for i in range(self.slot_count) if missing >> i & 1]
        return f"no {', '.join(keys)}"

    cdef int _keep(self, cell_t cell, uint64_t row, cell_t key, cell_t value, dict extra) except -1:
        self.extra_left -= 1
        if self.extra_left < 0:
            raise self._error(cell, row, "more unknown fields than a file of this size can hold")
        name = self.tree.strings[payload_of(key)]
        kept = extra.get(name)
        if kept is None:
            kept = extra[name] = {}
        kept[row] = self.tree.plain(value)
        return 0

    cdef object _wrong(self, cell_t cell, uint64_t row, cell_t key, cell_t value, str wanted):
        name = ascii(self.tree.strings[payload_of(key)])
        return self._error(cell, row, f"{name} is {self.tree.describe(value)}, not {wanted}")

    cdef inline int _unsigned_of(self, cell_t cell, uint64_t maximum, uint64_t* result) noexcept:
        """Whether `cell` is an integer from 0 to `maximum`."""
        cdef Tag tag = tag_of(cell)
        if tag == INT:
            if small_int_of(cell) < 0:
                return False
            result[0] = <uint64_t> small_int_of(cell)
        elif tag == WIDE_POSITIVE:
            result[0] = self.tree.wide_of(cell)
        else:
            return False
        return result[0] <= maximum

    cdef inline int _write(
        self, Slot* slot, int index, cell_t cell, uint64_t row, cell_t key, cell_t value, dict extra, dict children
    ) except -1:
        """Write `value` into the slot's column, or raise what is wrong with it."""
        cdef Tag tag = tag_of(value)
        cdef uint64_t number = 0, second = 0
        cdef int16_t code
        cdef cell_t* parts
        if slot.kind == UNSIGNED:
            if not self._unsigned_of(value, slot.maximum, &number):
                raise self._wrong(cell, row, key, value, f"an integer from 0 to {slot.maximum}")
            (<uint64_t*> slot.column)[row] = number
        elif slot.kind == SIGNED:
            if tag == INT:
                (<int64_t*> slot.column)[row] = small_int_of(value)
            elif tag == WIDE_NEGATIVE or (tag == WIDE_POSITIVE and self.tree.wide_of(value) <= <uint64_t> INT64_MAX):
                (<int64_t*> slot.column)[row] = <int64_t> self.tree.wide_of(value)
            else:
                raise self._wrong(cell, row, key, value, "a signed integer of 64 bits")
        elif slot.kind == TEXT:
            if tag == STR:
                (<int32_t*> slot.column)[row] = (<TextTable> self.helpers[index]).number_of(value)
            else:
                raise self._wrong(cell, row, key, value, "a text")
        elif slot.kind == CHOICE:
            if tag != STR:
                raise self._wrong(cell, row, key, value, "a text")
            code = slot.codes[payload_of(value)]
            if code:
                (<uint8_t*> slot.column)[row] = <uint8_t> (code - 1)
            else:
                (<uint8_t*> slot.column)[row] = slot.unknown
                self._keep(cell, row, key, value, extra)
        elif slot.kind == STACK:
            if tag != LIST:
                raise self._wrong(cell, row, key, value, "a list of frames")
            if self.tree.node_of(value).count:
                (<int32_t*> slot.column)[row] = (<StackTable> self.helpers[index]).number_of(value)
        elif slot.kind == PAIR:
            if (tag != TUPLE and tag != LIST) or self.tree.node_of(value).count != 2:
                raise self._wrong(cell, row, key, value, "two integers")
            parts = self.tree.items_of(value)
            if not (
                self._unsigned_of(parts[0], slot.maximum, &number)
                and self._unsigned_of(parts[1], slot.maximum, &second)
            ):
                raise self._wrong(cell, row, key, value, f"two integers from 0 to {slot.maximum}")
            (<uint64_t*> slot.column)[row] = number
            (<uint64_t*> slot.second)[row] = second
        elif slot.kind == FLAG:
            if tag != TRUE and tag != FALSE:
                raise self._wrong(cell, row, key, value, "True or False")
            (<uint8_t*> slot.column)[row] = tag == TRUE
        else:
            if tag != LIST:
                raise self._wrong(cell, row, key, value, "a list")
            children[self.columns[index][0][0]][row] = value_of(self.tree, value, self.tree.node_of(cell).offset)
        return 0
