# Made from pickle_reader.pyx by `make stubs`: change it there.

from collections.abc import Iterator
from typing import Literal

from allotment._formats.plain import Plain
from allotment.errors import FormatError

def error_at(offset: int, text: str) -> FormatError:
    """Return a complaint about a pickle; all have this form."""

class PickleTree:
    """Reads a pickle of plain values, protocols 2 to 5, from pieces of any size; constructs nothing from it.

    `max_memory` limits what the tree holds. So does `free_memory` plus `max_density` for each byte read, so that a
    small file stays small. Every complaint is a FormatError of one line that names the byte.
    """

    @property
    def bytes_read(self) -> int: ...
    def __init__(self, *, max_memory: int, max_density: int, free_memory: int) -> None: ...
    def feed(self, data: bytes) -> None:
        """Read the next piece. Raises FormatError at the first error; the tree cannot be used afterwards."""
    def finish(self) -> Value:
        """Return the pickled value. Raises FormatError if the pickle is incomplete. Nothing may be fed afterwards."""
    @property
    def row_budget(self) -> int:
        """Rows that a table in a file of this size can have.

        A pickle can refer to one dict any number of times, for two bytes each; honest ones write out every row.
        """

class Value:
    """One value of a tree, without making it an object."""

    @property
    def tree(self) -> PickleTree: ...
    def __init__(self) -> None: ...
    @property
    def kind(self) -> Literal["none", "bool", "int", "float", "str", "bytes", "list", "tuple", "dict"]: ...
    def __len__(self) -> int:
        """Return the number of items of a list or tuple, or of fields of a dict."""
    def __iter__(self) -> Iterator[Value]:
        """Yield the items of a list or tuple."""
    def fields(self) -> dict[str, Value]:
        """Return the fields of a dict. Raises FormatError if one is not named by a string."""
    def plain(self) -> Plain:
        """Return the value as Python objects; what the pickle shares is shared here too.

        Raises FormatError for a value that contains itself, is nested deeper than 64 levels, or would have more than a
        million parts if written out.
        """
    def describe(self) -> str:
        """Return a short name of the value for an error message."""
    def error(self, text: str) -> FormatError:
        """Return a complaint about this value, with the byte where it, or the list or dict around it, begins."""
