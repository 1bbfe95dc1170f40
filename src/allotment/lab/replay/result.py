"""The result of a replay, and its first difference from the recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allotment._core.edge.words import Action, BlockState, word_of
from allotment.lab.notebook import NotebookResult, NotebookTable
from allotment.lab.replay import version

__all__ = ["Difference", "Result", "block_shown", "entry_shown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first recorded entry that was not reproduced."""

    entry: int | None
    """Index in the device's trace; None if all entries are equal and only the final state differs."""
    expected: dict[str, Any] | None
    got: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Result(NotebookResult):
    """The result of a replay. Peaks and device calls are those since the history began."""

    device: int
    events: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    recorded_peak_active_bytes: int
    """Peak of active memory if every block lives until its recorded free completes: the memory that must be held."""
    placement: str
    device_allocations: int
    device_frees: int
    retries: int
    ooms: int
    matches_recording: bool | None
    """Whether every recorded decision was reproduced; None if unknown, with the `reason`."""
    reason: str | None
    first_difference: Difference | None
    seconds: float
    live: list[int]
    """Bytes in use over time; each value is the maximum of its interval."""
    reserved: list[int]
    blocks: list[tuple[int, int, int]]
    """Address, size and state of the blocks at the end."""
    driver_calls: dict[str, int]
    """Driver calls by kind."""
    driver_ms: float
    """The cost of these calls, by the table of `driver_costs.json`."""
    calls_last_quarter: int
    """Calls about memory in the last quarter of the history."""
    waits: int
    """How often a stream was made to wait for another one, on the device."""
    chunks: int
    views: int
    """Chunks, and places they are mapped at, at the end."""
    compat: str
    """The version of PyTorch whose rules the replay used."""
    compat_source: version.CompatSource

    @property
    def waste_ratio(self) -> float | None:
        """Peak of reserved memory over the recording's peak of active memory.

        Not over the replay's: a placement that frees blocks earlier would seem to waste more.
        """
        return self.peak_reserved_bytes / self.recorded_peak_active_bytes if self.recorded_peak_active_bytes else None

    def tables(self) -> list[NotebookTable]:
        """One row of figures."""
        names = (
            *("events", "peak_requested_bytes", "peak_active_bytes", "peak_reserved_bytes"),
            *("recorded_peak_active_bytes", "waste_ratio"),
            *("driver_ms", "retries", "ooms", "compat", "placement", "matches_recording"),
        )
        return [NotebookTable("A recorded run, replayed", names, [[getattr(self, name) for name in names]])]


def entry_shown(action: int, address: int, size: int, stream: int) -> dict[str, Any]:
    place = "device_free" if action == Action.OOM else "addr"
    return {"action": word_of(Action(action)), place: address, "size": size, "stream": stream}


def block_shown(address: int, size: int, state: int) -> dict[str, Any]:
    return {"address": address, "size": size, "state": word_of(BlockState(state))}
