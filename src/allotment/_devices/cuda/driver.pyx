"""Finds libcuda and its functions at run time, and translates its results."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, strlen

from allotment._core.contract.table cimport (
    DEVICE_ERROR, INVALID, NOT_READY, OK, OUT_OF_MEMORY, UNSUPPORTED, status_t)
from allotment._core.tools.forks cimport fork_depth

from allotment import _logs as logs
from allotment.errors import DeviceError

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int mode)
    void* dlsym(void* library, const char* name)
    char* dlerror()
    enum:
        RTLD_NOW
        RTLD_LOCAL

cdef extern from *:
    """
    enum { ALLOTMENT_WORDS_CAPACITY = 512 };
    static __thread char allotment_words[ALLOTMENT_WORDS_CAPACITY];
    """
    const size_t WORDS_CAPACITY "ALLOTMENT_WORDS_CAPACITY"
    char* words "allotment_words"           # why this thread's last failed call failed; "" for none

cdef enum:
    OLDEST_VERSION = 12000                  # CUDA 12.0, in the driver's numbering

# In the order of `Driver`, which is filled as an array of pointers.
FUNCTIONS: tuple[str, ...] = (
    "cuGetErrorName", "cuGetErrorString", "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet",
    "cuDeviceGetName", "cuDeviceGetUuid_v2", "cuDeviceGetPCIBusId", "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute", "cuDeviceCanAccessPeer", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxSynchronize", "cuCtxEnablePeerAccess", "cuMemGetInfo_v2",
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost",
    "cuMemHostRegister_v2", "cuMemHostUnregister", "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuIpcGetEventHandle", "cuIpcOpenEventHandle",
    "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",
    "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemGetAllocationGranularity",
    "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuDeviceGetDefaultMemPool",
    "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolTrimTo", "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute", "cuMemPoolSetAccess", "cuStreamCreate", "cuStreamQuery",
    "cuStreamSynchronize", "cuStreamWaitEvent", "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2",
    "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventSynchronize",
    "cuMemcpyAsync", "cuMemcpyPeerAsync", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8Async",
    "cuThreadExchangeStreamCaptureMode", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuStreamIsCapturing",
    "cuGraphGetNodes", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
    "cuStreamGetCaptureInfo_v3", "cuStreamGetCaptureInfo_v2", "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependencies",
)
# Functions that an older driver may lack.
OPTIONAL_FUNCTIONS: frozenset[str] = frozenset((
    "cuStreamGetCaptureInfo_v3", "cuGraphNodeGetDependencies_v2",
))

cdef bint opened = False
cdef bint tried = False                 # whether initialization was tried: after a fork a second attempt may crash
cdef uint64_t tried_at = 0              # fork depth of that attempt


cdef int open_driver() except -1:
    global opened, tried, tried_at
    cdef Driver found
    cdef CUresult result
    cdef int version = 0
    if is_forked():
        why = ("CUDA was initialized before this process was forked, and a forked process cannot use it: "
               "start processes with the 'spawn' or 'forkserver' method")
        logs.fork_refused(why)
        raise DeviceError(why, operation="fork")
    if opened:
        return 0
    find_functions(&found)
    tried_at = fork_depth()
    tried = True
    with nogil:
        found.cuDriverGetVersion(&version)
        result = found.cuInit(0)
    if result == CUDA_ERROR_NOT_INITIALIZED:
        raise DeviceError(
            f"the CUDA driver cannot be initialized: {name_of(&found, result)}; "
            "was CUDA in use before this process was forked?", operation="cuInit", status=result)
    if result != CUDA_SUCCESS:
        raise DeviceError(f"the CUDA driver cannot be initialized: {name_of(&found, result)}",
                          operation="cuInit", status=result)
    if version < OLDEST_VERSION:
        raise DeviceError(
            f"the CUDA driver is too old: it supports CUDA {version_text(version)}, "
            f"{version_text(OLDEST_VERSION)} is needed", operation="cuDriverGetVersion", status=version)
    # Two threads that open the driver at the same time write the same pointers.
    memcpy(&driver, &found, sizeof(Driver))
    opened = True
    return 0


cdef int find_functions(Driver* found) except -1:
    cdef void** slots = <void**> found
    assert sizeof(Driver) == len(FUNCTIONS) * sizeof(void*), "the list of functions differs from the table"
    cdef void* library = dlopen(b"libcuda.so.1", RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise DeviceError(f"there is no CUDA driver: {dlerror().decode()}", operation="dlopen")
    for at, name in enumerate(FUNCTIONS):
        slots[<size_t> at] = dlsym(library, name.encode())
        if slots[<size_t> at] == NULL and name not in OPTIONAL_FUNCTIONS:
            raise DeviceError(f"the CUDA driver has no function {name}: it is too old or damaged", operation="dlsym")
    return 0


cdef str name_of(Driver* found, CUresult result):
    cdef const char* name = NULL
    cdef const char* text = NULL
    found.cuGetErrorName(result, &name)
    found.cuGetErrorString(result, &text)
    if name == NULL or text == NULL:
        return f"error {result}"
    return f"{name.decode()} ({text.decode()})"


cdef str version_text(int version):
    return f"{version // 1000}.{version % 1000 // 10}"


cdef bint is_forked() noexcept nogil:
    return tried and tried_at != fork_depth()


cdef status_t status_of(CUresult result, const char* function) noexcept nogil:
    cdef const char* name = NULL
    cdef const char* text = NULL
    if result == CUDA_SUCCESS:
        return OK
    if result == CUDA_ERROR_NOT_READY:
        return NOT_READY
    driver.cuGetErrorName(result, &name)
    driver.cuGetErrorString(result, &text)
    if name == NULL or text == NULL:
        snprintf(words, WORDS_CAPACITY, b"%s: error %d", function, result)
    else:
        snprintf(words, WORDS_CAPACITY, b"%s: %s (%s)", function, name, text)
    if result == CUDA_ERROR_OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    # INVALID_VALUE too: the engine's sizes are valid, so the driver must object to a handle or address.
    # INVALID_CONTEXT: the context exists, so the call names a stream that its owner has destroyed.
    if (result == CUDA_ERROR_INVALID_HANDLE or result == CUDA_ERROR_INVALID_VALUE
            or result == CUDA_ERROR_INVALID_DEVICE or result == CUDA_ERROR_INVALID_CONTEXT
            or result == CUDA_ERROR_CONTEXT_IS_DESTROYED):
        return INVALID
    if (result == CUDA_ERROR_NOT_SUPPORTED or result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
            or result == CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER):
        return UNSUPPORTED
    return DEVICE_ERROR


cdef status_t refuse(status_t status, const char* reason) noexcept nogil:
    snprintf(words, WORDS_CAPACITY, b"%s", reason)
    return status


cdef size_t last_error_text(char* text, size_t capacity) noexcept nogil:
    cdef size_t length = strlen(words)
    memcpy(text, words, min(length, capacity))
    return length


cdef void forget_words() noexcept nogil:
    words[0] = 0


def driver_version() -> int:
    """Return the newest CUDA version that the driver supports: 1000 * major + 10 * minor. Raises DeviceError."""
    cdef int version = 0
    open_driver()
    with nogil:
        driver.cuDriverGetVersion(&version)
    return version
