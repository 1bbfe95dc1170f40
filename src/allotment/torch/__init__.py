"""Allotment under PyTorch: after `install()`, it serves all CUDA memory of PyTorch.

Call `install()` before the first use of a GPU, or run a program unchanged: `python -m allotment.torch script.py`. The
functions of `torch.cuda.memory` are here too, for our allocator; `patch()` puts them under PyTorch's names.
"""

from typing import Any as _Any

from allotment.torch._framework import torch as _torch  # noqa: F401  first, since it says what to install
from allotment.torch._install import install, installed_mode, is_installed, raw_allocator
from allotment.torch._tags import pause, resume
from allotment.torch.memory import *  # noqa: F403
from allotment.torch.memory import __all__ as _of_memory

__all__ = [
    "install",
    "installed_mode",
    "is_installed",
    "pause",
    "raw_allocator",
    "resume",
    "sanitize",
    *_of_memory,
]


def sanitize() -> _Any:
    """`with allotment.torch.sanitize() as sanitizers:` finds races between streams inside the block.

    Yields the sanitizer of each GPU by index, with its `reports`; also warns of each finding with a SanitizerWarning.
    Needs `install` first, and a PyTorch that reports its operations to Python. Inside the block, operations cost
    several times as much.
    """
    from allotment.torch._sanitizer import sanitize as begin  # late: it loads parts of PyTorch that few programs need

    return begin()
