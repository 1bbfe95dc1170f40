from allotment._allocators.sizes cimport whole_size
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.arguments cimport refuse_pickling

from allotment._allocators import arrays
from allotment._allocators.buffer import Buffer


cdef class HostMemory:
    """Base of allocators of host memory without a device. Users hold a `CachingAllocator`."""

    def __reduce__(self):
        return refuse_pickling(self, "its memory belongs to this process; make one in the other process")

    cdef int adopt(self, address_t address, bytes_t size) except -1:
        return self.require_in_use(address, size)

    cdef int require_in_use(self, address_t address, bytes_t size) except -1:
        return 0

    def empty(self, size: SupportsIndex | str, /) -> Buffer:
        """Return an uninitialized buffer of `size` bytes, which returns to this allocator with its last reference.

        `size` is a number of bytes or text such as "1MiB". Raises what `allocate` raises.
        """
        count = whole_size(size)
        address = self.allocate(count)
        try:
            return Buffer(self, address, count)
        except BaseException:
            self.free(address)
            raise

    def _ready(self, size, stream):
        """A buffer for an array. Nothing queues work on memory without a device, so it is always ready."""
        return self.empty(size)

    def array(self, shape: int | tuple[int, ...], dtype: Any = "float64") -> NDArray[Any]:
        """Return an uninitialized NumPy array on this memory; the array keeps its memory alive.

        Raises TypeError for a dtype that holds Python objects, and what `allocate` raises.
        """
        return arrays.array(self, shape, dtype, None)
