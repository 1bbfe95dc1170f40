# Made from memory.pyx by `make stubs`: change it there.

from typing import Any

from allotment._core.contract.table import Device

class PinnedMemory(Device):
    def __init__(self, inner: Any, settings: Any, numa_node: int | None) -> None: ...
