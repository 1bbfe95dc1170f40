"""What one recorded run comes to, in figures."""

from __future__ import annotations

from dataclasses import dataclass

from allotment.lab.replay.run import devices_with_history, read_recording

__all__ = ["Figures", "figures_of"]


@dataclass(frozen=True, slots=True)
class Figures:
    """A run as recorded."""

    file: str
    device: int
    events: int
    compat: str
    peak_requested_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    waste_ratio: float | None
    ooms: int
    devices: list[int]
    """Those that the file has a history of."""


def figures_of(file: str, device: int | None = None) -> Figures:
    """Read and replay one file. Raises FormatError, OSError."""
    recording = read_recording(file, device)
    result = recording.replay()
    return Figures(
        file=file,
        device=recording.device,
        events=result.events,
        compat=result.compat,
        peak_requested_bytes=result.peak_requested_bytes,
        peak_active_bytes=result.peak_active_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        waste_ratio=result.waste_ratio,
        ooms=result.ooms,
        devices=devices_with_history(recording.snapshot),
    )
