"""The runs that are shown together: a recording, another one, or the same one under other settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from allotment._formats.torch_snapshot import HOST, Snapshot, naming
from allotment._settings import Settings
from allotment._viewer.answers import Run
from allotment._viewer.flame_page import flame_page
from allotment.errors import RequestError
from allotment.lab.explain.flame import flame_of
from allotment.lab.explain.study import Study
from allotment.lab.replay.gate import device_at_end
from allotment.lab.replay.run import Recording, devices_with_history, has_history, read_source, recording_of
from allotment.lab.timeline.pinned import timeline_of_pinned
from allotment.lab.timeline.timeline import timeline_of, timeline_of_end

__all__ = ["Runs"]

MOST_RUNS = 6
Progress = Callable[[str], None]


class Runs:
    """Runs side by side. Threads may share one."""

    def __init__(self, device: int | None = None, progress: Progress = lambda what: None) -> None:
        self.shown: list[Run] = []
        self._device = device
        self._progress = progress
        self._recordings: list[tuple[str, Recording]] = []
        self._adding = Lock()

    def read(self, source: str) -> None:
        """Read a snapshot and show it as it was recorded. Raises FormatError and OSError."""
        name = "standard input" if source == "-" else os.path.basename(source)
        self._progress("reading")
        snapshot = read_source(source)
        with naming(source):
            if has_history(snapshot):
                recording = recording_of(snapshot, self._device, self._progress)
                self._recordings.append((name, recording))
                self._add_replay(len(self._recordings) - 1, None)
            else:
                device = device_at_end(snapshot, self._device)
                timeline = timeline_of_end(snapshot, device)
                about = _about(name, "when the snapshot was taken", history=False)
                devices = np.unique(snapshot.segments.device).tolist()
                self.shown.append(Run(timeline, {**about, "device": device, "devices": devices}))
            if snapshot.pinned is not None:
                self._add_pinned(name, snapshot.pinned)

    def _add_pinned(self, name: str, snapshot: Snapshot) -> None:
        """Show the pinned memory of a snapshot beside it."""
        timeline = timeline_of_pinned(snapshot)
        about = _about(name, "pinned memory", history=timeline.last > 0)
        facts = {"device": HOST, "devices": [HOST], "events": len(snapshot.traces[0])}
        self.shown.append(Run(timeline, {**about, **facts}))

    def try_settings(self, settings: str, source: int = 0) -> Run:
        """Show a recording under other settings.

        Raises SettingsError, and RequestError if there is no such recording or no room for another run.
        """
        if not 0 <= source < len(self._recordings):
            raise RequestError("other settings need a recorded history, and this snapshot has none")
        Settings.parse(settings)
        with self._adding:
            for run in self.shown:
                if run.about["settings"] == settings and run.about["source"] == source:
                    return run
            if len(self.shown) >= MOST_RUNS:
                raise RequestError(f"{MOST_RUNS} runs are shown already; restart the viewer to see others")
            return self._add_replay(source, settings)

    def open_at(self, at: str) -> None:
        """Open the page at "explain", the moment that `allotment explain` describes, or at an entry by its number.

        That moment is the first request that ran out of memory, otherwise the peak. Raises RequestError.
        """
        run = self.shown[0]
        entries = run.timeline.entries
        if at == "explain":
            failures = [mark.moment for mark in run.timeline.marks if mark.kind == "oom"]
            run.about["opens_at"] = min(failures, default=run.timeline.peak_reserved[0])
            return
        last = int(entries[-1])
        if not at.isdecimal() or len(at) > len(str(last)) or int(at) > last:
            raise RequestError(f'--at takes "explain", or the number of an entry up to {last:,}, not {at[:40]!r}')
        run.about["opens_at"] = int(np.clip(np.searchsorted(entries, int(at), "right") - 1, 0, run.timeline.last))

    def flame(self, number: int) -> bytes:
        """Return the page of a flame graph of the recording that a run shows.

        Raises RequestError if it has no history.
        """
        source = self.shown[number].about["source"]
        if source < 0:
            raise RequestError("a flame graph needs a history, and the snapshot has none")
        name, recording = self._recordings[source]
        return flame_page(flame_of(Study(recording)), f"{name}, device {recording.device}")

    def _add_replay(self, source: int, settings: str | None) -> Run:
        name, recording = self._recordings[source]
        self._progress("replaying")
        deeds, chosen = recording.deeds(settings), recording.resolved(settings)
        timeline = timeline_of(recording, settings, deeds)
        about = {
            **_about(name, settings or "as recorded", history=True),
            "source": source,
            "settings": settings,
            "device": recording.device,
            "devices": devices_with_history(recording.snapshot),
            "events": recording.entries,
            "compat": chosen.compat,
            "placement": chosen.placement,
            "matches": deeds.matches_recording,
            "reason": deeds.reason,
            "ooms": deeds.ooms,
            "retries": deeds.retries,
            "driver_ms": round(deeds.driver_ms, 3),
        }
        run = Run(timeline, about)
        self._progress("drawing")
        timeline.columns()
        self.shown.append(run)
        return run


def _about(name: str, label: str, *, history: bool) -> dict[str, Any]:
    return {"name": name, "label": label, "history": history, "source": -1, "settings": None}
