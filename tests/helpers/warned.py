"""The one warning a test is about, among those that garbage of earlier tests may add whenever it is collected."""

from __future__ import annotations

from collections.abc import Iterable
from warnings import WarningMessage


def only_warning(caught: Iterable[WarningMessage]) -> WarningMessage:
    """The only UserWarning of `caught`."""
    [warning] = (message for message in caught if message.category is UserWarning)
    return warning
