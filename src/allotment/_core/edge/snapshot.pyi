# Made from snapshot.pyx by `make stubs`: change it there.

from typing import Any

def assembled(
    segments: list[dict[str, Any]],
    histories: dict[int, list[dict[str, Any]]],
    device_count: int,
    settings: dict[str, Any],
    annotations: list[dict[str, Any]],
) -> dict[str, Any]: ...
