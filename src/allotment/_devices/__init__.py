"""Opens a device by name, and loads its backend only at that moment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from allotment._devices.families import FAMILIES, Family
from allotment.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

__all__ = ["device_name", "is_device_name", "open_device"]


def device_name(name: str) -> str:
    """Return the canonical form of a device name. Raises RequestError for an unknown name."""
    family, match = _family_of(name)
    return family.canonical(match)


def is_device_name(name: str) -> bool:
    """Whether a name stands for a device."""
    return any(family.pattern.fullmatch(name) for family in FAMILIES)


def open_device(name: str, *, shareable: bool = False) -> Device:
    """Open the device of a name: "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1".

    With `shareable`, other processes can open host memory; memory of other devices is always shareable.
    """
    family, match = _family_of(name)
    try:
        return family.open(match, shareable)
    except ImportError as error:
        raise UnsupportedError(
            f"this build of allotment does not support device {name!r}, which needs Linux: {error}"
        ) from error


def _family_of(name: str) -> tuple[Family, re.Match[str]]:
    """Return the family whose devices have such names. Raises TypeError, RequestError."""
    if isinstance(name, type):
        raise TypeError(f"{name.__name__} is a class; pass an object of it as the device: {name.__name__}()")
    if not isinstance(name, str):
        raise TypeError(f'a device must be a name such as "cuda:0" or a device object, not {type(name).__name__}')
    for family in FAMILIES:
        if match := family.pattern.fullmatch(name):
            return family, match
    examples = ", ".join(f'"{example}"' for family in FAMILIES for example in family.examples)
    raise RequestError(f"unknown device {name!r}; use {examples} or a device object")
