"""Identifies this process and its devices; handles are compared with it."""

from __future__ import annotations

import hashlib
import os
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from allotment._devices.families import BY_NAME, FAMILIES

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TOKEN_BYTES = 16

KINDS = (*(family.name for family in FAMILIES), "other")
"""Kinds of devices, by the numbers that they have in a handle."""


class _Process:
    """Values that are drawn again in a child of fork."""

    token = secrets.token_bytes(_TOKEN_BYTES)


def process_token() -> bytes:
    """Return random bytes that distinguish this process from every other, also from a later one with its number."""
    return _Process.token


def _start_anew() -> None:
    _Process.token = secrets.token_bytes(_TOKEN_BYTES)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


@cache
def boot_id() -> bytes:
    """Return 16 bytes that change when the machine boots; zeros if the system does not tell.

    Raises OSError if the system cannot tell right now, for instance without a free descriptor.
    """
    try:
        return bytes.fromhex(_BOOT.read_text().strip().replace("-", ""))
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
        return bytes(16)


def user_id() -> int:
    """Return the user that this process acts for."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def family_of(device: Device) -> str:
    return device.family if device.family in BY_NAME else "other"


def identity_of(device: Device) -> bytes:
    """Return 16 bytes that are equal for two devices with the same memory: a GPU has its own identity."""
    family = BY_NAME.get(device.family)
    text = device.name if family is None else family.identity(device)
    return bytes(16) if text is None else hashlib.blake2b(text.encode(), digest_size=16).digest()
