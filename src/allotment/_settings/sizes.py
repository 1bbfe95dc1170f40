"""Sizes as text: "512MiB", "1.5GiB", or a plain number of bytes."""

from __future__ import annotations

import re

from allotment.errors import SettingsError

UNLIMITED = 2**64 - 1
"""The largest size that 64 bits hold; as `max_split_size` it is the one that no block reaches."""

MIB = 1 << 20

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", 1):
    _UNITS |= {f"{_letter}ib": 1 << 10 * _power, _letter: 1 << 10 * _power, f"{_letter}b": 1000**_power}
# Bounded lengths keep the arithmetic in range of any value that could be meant.
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def parse_size(size: str | int) -> int:
    """Bytes in `size`: a whole number, or text such as "1024", "512MiB" or "1.5GiB". Raises SettingsError.

    "G" is "GiB", as it is where memory is meant; "GB" is 10**9 bytes.
    """
    number = size if type(size) is int else _size_of_text(str(size))
    if number is None or not 0 <= number <= UNLIMITED:
        allowed = "a whole number of bytes, or a number with one of the units B, KiB, MiB, GiB, TiB, PiB"
        raise SettingsError(f"invalid size: {size!r}; write {allowed}", value=str(size), allowed=allowed)
    return number


def shortest_size(size: int) -> str:
    """`size` bytes as `parse_size` reads it back, in the largest unit that it is a whole number of: "80GiB"."""
    units = {"PiB": 1 << 50, "TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
    return next((f"{size // scale}{unit}" for unit, scale in units.items() if size and size % scale == 0), str(size))


def _size_of_text(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    whole, fraction, unit = match[1], match[2] or "", match[3].lower()
    if unit not in _UNITS or (fraction and _UNITS[unit] == 1):
        return None
    decimals: int = 10 ** len(fraction)
    return int(whole + fraction) * _UNITS[unit] // decimals
