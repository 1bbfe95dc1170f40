# Made from pickle_columns.pyx by `make stubs`: change it there.

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from allotment._formats.pickle_reader import PickleTree, Value
from allotment._formats.plain import Plain

class Frame(NamedTuple):
    """One line of a stack."""

    name: str
    filename: str
    line: int

class Rows(NamedTuple):
    """What a list of dicts became."""

    total: int
    columns: dict[str, NDArray[Any]]
    present: frozenset[str]
    extra: dict[str, dict[int, Plain]]
    children: dict[str, dict[int, Value]]

class TextTable:
    """Texts of one field, numbered from zero in order of appearance."""

    def __init__(self, tree: PickleTree) -> None: ...
    @property
    def texts(self) -> tuple[str, ...]: ...

class StackTable:
    """Stacks of frames, equal ones once, numbered from zero in order of appearance.

    A pickle names the list or dict again where it knows that two are the same object, so each node is
    looked into once; the content decides only between different nodes.
    """

    def __init__(self, tree: PickleTree) -> None: ...
    @property
    def extra(self) -> dict[str, dict[Frame, Plain]]:
        """Unknown fields of frames: key, frame, value."""
    @property
    def stacks(self) -> tuple[tuple[Frame, ...], ...]: ...
    def number(self, frames: tuple[Frame, ...]) -> int:
        """The number of a stack given as frames."""

class RowReader:
    """Turns lists of dicts into columns. First the columns are named, then `read` is called, as often as needed.

    `what` names a row in error messages. Each column takes its value from any of `keys`; a missing field
    leaves 0, False or -1 unless it is `required`. A tree must be finished before readers are made for it.
    """

    def __init__(self, what: str, tree: PickleTree) -> None: ...
    def unsigned(self, name: str, *keys: str, required: bool = False, maximum: int = ...) -> None:
        """A column of uint64."""
    def signed(self, name: str, *keys: str, required: bool = False) -> None:
        """A column of int64."""
    def flag(self, name: str, *keys: str, required: bool = False) -> None:
        """A column of bool."""
    def pair(self, first: str, second: str, *keys: str, required: bool = False) -> None:
        """Two columns of uint64 from a tuple or list of two integers; None is a missing field."""
    def choice(self, name: str, *keys: str, choices: Mapping[str, int], unknown: int, required: bool = False) -> None:
        """A column of uint8: the code of a text, or `unknown`, in which case the text is in `extra`."""
    def text(self, name: str, *keys: str, table: TextTable, required: bool = False) -> None:
        """A column of int32: the text's number in `table`; None is a missing field."""
    def stack(self, name: str, *keys: str, table: StackTable, required: bool = False) -> None:
        """A column of int32: the stack's number in `table`; an empty list is a missing field."""
    def children(self, name: str, *keys: str, required: bool = False) -> None:
        """No column: the list inside each row, for a reader of its own."""
    def read(self, lists: Sequence[Value]) -> Rows:
        """The rows of all `lists`, one after the other.

        Raises FormatError that names row, field and byte for whatever is not as described.
        """
