"""Sizes as people write them: "512MiB", "1.5GiB", or a number of bytes."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from allotment.errors import SettingsError

UNLIMITED = 2**64 - 1
"""The largest 64-bit size; as `max_split_size` no block reaches it."""

MIB = 1 << 20

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", 1):
    _UNITS |= {f"{_letter}ib": 1 << 10 * _power, _letter: 1 << 10 * _power, f"{_letter}b": 1000**_power}
# Bounded lengths keep the arithmetic in the range of any sensible value.
_SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_ALLOWED = "a whole number of bytes, or a number with one of the units B, KiB, MiB, GiB, TiB, PiB"


def parse_size(size: str | SupportsIndex) -> int:
    """Return the bytes in `size`: a whole number, or text such as "512MiB" or "1.5GiB". Raises SettingsError.

    "G" is "GiB", as usual for memory; "GB" is 10**9 bytes. Text without a unit is bytes too, but rejected below 1 MiB,
    except 0: "80" almost certainly means 80 GiB, and "80B" says that it does not.
    """
    if isinstance(size, str):
        number, unit = _number_and_unit(size)
        if not unit and number is not None and 0 < number < MIB:
            allowed = f"{number}GiB or {number}MiB, or {number}B for bytes"
            raise SettingsError(
                f"invalid size: {size!r} has no unit, and {number} bytes are almost certainly not meant; "
                f"write {allowed}",
                value=size,
                allowed=allowed,
            )
    else:
        number = operator.index(size) if hasattr(size, "__index__") and not isinstance(size, bool) else None
    if number is None or not 0 <= number <= UNLIMITED:
        raise SettingsError(f"invalid size: {size!r}; write {_ALLOWED}", value=str(size), allowed=_ALLOWED)
    return number


def shortest_size(size: int) -> str:
    """Return `size` as text that `parse_size` reads back, in the largest unit that divides it: "80GiB"."""
    units = {"PiB": 1 << 50, "TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
    return next((f"{size // scale}{unit}" for unit, scale in units.items() if size and size % scale == 0), f"{size}B")


def _number_and_unit(text: str) -> tuple[int | None, str]:
    """Return the bytes that a text states and its unit as written; None if it is not a size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None, ""
    whole, fraction, unit = match[1], match[2] or "", match[3].lower()
    if unit not in _UNITS or (fraction and _UNITS[unit] == 1):
        return None, unit
    decimals: int = 10 ** len(fraction)
    return int(whole + fraction) * _UNITS[unit] // decimals, unit
