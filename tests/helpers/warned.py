"""Finds the one warning that a test expects, among those that garbage of earlier tests may cause."""

from __future__ import annotations

from collections.abc import Iterable
from warnings import WarningMessage


def only_warning(caught: Iterable[WarningMessage]) -> WarningMessage:
    """Return the only UserWarning of `caught`."""
    [warning] = (message for message in caught if message.category is UserWarning)
    return warning
