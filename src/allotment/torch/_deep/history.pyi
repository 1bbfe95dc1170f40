# Made from history.pyx by `make stubs`: change it there.

from typing import Any

from allotment._settings.record import Settings

def skippable(settings: Settings, names: set[str]) -> set[str]:
    """What can be left out of a history by the rules of a version: the others are passed over."""

def frames_of(context: int) -> list[dict[str, Any]]:
    """The frames of one of PyTorch's contexts, innermost first."""
