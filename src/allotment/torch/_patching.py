"""Puts our replacements under PyTorch's own names.

The patch replaces the functions of `torch._C` that `torch.cuda.memory` and `torch.accelerator` call. So the functions
of those modules keep their parameters and messages, also in programs that imported them before. Only `MemPool` is
replaced itself, because it is a class over a class of `torch._C`. The patch also keeps cuDNN's search off, which would
raise.
"""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found]
import torch.cuda.memory  # type: ignore[import-not-found]

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment.torch import _cudnn as cudnn
from allotment.torch._pool import MemPool
from allotment.torch._process_state import process_state
from allotment.torch._replacements import REPLACEMENTS

_lock = fork_safe_lock()
_originals: list[tuple[Any, str, Any]] = []


def patch() -> None:
    """Make PyTorch's functions about memory report our allocator. Does nothing the second time, and in deep mode."""
    with _lock:
        if _originals or process_state.deep:
            return
        for name, replacement in REPLACEMENTS.items():
            if hasattr(torch._C, name):  # not every version has all of them
                _replace(torch._C, name, replacement)
        for module in (torch.cuda.memory, torch.cuda):
            _replace(module, "MemPool", MemPool)
        for place, name in cudnn.places():
            _replace(place, name, cudnn.keep_search_off)
        if torch._C._get_cudnn_benchmark():
            cudnn.keep_search_off(True)


def unpatch() -> None:
    """Undo `patch`; does nothing without it."""
    with _lock:
        while _originals:
            place, name, original = _originals.pop()
            setattr(place, name, original)


def is_patched() -> bool:
    """Whether PyTorch's own functions show this allocator's figures."""
    return bool(_originals)


def _replace(place: Any, name: str, replacement: Any) -> None:
    _originals.append((place, name, getattr(place, name)))
    setattr(place, name, replacement)
