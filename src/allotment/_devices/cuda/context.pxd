"""One device of the driver within this process, and how a call enters its context.

PyTorch, CuPy and the CUDA runtime use the primary context too, so addresses, streams and events mean the same to all of
them. The package retains it when the device is first used and keeps it until the process ends: memory allocated through
C pointers may outlive every Python object of the package.

A call needs the context to be current. It usually is, and then `enter` does nothing; otherwise `enter` pushes it for
the duration of the call, so that the thread gets its own context back. Every driver call stands between

    if not enter(context, &visit):
        return DEVICE_ERROR
    result = driver.cu...
    return leave(&visit, b"cu...", result)
"""

from libc.stddef cimport size_t

from allotment._core.contract.table cimport status_t
from allotment._core.contract.types cimport bytes_t, device_t
from allotment._core.tools.pointer_map cimport PointerMap
from allotment._devices.cuda.driver cimport (
    CUcontext, CUdevice, CUmemAllocationProp, CUmemoryPool, CUresult, CUstream)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

cdef struct CudaContext:
    device_t ordinal            # the driver's number of this device; also its index in reports
    CUdevice device
    CUcontext handle            # NULL until the device is first used
    pthread_mutex_t mutex       # guards the handle until it is set, and everything below
    PointerMap streams          # created here, and never destroyed: handle -> not NULL
    CUstream* parked            # streams that users have destroyed, sorted by handle
    size_t parked_count
    size_t parked_capacity
    PointerMap chunks           # existing chunks: handle -> how often it was returned
    PointerMap descriptors      # of exported chunks: handle -> descriptor + 1, open as long as the chunk
    PointerMap ipc_handles      # of exported segments: base -> CUipcMemHandle, the same each time
    CUmemoryPool pool           # the device's default pool; NULL before its first use

cdef struct CudaBackend:        # what `self` of a table points to
    CudaContext* context
    CUmemAllocationProp chunk_properties    # of the next chunk; loses handle types that the machine refuses
    bytes_t granularity                     # 0 if the device has no virtual memory
    bytes_t total                           # all memory of the device

cdef struct Visit:              # one stay of a thread in a context
    bint has_pushed

cdef inline CudaContext* context_in(void* self) noexcept nogil:
    return (<CudaBackend*> self).context

# The context of a device by index; opens the driver. Raises DeviceError if the device does not exist.
cdef CudaContext* open_context(int index) except NULL

# The same for another device, from within a call. pre: open_context has returned once.
cdef CUresult context_of(device_t ordinal, CudaContext** context) noexcept nogil
cdef device_t device_count() noexcept nogil

# Makes a context current; on failure returns False, and this thread keeps the reason.
cdef bint enter(CudaContext* context, Visit* visit) noexcept nogil

# Undoes `enter`; returns the status for the result of `function`.
cdef status_t leave(Visit* visit, const char* function, CUresult result) noexcept nogil
