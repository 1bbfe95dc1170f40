"""vLLM's sleep mode on Allotment's tags.

    ALLOTMENT_VLLM=1 vllm serve MODEL --enable-sleep-mode

vLLM calls `allotment._adapters.vllm_plugin` in each of its processes. With the variable, Allotment serves PyTorch's
memory there, and vLLM's `CuMemAllocator` is the class here, for its own backend "cumem" and for ours, "allotment".
"""

import sys

from allotment._adapters.frameworks import import_framework

import_framework("allotment.vllm", "vllm.device_allocator.sleep_mode_backend", "vllm")

from allotment.torch._install import install as _install_for_torch  # noqa: E402  only with vLLM
from allotment.torch._install import is_installed as _is_torch_ours  # noqa: E402
from allotment.vllm._allocator import CuMemAllocator  # noqa: E402
from allotment.vllm._backend import AllotmentBackend  # noqa: E402

__all__ = ["AllotmentBackend", "CuMemAllocator", "install", "is_installed"]


def install() -> None:
    """Serve PyTorch's memory of this process, and be vLLM's allocator for memory that sleeps.

    Call it before PyTorch has memory on a GPU. Raises what `allotment.torch.install` raises.
    """
    from vllm.device_allocator import cumem  # type: ignore[import-not-found]

    if not _is_torch_ours():
        _install_for_torch()
    cumem.CuMemAllocator = CuMemAllocator
    cumem.cumem_available = True


def is_installed() -> bool:
    """Whether vLLM uses the allocator here."""
    return getattr(sys.modules.get("vllm.device_allocator.cumem"), "CuMemAllocator", None) is CuMemAllocator
