# Made from history.pyx by `make stubs`: change it there.

from typing import Any

from allotment._settings.record import Settings

def skippable(settings: Settings, names: set[str]) -> set[str]: ...
def frames_of(context: int) -> list[dict[str, Any]]: ...
