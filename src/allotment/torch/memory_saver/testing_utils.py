"""Names that torch_memory_saver's tests and examples import."""

from __future__ import annotations

import torch

from allotment.torch.memory_saver.utils import is_xpu

__all__ = ["empty_cache", "get_and_print_gpu_memory", "get_device", "is_xpu"]


def get_device() -> str:
    """The name of PyTorch's device."""
    return "cuda"


def empty_cache() -> None:
    """Release the allocator's cached memory."""
    torch.cuda.empty_cache()


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """Return, and print, how many bytes of a GPU are in use by all processes."""
    free, total = torch.cuda.mem_get_info(gpu_id)
    used: int = total - free
    print(f"GPU {gpu_id} memory: {used / 1024**3:.2f} GB ({message})")
    return used
