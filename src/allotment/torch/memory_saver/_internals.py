"""Internals of torch_memory_saver that programs read: the configuration of the calling thread.

Its C functions are reached as `torch_memory_saver._impl._binary_wrapper.cdll.tms_get_...()`, and give C strings.
"""

from __future__ import annotations

from allotment.torch.memory_saver import _regions as regions


class _Functions:
    def tms_get_interesting_region(self) -> bool:
        return regions.current().active

    def tms_get_current_tag(self) -> bytes:
        return regions.current().tag.encode()

    def tms_get_enable_cpu_backup(self) -> bool:
        return regions.current().keep == "host"

    def tms_get_enable_disk_backup(self) -> bool:
        return regions.current().keep == "file"

    def tms_get_cpu_backup_backend(self) -> bytes:
        return regions.current().backend.encode()


class _BinaryWrapper:
    def __init__(self) -> None:
        self.cdll = _Functions()


class Internals:
    """Created when the first region, pause or setting needs PyTorch's memory to be served."""

    def __init__(self) -> None:
        self._binary_wrapper = _BinaryWrapper()
