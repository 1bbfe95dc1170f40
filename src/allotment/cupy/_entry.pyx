"""The two C functions through which CuPy allocates.

CuPy calls them with the interpreter lock held, so they go straight to the allocator, as Python would: a request that
hits the cache needs no other lock, and the Python stack is available for the history.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport intptr_t, uintptr_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.tenants cimport Tenant
from allotment._allocators.pinned.allocator cimport PinnedAllocator
from allotment._core.contract.types cimport address_t
from allotment._core.tools.interpreter cimport interpreter_ends
from allotment._devices.per_thread cimport own_thread_stream

from allotment._adapters.frameworks import stream_handle

ctypedef intptr_t (*stream_of_t)(int device) except? -1

cdef enum:
    PER_THREAD = 2
    PAGE = 4096         # handles are addresses, except for small numbers that name default streams


cdef class CupySource:
    """CupySource(tenants, stream_of)\n--\n
    The source of CuPy's memory; both functions get its `address` as first argument.

    `stream_of` is a capsule with CuPy's own function that returns the calling thread's current stream on a device;
    ValueError if its signature differs. CuPy's memory knows the source only by that address, so the source lives as
    long as memory from it.
    """

    cdef readonly object tenants
    cdef list found             # Tenant by device number, None before the first request
    cdef stream_of_t stream_of

    def __init__(self, tenants: Any, stream_of: Any):
        self.tenants = tenants
        self.found = []
        self.stream_of = <stream_of_t> PyCapsule_GetPointer(stream_of, b"intptr_t (int)")

    @property
    def address(self) -> int:
        return <uintptr_t> <PyObject*> self

    cdef Tenant on(self, int device):
        while device >= len(self.found):
            self.found.append(None)
        if self.found[device] is None:
            self.found[device] = self.tenants.on(device)
        return self.found[device]

    cdef intptr_t stream(self, int device) except? -1:
        cdef intptr_t handle = self.stream_of(device)
        if handle == 0 or handle >= PAGE:
            return handle
        return <intptr_t> own_thread_stream() if handle == PER_THREAD else stream_handle(handle)


@cython.final
cdef class PinnedBlock:
    """PinnedBlock(pinned, size)\n--\n
    A block of pinned memory as CuPy's pointers hold one; it is freed with them.
    """

    cdef PinnedAllocator pinned
    cdef readonly object ptr
    cdef readonly object size

    def __cinit__(self, PinnedAllocator pinned not None, size):
        self.pinned = pinned
        self.size = size
        self.ptr = pinned.allocate(size)

    @cython.embedsignature(False)    # the class has it
    def __init__(self, pinned: PinnedAllocator, size: int):
        pass    # `__cinit__` has read them, so that every object is complete

    def record_stream(self, stream: int) -> None:
        """Wait for the work of a stream before the block is reused."""
        self.pinned.record_stream(self.ptr, stream)

    def __del__(self):
        if self.ptr is not None and not interpreter_ends():
            self.pinned.release(self.ptr, ())


cdef intptr_t allocate(void* source, size_t size, int device) except? -1:
    """Return -1 with an exception set when there is no memory, as CuPy's own functions do; CuPy raises it."""
    cdef CupySource self = <CupySource> source
    cdef Tenant tenant = self.on(device)
    address = tenant.allocator.allocate(size, self.stream(device), 0, tenant.context)
    Py_INCREF(self)
    return <intptr_t> <address_t> address


cdef void release(void* source, void* address, int device) noexcept:
    cdef CupySource self = <CupySource> source
    cdef Allocator allocator
    if <intptr_t> address == -1:    # of a failed request, from a CuPy that does not know that value
        return
    try:
        allocator = (<Tenant> self.found[device]).allocator
        # The current stream matters only while a graph may be captured; otherwise it is not asked for.
        allocator.free_from_stream(
            <address_t> address, self.stream(device) if allocator.engine.impure_routes != 0 else 0)
    finally:
        Py_DECREF(self)


ALLOCATE: int = <uintptr_t> &allocate
"""Address of `void* allocate(void* source, size_t size, int device)`. Raises as the allocator does."""

RELEASE: int = <uintptr_t> &release
"""Address of `void release(void* source, void* address, int device)`."""
