"""The kinds of values that settings have.

A kind reads a value from an entry of a settings string (`read`, which gets the current value and raises Refusal with
PyTorch's text). It also says whether a Python object is such a value (`admits`), for records that are created without a
string.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard

from allotment._rules import NEWEST, VERSIONS
from allotment._settings.grammar import Entry, Refusal
from allotment._settings.sizes import MIB, UNLIMITED, parse_size, shortest_size
from allotment.errors import SettingsError

INTERVALS = 16
"""Powers of two with their own divisions: from 1 MiB to 32 GiB, the last for everything above."""

_MOST_MIB = UNLIMITED // MIB


class Kind(Protocol):
    def read(self, entry: Entry, current: Any) -> Any: ...

    def admits(self, value: object) -> bool: ...


@dataclass(frozen=True, slots=True)
class Switch:
    """True or False."""

    def read(self, entry: Entry, current: object) -> bool:
        if entry.word not in ("True", "False"):
            place = f"at index {entry.index} in ConfigTokenizer"
            raise Refusal(f"Expected 'True' or 'False' {place} but got '{entry.word}'")
        return entry.word == "True"

    def admits(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    complaint: str = ""

    def read(self, entry: Entry, current: object) -> str:
        if entry.word not in self.words:
            raise Refusal(self.complaint)
        return entry.word

    def admits(self, value: object) -> bool:
        return value in self.words


@dataclass(frozen=True, slots=True)
class Name:
    """A name that is looked up later, where all names are known."""

    def read(self, entry: Entry, current: object) -> str:
        if not self.admits(entry.word):
            raise Refusal
        return entry.word

    def admits(self, value: object) -> bool:
        return isinstance(value, str) and value.isidentifier()


@dataclass(frozen=True, slots=True)
class Version:
    """A PyTorch version, or the newest known one."""

    def read(self, entry: Entry, current: object) -> str:
        version = NEWEST if entry.word == "newest" else entry.word
        if version not in VERSIONS:
            raise Refusal
        return version

    def admits(self, value: object) -> bool:
        return value in VERSIONS


class Reserve(NamedTuple):
    """Size of an expandable segment's addresses: a share of the device's memory, or a number of GiB."""

    amount: float
    unit: Literal["share", "GiB"]

    def bytes_of(self, total: int) -> int:
        """Return the size in bytes, on a device with `total` bytes of memory."""
        return int(min(self.amount * (total if self.unit == "share" else 1 << 30), UNLIMITED))


@dataclass(frozen=True, slots=True)
class ReserveSize:
    """A `Reserve`. PyTorch ignores what it cannot read, with a warning, and so does the lenient mode."""

    def read(self, entry: Entry, current: Reserve | None) -> Reserve | None:
        found = _reserve(entry, entry.word)
        return current if found is None else found

    def admits(self, value: object) -> bool:
        if value is None:
            return True
        return isinstance(value, Reserve) and _is_amount(value.amount) and value.unit in _RESERVE_UNITS


@dataclass(frozen=True, slots=True)
class ReserveSizes:
    """A list with a `Reserve` for each of some classes of streams."""

    def read(self, entry: Entry, current: object) -> tuple[tuple[str, Reserve], ...]:
        if entry.word != "[":
            raise Refusal("i < config_.size() INTERNAL ASSERT FAILED")
        sizes: dict[str, Reserve] = {}
        for name, word in entry.pairs():
            if (found := _reserve(entry, word)) is not None:
                sizes[name] = found
        return tuple(sizes.items())

    def admits(self, value: object) -> bool:
        return isinstance(value, tuple) and all(
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and pair[1] is not None
            and ReserveSize().admits(pair[1])
            for pair in value
        )


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An unsigned whole number of 64 bits."""

    def read(self, entry: Entry, current: object) -> int:
        return _whole_number(entry, entry.word)

    def admits(self, value: object) -> bool:
        return is_whole_number(value)


@dataclass(frozen=True, slots=True)
class Mebibytes:
    """A size, written in MiB and kept in bytes."""

    def read(self, entry: Entry, current: object) -> int:
        mebibytes = _whole_number(entry, entry.word)
        if entry.strict and mebibytes > _MOST_MIB:
            raise Refusal
        return min(mebibytes, _MOST_MIB) * MIB

    def admits(self, value: object) -> bool:
        return is_whole_number(value) and (value % MIB == 0 or value == UNLIMITED)


@dataclass(frozen=True, slots=True)
class CountOrOff:
    """A whole number, or "off", which is kept as -1."""

    def read(self, entry: Entry, current: object) -> int:
        return -1 if entry.word == "off" else _whole_number(entry, entry.word)

    def admits(self, value: object) -> bool:
        return is_whole_number(value) or (value == -1 and isinstance(value, int))

    def word(self, value: int) -> str:
        return "off" if value == -1 else str(value)


@dataclass(frozen=True, slots=True)
class ByteSize:
    """A size, written in any unit and kept in bytes."""

    def read(self, entry: Entry, current: object) -> int:
        try:
            return parse_size(entry.word)
        except SettingsError:
            raise Refusal from None

    def admits(self, value: object) -> bool:
        return is_whole_number(value)

    def word(self, value: int) -> str:
        return shortest_size(value)


@dataclass(frozen=True, slots=True)
class RealNumber:
    """A number with a fraction."""

    def read(self, entry: Entry, current: object) -> float:
        number = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
        form = number if entry.strict else rf"[+-]?(?:{number}|inf|nan)"
        return float(_leading(form, entry, entry.word, "stod"))

    def admits(self, value: object) -> bool:
        return isinstance(value, float) or is_whole_number(value)


@dataclass(frozen=True, slots=True)
class Divisions:
    """A power of two for all sizes, or a list of them by size: one entry for each of the `INTERVALS`."""

    def read(self, entry: Entry, current: tuple[int, ...]) -> tuple[int, ...]:
        if entry.word != "[":
            divisions = _whole_number(entry, entry.word)
            if not is_power_of_two(divisions):
                raise Refusal("For roundups, the divisions has to be power of 2")
            return (divisions,) * INTERVALS
        table = list(current)
        try:
            self._fill(table, entry)
        except Refusal as refusal:
            refusal.so_far = tuple(table)
            raise
        return tuple(table)

    def _fill(self, table: list[int], entry: Entry) -> None:
        first, interval = True, 0
        for boundary, value in entry.pairs():
            divisions = _whole_number(entry, value)
            if divisions and not is_power_of_two(divisions):
                raise Refusal("For roundups, the divisions has to be power of 2 or 0 to disable roundup")
            if boundary == ">":
                table[interval + 1 :] = [divisions] * (INTERVALS - interval - 1)
                continue
            mebibytes = _whole_number(entry, boundary)
            if not is_power_of_two(mebibytes):
                raise Refusal("For roundups, the intervals have to be power of 2")
            interval = min(mebibytes.bit_length(), INTERVALS) - 1
            if first:
                table[:interval] = [divisions] * interval
                first = False
            table[interval] = divisions

    def admits(self, value: object) -> bool:
        return (
            isinstance(value, tuple)
            and len(value) == INTERVALS
            and all(is_whole_number(entry) and (entry == 0 or is_power_of_two(entry)) for entry in value)
        )


_RESERVE_UNITS = ("share", "GiB")
_AMOUNT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE | re.ASCII)


def _is_amount(amount: object) -> bool:
    return isinstance(amount, float) and math.isfinite(amount) and amount > 0


def _reserve(entry: Entry, word: str) -> Reserve | None:
    """Return None for what the lenient mode ignores."""
    number = word[:-1] if word[-1] in "Gg" else word
    if _AMOUNT.fullmatch(number) and _is_amount(float(number)):
        return Reserve(float(number), "share" if number == word else "GiB")
    if entry.strict:
        raise Refusal
    warnings.warn(
        f"{entry.key}: {word!r} is ignored; write a share of the device's memory (0.5) or a size (40G)", stacklevel=2
    )
    return None


def is_whole_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= UNLIMITED


def is_power_of_two(number: int) -> bool:
    return number.bit_count() == 1


def _whole_number(entry: Entry, token: str) -> int:
    digits = _leading("[0-9]+" if entry.strict else "[+-]?[0-9]+", entry, token, "stoull")
    magnitude = digits.lstrip("+-").lstrip("0") or "0"
    # Twenty digits suffice for 64 bits, and Python refuses to read thousands of them.
    if len(magnitude) > 20 or int(magnitude) > UNLIMITED:
        raise Refusal("stoull")
    return -int(magnitude) % 2**64 if digits[0] == "-" else int(magnitude)


def _leading(form: str, entry: Entry, token: str, complaint: str) -> str:
    match = re.match(form, token, re.IGNORECASE | re.ASCII)
    if match is None or (entry.strict and match.end() < len(token)):
        raise Refusal(complaint)
    return match[0]
