# Made from host_memory.pyx by `make stubs`: change it there.

from typing import Any, SupportsIndex

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer

class HostMemory:
    """Base of allocators of host memory without a device. Users hold a `CachingAllocator`."""

    def empty(self, size: SupportsIndex | str, /) -> Buffer:
        """Return an uninitialized buffer of `size` bytes, which returns to this allocator with its last reference.

        `size` is a number of bytes or text such as "1MiB". Raises what `allocate` raises.
        """
    def array(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
        """Return an uninitialized NumPy array on this memory; the array keeps its memory alive.

        Raises TypeError for a dtype that holds Python objects, and what `allocate` raises.
        """
