"""Keeps cuDNN's search for the fastest convolution off.

The search calls the allocator's `cacheInfo` for the largest workspace, and PyTorch refuses that call for every plug-in:
the first convolution would raise. Without the search cuDNN uses its heuristics.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch  # type: ignore[import-not-found]
import torch.backends.cudnn  # type: ignore[import-not-found]

SETTER = "_set_cudnn_benchmark"
_set_benchmark = getattr(torch._C, SETTER)  # read here, because the patch replaces it later


def places() -> list[tuple[Any, str]]:
    """Where PyTorch keeps the function that switches the search, as (object, attribute)."""
    switch = vars(type(torch.backends.cudnn)).get("benchmark")
    return [(torch._C, SETTER), *([(switch, "setter")] if hasattr(switch, "setter") else [])]


def keep_search_off(enabled: bool) -> None:
    """Replacement of PyTorch's function: warns if the program switches the search on."""
    if enabled:
        warnings.warn(
            "torch.backends.cudnn.benchmark stays False: PyTorch lets no allocator but its own take part in cuDNN's "
            "search",
            stacklevel=3,
        )
    _set_benchmark(False)
