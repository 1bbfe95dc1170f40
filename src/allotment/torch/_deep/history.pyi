# Made from history.pyx by `make stubs`: change it there.

from typing import Any

from allotment._settings.record import Settings

def skippable(settings: Settings, names: set[str]) -> set[str]:
    """Return the events that this version's rules can leave out of a history; ignore other names."""

def frames_of(context: int) -> list[dict[str, Any]]:
    """The frames of one of PyTorch's contexts, innermost first."""
