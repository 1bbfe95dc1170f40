"""What to change, in this order: the program, settings, the device.

Each finding about the program names the lines of code, and says what the peak would be without it if that can be
computed. Findings that would gain less than 1 % of reserved memory are omitted. For memory that grows with every step
no settings are suggested: it runs out under any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from allotment._texts import exact_size, signed_size
from allotment.lab.explain.causes import Scene, causes_of
from allotment.lab.explain.failure import Failure
from allotment.lab.explain.growth import Growth
from allotment.lab.explain.holders import UNKNOWN
from allotment.lab.tune.search import WORTH_SAYING, Candidate

__all__ = ["Advice", "advice_of"]

MOST_OF_PROGRAM = 4
"""Number of findings about the program that are reported."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    kind: Literal["program", "settings", "device"]
    text: str
    gain_bytes: int
    """The most bytes that it saves, as far as known; for a device, minus what it lacks."""


def advice_of(
    scene: Scene,
    growth: Growth | None,
    failure: Failure | None,
    recorded: Candidate,
    suggestions: Sequence[Candidate],
    tried: Sequence[Candidate],
) -> list[Advice]:
    """Return all advice.

    `suggestions` are the settings worth following; `tried` is what all settings need without a limit.
    """
    least = WORTH_SAYING * scene.peak_reserved_bytes
    found = [Advice("program", _growth_shown(growth, scene), growth.total_bytes)] if growth is not None else []
    program = sorted(causes_of(scene), key=lambda cause: (cause.rank, -cause.gain_bytes))
    found += [Advice("program", each.text, each.gain_bytes) for each in program if each.gain_bytes >= least]
    found = found[:MOST_OF_PROGRAM]
    if growth is not None:
        return found
    found += [Advice("settings", _settings_shown(each, recorded), _gain(each, recorded)) for each in suggestions]
    if failure is not None and not suggestions:
        found.append(_device(failure, tried))
    return found


def _gain(candidate: Candidate, recorded: Candidate) -> int:
    return recorded.peak_reserved_bytes - candidate.peak_reserved_bytes


def _settings_shown(candidate: Candidate, recorded: Candidate) -> str:
    change = signed_size(candidate.peak_reserved_bytes - recorded.peak_reserved_bytes)
    text = (
        f"{candidate.settings or 'the default settings'}: {exact_size(candidate.peak_reserved_bytes)} reserved at the"
        f" most ({change}), driver time {candidate.driver_ms - recorded.driver_ms:+,.1f} ms"
    )
    if candidate.waits > recorded.waits:
        text += f", {candidate.waits - recorded.waits:,} more waits of one stream for another"
    low, high = candidate.paced_bytes or (0, 0)
    if low < high:
        text += f"; {exact_size(low)} to {exact_size(high)} if other streams finish earlier or later"
    return text


def _growth_shown(growth: Growth, scene: Scene) -> str:
    """Return the sentence about a leak, and what may hold the memory."""
    text = f"Memory grows by {exact_size(growth.bytes_per_step)} a step"
    if growth.where != UNKNOWN:
        text += f" at {growth.where}"
    others = len(growth.lines) - 1
    if others and growth.where != UNKNOWN:
        text += f" and {others} other line{'s' if others > 1 else ''}"
    text += f", since step {growth.since_step:,}"
    if growth.runs_out_at_step is not None:
        text += f"; out of memory at step {growth.runs_out_at_step:,}"
    text += ". "
    if growth.hook is not None:
        text += f"The hook {growth.hook} allocates it and something keeps it: remove the hook, or keep less."
    elif growth.kind == "activations" and growth.holder is not None:
        text += (
            "It is what a backward pass would need, so something keeps tensors together with their graph. The last one"
            f" kept in each step is a number from {growth.holder}: keep its item() or detach() instead."
        )
    elif growth.kind == "activations":
        text += (
            "It was allocated in the forward pass and outlives its step: a list, a hook or a closure keeps tensors, or"
            " their graph."
        )
    else:
        text += "Something keeps these blocks after their step: a list, a dictionary or a cache without a limit."
    if growth.runs_out_at_step is None and growth.bytes_per_step > 0:
        text += f" Each GiB more of memory lasts for {max(1, (1 << 30) // growth.bytes_per_step):,} steps."
    return text


def _device(failure: Failure, tried: Sequence[Candidate]) -> Advice:
    """Return the smallest device that would suffice for the recorded requests."""
    best = min(tried, key=lambda each: each.peak_reserved_bytes)
    text = (
        f"None of the settings that were tried fits on {exact_size(failure.capacity)}. What was recorded needs"
        f" {exact_size(best.peak_reserved_bytes)} under {best.settings or 'the default settings'}"
    )
    if failure.ends_recording:
        text += ", and the recording ends at the failure: the program may need more later"
    return Advice("device", text + ".", failure.capacity - best.peak_reserved_bytes)
