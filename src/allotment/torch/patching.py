"""Our answers under PyTorch's own names.

What is replaced are the functions of `torch._C` that `torch.cuda.memory` and `torch.accelerator` call, so that those
modules' functions work as they are: with their own parameters and messages, and also for whoever imported them before.
Only `MemPool` is replaced itself, because it is a class over a class of `torch._C`.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import torch  # type: ignore[import-not-found]
import torch.cuda.memory  # type: ignore[import-not-found]

from allotment.torch.answers import REPLACEMENTS
from allotment.torch.pool import MemPool

_lock = threading.Lock()
_originals: list[tuple[ModuleType, str, Any]] = []


def patch() -> None:
    """Let PyTorch's functions about memory tell of our allocator. A second time, nothing happens."""
    with _lock:
        if _originals:
            return
        for name, replacement in REPLACEMENTS.items():
            if hasattr(torch._C, name):  # they come and go with versions
                _replace(torch._C, name, replacement)
        for module in (torch.cuda.memory, torch.cuda):
            _replace(module, "MemPool", MemPool)


def unpatch() -> None:
    """Take back what `patch` did; without one, nothing happens."""
    with _lock:
        while _originals:
            module, name, original = _originals.pop()
            setattr(module, name, original)


def is_patched() -> bool:
    return bool(_originals)


def _replace(module: ModuleType, name: str, replacement: Any) -> None:
    _originals.append((module, name, getattr(module, name)))
    setattr(module, name, replacement)
