# Made from host_memory.pyx by `make stubs`: change it there.

from typing import Any, SupportsIndex

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer

class HostMemory:
    def empty(self, size: SupportsIndex | str, /) -> Buffer: ...
    def array(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]: ...
