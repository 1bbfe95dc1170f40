# Made from host_memory.pyx by `make stubs`: change it there.

from typing import Any, SupportsIndex

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer

class HostMemory:
    """What allocators of host memory without a device have in common; users hold a `CachingAllocator`."""

    def empty(self, size: SupportsIndex | str, /) -> Buffer:
        """A buffer of `size` bytes, contents undefined, that goes back to this allocator with its last reference.

        `size` is a number of bytes or text such as "1MiB". Raises what `allocate` raises.
        """
    def array(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
        """A NumPy array of this memory, contents undefined; the array keeps its memory alive.

        Raises TypeError for a dtype that holds Python objects, and what `allocate` raises.
        """
