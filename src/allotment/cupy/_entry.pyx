"""A pair of C functions through which CuPy allocates: see the stub, cupy_entry.pyi.

CuPy calls them with the interpreter lock held, so they go straight to the allocator, as Python would: a request that
hits the cache needs no other lock, and its stack is there for the history.
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
    What CuPy's memory comes from: the first argument of both functions is its `address`.

    `stream_of` is CuPy's own function that tells the calling thread's current stream on a device, as a capsule;
    ValueError if it is of another form. CuPy's memory knows the source by that address alone, so the source lives as
    long as memory from it.
    """

    cdef readonly object tenants
    cdef list found             # Tenant by device number, None where there was no request yet
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
    A block of pinned memory as CuPy's pointers hold one; it goes back when they are gone.
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
        pass    # `__cinit__` has read them, so that an object is whole as soon as it is there

    def record_stream(self, stream: int) -> None:
        """Wait for the work of a stream before the block is handed out again."""
        self.pinned.record_stream(self.ptr, stream)

    def __del__(self):
        if self.ptr is not None and not interpreter_ends():
            self.pinned.release(self.ptr, ())


cdef intptr_t allocate(void* source, size_t size, int device) except? -1:
    """Returns -1 with an exception set when there is no memory: what CuPy's own functions do, so that it raises it."""
    cdef CupySource self = <CupySource> source
    cdef Tenant tenant = self.on(device)
    address = tenant.allocator.allocate(size, self.stream(device), 0, tenant.context)
    Py_INCREF(self)
    return <intptr_t> <address_t> address


cdef void release(void* source, void* address, int device) noexcept:
    cdef CupySource self = <CupySource> source
    cdef Allocator allocator
    if <intptr_t> address == -1:    # of a request that failed, from a CuPy that does not know it
        return
    try:
        allocator = (<Tenant> self.found[device]).allocator
        # The current stream decides only where a graph may be captured; else it need not be asked for.
        allocator.release_working_on(
            <address_t> address, self.stream(device) if allocator.engine.impure_routes != 0 else 0)
    finally:
        Py_DECREF(self)


ALLOCATE: int = <uintptr_t> &allocate
"""Address of `void* allocate(void* source, size_t size, int device)`. Raises as the allocator does."""

RELEASE: int = <uintptr_t> &release
"""Address of `void release(void* source, void* address, int device)`."""
