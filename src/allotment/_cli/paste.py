"""The line to paste: how settings are put in force."""

from __future__ import annotations

from collections.abc import Sequence


def lines_to_paste(best_first: Sequence[str]) -> list[str]:
    """How the best settings are put in force, and the best of PyTorch's own if those are not."""
    from allotment.lab.tune.candidates import is_ours

    best = next((settings for settings in best_first if settings), None)
    own = next((settings for settings in best_first if settings and not is_ours(settings)), None)
    return [_line_to_paste(settings) for settings in dict.fromkeys((best, own)) if settings is not None]


def _line_to_paste(settings: str) -> str:
    from allotment.lab.tune.candidates import is_ours

    if is_ours(settings):
        return f"ALLOTMENT_CONF={settings} python -m allotment.torch PROGRAM"
    return f"PYTORCH_CUDA_ALLOC_CONF={settings}"
