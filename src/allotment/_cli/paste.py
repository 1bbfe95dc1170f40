"""Prints the line to paste that applies settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.tune.search import Candidate


NO_ADVICE = "saves 1 % or more at every pace of other streams."
"""The end of a sentence about settings, none of which is worth a change."""


def print_lines_to_paste(console: Console, best_first: Sequence[Candidate], recorded: Candidate | None) -> None:
    """Print the line that applies the best settings, and one for PyTorch's best settings if those are others."""
    from rich.markup import escape

    from allotment._texts import exact_size

    chosen = _chosen(best_first)
    for each in chosen:
        console.print(escape(line_to_paste(each.settings)), soft_wrap=True)
    named = [(each.settings or "the defaults", each.paced_bytes) for each in chosen]
    if recorded is not None:
        named.append(("the recorded settings", recorded.paced_bytes))
    ranges = [f"{exact_size(paced[0])} to {exact_size(paced[1])} with {name}" for name, paced in named if paced]
    if ranges:
        console.print(
            "Frees waited for other streams, which finish at different times from run to run. Expect",
            soft_wrap=True,
        )
        for text in ranges:
            console.print(escape(f"    {text}"), soft_wrap=True)


def _chosen(best_first: Sequence[Candidate]) -> list[Candidate]:
    from allotment.lab.tune.candidates import is_ours

    own = next((each for each in best_first if not is_ours(each.settings)), None)
    best = best_first[0] if best_first else None
    return [each for each in dict.fromkeys((best, own)) if each is not None]


def line_to_paste(settings: str) -> str:
    """Return one line."""
    from allotment.lab.tune.candidates import OURS, is_ours

    if not settings:
        return "For unchanged PyTorch: unset PYTORCH_CUDA_ALLOC_CONF, the defaults are better"
    if settings in OURS:
        return "To paste, with Allotment under PyTorch: python -m allotment.torch --dense PROGRAM"
    if is_ours(settings):
        return f"To paste, with Allotment under PyTorch: ALLOTMENT_CONF={settings} python -m allotment.torch PROGRAM"
    return f"To paste, for unchanged PyTorch: PYTORCH_CUDA_ALLOC_CONF={settings}"
