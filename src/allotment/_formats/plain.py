"""The types of plain values, which carry no code: what a pickle yields if nothing in it may become an object."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Plain", "Scalar"]

Scalar: TypeAlias = bool | int | float | str | bytes | None
Plain: TypeAlias = "Scalar | list[Plain] | tuple[Plain, ...] | dict[Scalar, Plain]"
