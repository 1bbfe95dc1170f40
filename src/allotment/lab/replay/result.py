"""What came of a replay, and where it first differed from the recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allotment._core.edge.words import Action, BlockState, word_of
from allotment.lab.replay import version
from allotment.lab.showing import Shown, ShownTable

__all__ = ["Difference", "Result", "block_shown", "entry_shown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first recorded entry that did not come out."""

    entry: int | None
    """Index in the device's trace; None where all entries came out and the state at the end did not."""
    expected: dict[str, Any] | None
    got: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Result(Shown):
    """What came of a replay. Peaks and device calls are those since the history began."""

    device: int
    events: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    recorded_peak_active_bytes: int
    """Most memory active at once if every block lives until its recorded free is done: what is to be held."""
    placement: str
    device_allocations: int
    device_frees: int
    retries: int
    ooms: int
    matches_recording: bool | None
    """Whether every recorded decision was made again; None if that cannot be said, with the `reason`."""
    reason: str | None
    first_difference: Difference | None
    seconds: float
    live: list[int]
    """Bytes in use over time, each the most of its stretch."""
    reserved: list[int]
    blocks: list[tuple[int, int, int]]
    """Address, size and state of the blocks at the end."""
    driver_calls: dict[str, int]
    """What a driver would have been called for, by kind."""
    driver_ms: float
    """What that costs, by the table of `driver_costs.json`."""
    calls_last_quarter: int
    """Calls about memory in the last quarter of the history."""
    waits: int
    """Streams that were made to wait for others, on the device."""
    chunks: int
    views: int
    """Chunks, and places they are mapped at, at the end."""
    compat: str
    """The version of PyTorch by whose rules it was replayed."""
    compat_source: version.CompatSource

    @property
    def waste_ratio(self) -> float | None:
        """Most memory reserved over the most that was active at once in the recording.

        Not over what was active in the replay: a placement that has blocks free earlier would seem to waste more.
        """
        return self.peak_reserved_bytes / self.recorded_peak_active_bytes if self.recorded_peak_active_bytes else None

    def tables(self) -> list[ShownTable]:
        """One row of figures."""
        names = (
            *("events", "peak_requested_bytes", "peak_active_bytes", "peak_reserved_bytes"),
            *("recorded_peak_active_bytes", "waste_ratio"),
            *("driver_ms", "retries", "ooms", "compat", "placement", "matches_recording"),
        )
        return [ShownTable("A recorded run, replayed", names, [[getattr(self, name) for name in names]])]


def entry_shown(action: int, address: int, size: int, stream: int) -> dict[str, Any]:
    place = "device_free" if action == Action.OOM else "addr"
    return {"action": word_of(Action(action)), place: address, "size": size, "stream": stream}


def block_shown(address: int, size: int, state: int) -> dict[str, Any]:
    return {"address": address, "size": size, "state": word_of(BlockState(state))}
