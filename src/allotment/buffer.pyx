"""Memory that frees itself."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint64_t

from allotment.core.backend cimport IS_HOST


cdef class Buffer:
    """A block of an allocator, given back when nobody refers to it any more."""
    cdef readonly object allocator
    cdef readonly uint64_t address
    cdef readonly uint64_t size
    cdef readonly object stream
    cdef object __weakref__

    def __cinit__(self, allocator, address, size, stream=0):
        self.allocator = allocator
        self.size = size
        self.stream = stream
        self.address = address

    def __dealloc__(self):
        if self.address != 0 and self.allocator is not None:
            self.allocator.free(self.address)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not self.allocator.device.capabilities & IS_HOST:
            raise BufferError(f"memory of {self.allocator.device.name} cannot be read by this process directly")
        PyBuffer_FillInfo(view, self, <void*> self.address, self.size, False, flags)

    def record_stream(self, stream):
        """Declare that work on `stream` uses this memory."""
        self.allocator.record_stream(self.address, stream)

    def __repr__(self):
        return f"<Buffer of {self.size} bytes at {self.address:#x} on {self.allocator.device.name}>"
