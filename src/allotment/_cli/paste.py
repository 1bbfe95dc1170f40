"""The line to paste: how settings are put in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.tune.search import Candidate


def print_lines_to_paste(console: Console, best_first: Sequence[Candidate]) -> None:
    """How the best settings are put in force, and the best of PyTorch's own if those are not."""
    from rich.markup import escape

    from allotment._texts import exact_size

    chosen = _chosen([each.settings for each in best_first])
    for settings in chosen:
        console.print(escape(_line_to_paste(settings)), soft_wrap=True)
    paced = [each for each in best_first if each.settings in chosen and each.paced_bytes is not None]
    if paced:
        ranges = [
            f"{exact_size(least)} to {exact_size(most)} with {each.settings}"
            for each in paced
            for least, most in [each.paced_bytes or (0, 0)]
        ]
        console.print(
            escape(
                "Frees waited for other streams, and when those are done differs from run to run: expect "
                + ", ".join(ranges)
            )
        )


def _chosen(best_first: Sequence[str]) -> list[str]:
    from allotment.lab.tune.candidates import is_ours

    best = next((settings for settings in best_first if settings), None)
    own = next((settings for settings in best_first if settings and not is_ours(settings)), None)
    return [settings for settings in dict.fromkeys((best, own)) if settings is not None]


def _line_to_paste(settings: str) -> str:
    from allotment.lab.tune.candidates import is_ours

    if is_ours(settings):
        return f"To paste, with Allotment under PyTorch: ALLOTMENT_CONF={settings} python -m allotment.torch PROGRAM"
    return f"To paste, for PyTorch as it is: PYTORCH_CUDA_ALLOC_CONF={settings}"
