"""What a kind of allocator does not support: a row in its class for each operation, from which the refusal follows.

    snapshot = Unsupported("snapshot", "a pluggable allocator", "use Allocator(device)")

`hasattr(allocator, "snapshot")` is then False, asking for it raises an error that names the operation, the kind and
what to use instead, and `help` shows the row.
"""

from __future__ import annotations

from typing import Any, NoReturn, overload

from allotment.errors import UnsupportedOperationError


class Unsupported:
    """An operation that `kind` does not have. `instead` says what to use; `words` is how the refusal is put."""

    def __init__(
        self, operation: str, kind: str, instead: str, words: str = "{kind} does not support {operation}; {instead}"
    ) -> None:
        self.operation = operation
        self.instead = instead
        self._text = words.format(kind=kind, operation=operation, instead=instead)
        self.__doc__ = f"Not supported: {instead}."

    @overload
    def __get__(self, instance: None, owner: type) -> Unsupported: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> NoReturn: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        raise self.error()

    def error(self) -> UnsupportedOperationError:
        """The refusal, for operations that are refused only in part."""
        return UnsupportedOperationError(self._text, operation=self.operation)

    def __repr__(self) -> str:
        return f"<not supported: {self.instead}>"


def rows_of(kind: type) -> dict[str, str]:
    """What a kind of allocator does not support: what to use instead, by operation."""
    return {name: row.instead for name in dir(kind) if isinstance(row := getattr(kind, name), Unsupported)}
