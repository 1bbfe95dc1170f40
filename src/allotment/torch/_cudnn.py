"""cuDNN's search for the fastest convolution, which has to stay off.

The search asks the allocator how large a workspace may be (`cacheInfo`), and PyTorch refuses that question to every
plug-in: the first convolution would raise. Without the search cuDNN goes by its own heuristics.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch  # type: ignore[import-not-found]
import torch.backends.cudnn  # type: ignore[import-not-found]

SETTER = "_set_cudnn_benchmark"
_set_benchmark = getattr(torch._C, SETTER)  # taken here, because the patch puts ours in its place


def places() -> list[tuple[Any, str]]:
    """Where PyTorch keeps the function that switches the search, as (object, attribute)."""
    switch = vars(type(torch.backends.cudnn)).get("benchmark")
    return [(torch._C, SETTER), *([(switch, "setter")] if hasattr(switch, "setter") else [])]


def keep_search_off(enabled: bool) -> None:
    """In the place of PyTorch's own function: says so if somebody wants the search."""
    if enabled:
        warnings.warn(
            "torch.backends.cudnn.benchmark stays False: PyTorch lets no allocator but its own take part in cuDNN's "
            "search",
            stacklevel=3,
        )
    _set_benchmark(False)
