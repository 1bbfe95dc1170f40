"""The form of a settings string: `key:value,key:value,...`, where a value is a word or a list in brackets.

PyTorch only checks that a token exists; it drops blanks even inside words and does not check separators. The strict
mode checks everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

FORM = "key:value,key:value,..."

_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_BLANKS = " \t\n\v\f\r"
_OUT_OF_BOUNDS = "Index out of bounds in ConfigTokenizer"


class Refusal(Exception):
    """Why an entry is refused. `complaint` is PyTorch's text."""

    def __init__(self, complaint: str = "", so_far: object = None) -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.so_far = so_far
        """The value before its fault, where PyTorch keeps that."""


class Malformed(Refusal):
    """An entry that does not have the form of one. `mistake` is our text."""

    def __init__(self, complaint: str, mistake: str, *, key: str | None = None, value: str | None = None) -> None:
        super().__init__(complaint)
        self.mistake = mistake
        self.key = key
        self.value = value


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key:value` of a settings string. The value is one token, or all tokens from "[" to "]"."""

    key: str
    tokens: tuple[str, ...]
    index: int
    """Position of the value among all tokens: PyTorch's messages count them."""
    strict: bool

    @property
    def word(self) -> str:
        return self.tokens[0]

    @property
    def shown(self) -> str:
        return "".join(self.tokens)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of a list: `a:b,c:d,...`."""
        tokens = list(self.tokens[1:-1])
        position = 0
        while position < len(tokens):
            _pass_separator(":", tokens, position + 1, self.key, strict=self.strict)
            yield tokens[position], _token(tokens, position + 2, self.key)
            if position + 3 < len(tokens):
                _pass_separator(",", tokens, position + 3, self.key, strict=self.strict)
            position += 4


def entries(text: str, *, strict: bool) -> Iterator[Entry]:
    """Yield the entries of a settings string, from left to right. Raises Malformed."""
    tokens = _tokens(text, strict=strict)
    named = set()
    position = 0
    while position < len(tokens):
        key = tokens[position]
        if strict and key in ",:[]":
            _refuse(f"expected a key instead of {key!r}", value=key)
        if strict and key in named:
            _refuse(f"{key} occurs twice", key=key)
        named.add(key)
        _pass_separator(":", tokens, position + 1, key, strict=strict)
        start = position + 2
        end = _end_of_value(tokens, start, key)
        yield Entry(key, tuple(tokens[start:end]), start, strict)
        if end < len(tokens):
            _pass_separator(",", tokens, end, key, strict=strict)
        position = end + 1


def _tokens(text: str, *, strict: bool) -> list[str]:
    if strict:
        return [token for token in (found.strip(_BLANKS) for found in _TOKEN.findall(text)) if token]
    # Also inside words: PyTorch drops every blank before it reads anything.
    return _TOKEN.findall(text.translate(dict.fromkeys(map(ord, _BLANKS))))


def _end_of_value(tokens: list[str], start: int, key: str) -> int:
    if _token(tokens, start, key) != "[":
        return start + 1
    try:
        return tokens.index("]", start) + 1
    except ValueError:
        value = "".join(tokens[start:])
        complaint = "Expected closing bracket ']' in ConfigTokenizer but reached end of config"
        raise Malformed(complaint, f"the list {value!r} has no closing ']'", key=key, value=value) from None


def _pass_separator(separator: str, tokens: list[str], position: int, key: str, *, strict: bool) -> None:
    found = _token(tokens, position, key)
    if strict and found != separator:
        before = tokens[position - 1]
        _refuse(f"expected {separator!r} after {before!r}, not {found!r}", key=key, value=found)


def _token(tokens: list[str], position: int, key: str) -> str:
    if position >= len(tokens):
        raise Malformed(_OUT_OF_BOUNDS, f"something is missing after {tokens[-1]!r}", key=key)
    return tokens[position]


def _refuse(mistake: str, *, key: str | None = None, value: str | None = None) -> NoReturn:
    raise Malformed("", mistake, key=key, value=value)
