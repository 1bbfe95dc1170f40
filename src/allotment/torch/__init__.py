"""Allotment under PyTorch: `install()` before the first use of a GPU, and all CUDA memory of PyTorch is ours.

Or run a program as it is: `python -m allotment.torch script.py`.
"""

from allotment.torch.install import install, is_installed, raw_allocator

__all__ = ["install", "is_installed", "raw_allocator"]
