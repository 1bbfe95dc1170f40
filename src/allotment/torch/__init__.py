"""Allotment under PyTorch: `install()` before the first use of a GPU, and all CUDA memory of PyTorch is ours.

Or run a program as it is: `python -m allotment.torch script.py`. The functions of `torch.cuda.memory` are here too,
telling of our allocator; `patch()` makes PyTorch's own do so.
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
    """`with allotment.torch.sanitize() as sanitizers:` looks for races between streams inside the block.

    Gives the sanitizer of each GPU by index, with its `reports`; each finding is a SanitizerWarning too. Needs
    `install` first, and a PyTorch that tells of its operations. Operations cost several times as much meanwhile.
    """
    from allotment.torch._sanitizer import sanitize as begin  # late: it needs parts of PyTorch that few programs load

    return begin()
