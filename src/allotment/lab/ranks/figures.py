"""The figures of one recorded run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allotment.lab.explain.kinds import KindBytes, kinds_at
from allotment.lab.explain.study import Study
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
    recorded_peak_active_bytes: int
    waste_ratio: float | None
    """Most reserved over `recorded_peak_active_bytes`."""
    ooms: int
    devices: list[int]
    """The devices that the file has a history of."""
    kinds: list[KindBytes]
    """Memory in use at its peak, by kind of memory."""


def figures_of(file: str, device: int | None = None) -> Figures:
    """Read and replay one file. Raises FormatError, OSError."""
    recording = read_recording(file, device)
    result = recording.replay()
    study = Study(recording)
    return Figures(
        file=file,
        device=recording.device,
        events=result.events,
        compat=result.compat,
        peak_requested_bytes=result.peak_requested_bytes,
        peak_active_bytes=result.peak_active_bytes,
        peak_reserved_bytes=result.peak_reserved_bytes,
        recorded_peak_active_bytes=result.recorded_peak_active_bytes,
        waste_ratio=result.waste_ratio,
        ooms=result.ooms,
        devices=devices_with_history(recording.snapshot),
        kinds=kinds_at(study, int(np.argmax(study.in_use))),
    )
