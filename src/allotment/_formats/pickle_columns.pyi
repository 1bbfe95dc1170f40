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
    """The result of reading a list of dicts."""

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

    A pickle refers back to a list or dict where it knows that two are the same object, so each node is read only once;
    the content is compared only between different nodes.
    """

    def __init__(self, tree: PickleTree) -> None: ...
    @property
    def extra(self) -> dict[str, dict[Frame, Plain]]:
        """Unknown fields of frames: key, frame, value."""
    @property
    def stacks(self) -> tuple[tuple[Frame, ...], ...]: ...
    def number(self, frames: tuple[Frame, ...]) -> int:
        """Return the number of a stack given as frames."""

class RowReader:
    """Turns lists of dicts into columns. Name the columns first, then call `read`, as often as needed.

    `what` names a row in error messages. Each column takes its value from any of `keys`; a missing field leaves 0,
    False or -1 unless it is `required`. The tree must be finished before readers are created for it.
    """

    def __init__(self, what: str, tree: PickleTree) -> None: ...
    def unsigned(self, name: str, *keys: str, required: bool = False, maximum: int = ...) -> None:
        """Add a column of uint64."""
    def signed(self, name: str, *keys: str, required: bool = False) -> None:
        """Add a column of int64."""
    def flag(self, name: str, *keys: str, required: bool = False) -> None:
        """Add a column of bool."""
    def pair(self, first: str, second: str, *keys: str, required: bool = False) -> None:
        """Add two columns of uint64 from a tuple or list of two integers; None is a missing field."""
    def choice(self, name: str, *keys: str, choices: Mapping[str, int], unknown: int, required: bool = False) -> None:
        """Add a column of uint8: the code of a text, or `unknown`, in which case the text is in `extra`."""
    def text(self, name: str, *keys: str, table: TextTable, required: bool = False) -> None:
        """Add a column of int32: the text's number in `table`; None is a missing field."""
    def stack(self, name: str, *keys: str, table: StackTable, required: bool = False) -> None:
        """Add a column of int32: the stack's number in `table`; an empty list is a missing field."""
    def children(self, name: str, *keys: str, required: bool = False) -> None:
        """Add no column, but the list inside each row, for another reader."""
    def read(self, lists: Sequence[Value]) -> Rows:
        """Read the rows of all `lists`, one after the other.

        Raises FormatError, naming row, field and byte, for anything that is not as described.
        """
