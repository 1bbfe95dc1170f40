# Made from pickle_reader.pyx by `make stubs`: change it there.

from collections.abc import Iterator
from typing import Literal

from allotment._formats.plain import Plain
from allotment.errors import FormatError

def error_at(offset: int, text: str) -> FormatError:
    """The one form of every complaint about a pickle."""

class PickleTree:
    """Reads a pickle of plain values, protocols 2 to 5, from pieces of any size; constructs nothing from it.

    `max_memory` bounds what the tree holds. So does `free_memory` plus `max_density` for each byte read, so
    that a small file stays small. Every complaint is a FormatError of one line that names the byte.
    """

    @property
    def bytes_read(self) -> int: ...
    def __init__(self, *, max_memory: int, max_density: int, free_memory: int) -> None: ...
    def feed(self, data: bytes) -> None:
        """Read on. Raises FormatError at the first thing that is wrong; the tree is then of no more use."""
    def finish(self) -> Value:
        """The pickled value. Raises FormatError if the pickle is not complete. Nothing may be fed afterwards."""
    @property
    def row_budget(self) -> int:
        """Rows that a table in a file of this size can have.

        A pickle names one dict as often as it likes for two bytes each; honest ones write every row out.
        """

class Value:
    """One value of a tree, looked at without making it an object."""

    @property
    def tree(self) -> PickleTree: ...
    def __init__(self) -> None: ...
    @property
    def kind(self) -> Literal["none", "bool", "int", "float", "str", "bytes", "list", "tuple", "dict"]: ...
    def __len__(self) -> int:
        """Items of a list or tuple, fields of a dict."""
    def __iter__(self) -> Iterator[Value]:
        """The items of a list or tuple."""
    def fields(self) -> dict[str, Value]:
        """The fields of a dict. Raises FormatError if one is not named by a string."""
    def plain(self) -> Plain:
        """The value as Python objects; what the pickle shared is shared here too.

        Raises FormatError for a value that contains itself, is nested deeper than 64 levels, or would have more than
        a million parts if it were written out.
        """
    def describe(self) -> str:
        """A short name of the value for an error message."""
    def error(self, text: str) -> FormatError:
        """A complaint about this value; names the byte where it begins, or where the list or dict around it does."""
