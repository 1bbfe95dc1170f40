"""Allotment under PyTorch: `install()` before the first use of a GPU, and all CUDA memory of PyTorch is ours.

Or run a program as it is: `python -m allotment.torch script.py`. The functions of `torch.cuda.memory` are here too,
telling of our allocator; `patch()` makes PyTorch's own do so.
"""

from allotment.torch._framework import torch as _torch  # noqa: F401  first, since it says what to install
from allotment.torch._install import install, installed_mode, is_installed, raw_allocator
from allotment.torch.memory import *  # noqa: F403
from allotment.torch.memory import __all__ as _of_memory

__all__ = ["install", "installed_mode", "is_installed", "raw_allocator", *_of_memory]
