cimport cython
from libc.stddef cimport size_t
from libc.stdlib cimport calloc

from allotment._core.contract.table cimport DEVICE_ERROR, OK, status_t
from allotment._core.contract.types cimport device_t
from allotment._core.tools.pointer_map cimport map_init
from allotment._devices.cuda.driver cimport (
    CUDA_ERROR_INVALID_DEVICE, CUDA_SUCCESS, CUcontext, CUresult, driver, is_forked, last_error_text, open_driver,
    refuse, status_of)

from allotment.errors import DeviceError

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutexattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes)

cdef object guard = object()    # its critical section, so that all threads see one list of devices
cdef CudaContext* contexts = NULL
cdef device_t context_count = 0


cdef CudaContext* open_context(int index) except NULL:
    cdef CudaContext* context = NULL
    cdef CUresult result
    open_driver()
    with cython.critical_section(guard):
        if contexts == NULL:
            list_devices()
    if index < 0 or index >= context_count:
        raise DeviceError(f"there is no CUDA device {index}: the driver reports {context_count}",
                          operation="cuDeviceGet", status=CUDA_ERROR_INVALID_DEVICE)
    with nogil:
        result = context_of(index, &context)
    if result != CUDA_SUCCESS:
        raise_result(f"CUDA device {index} cannot be used", b"cuDevicePrimaryCtxRetain", result)
    return context


cdef int list_devices() except -1:
    global contexts, context_count
    cdef int count = 0
    cdef CUresult result = driver.cuDeviceGetCount(&count)
    if result != CUDA_SUCCESS:
        raise_result("CUDA devices cannot be listed", b"cuDeviceGetCount", result)
    cdef CudaContext* found = <CudaContext*> calloc(max(count, 1), sizeof(CudaContext))
    if found == NULL:
        raise MemoryError("the host has no memory for the records of CUDA devices")
    for ordinal in range(count):
        found[ordinal].ordinal = ordinal
        pthread_mutex_init(&found[ordinal].mutex, NULL)
        if not (map_init(&found[ordinal].streams) and map_init(&found[ordinal].chunks)
                and map_init(&found[ordinal].descriptors) and map_init(&found[ordinal].ipc_handles)):
            raise MemoryError("the host has no memory for the records of CUDA devices")
    contexts, context_count = found, count
    return 0


cdef int raise_result(str what, const char* function, CUresult result) except -1:
    cdef char[256] words
    status_of(result, function)
    cdef size_t length = last_error_text(words, sizeof(words))
    raise DeviceError(f"{what}: {words[:min(length, sizeof(words))].decode()}",
                      operation=function.decode(), status=result)


cdef CUresult context_of(device_t ordinal, CudaContext** context) noexcept nogil:
    cdef CudaContext* found
    cdef CUresult result = CUDA_SUCCESS
    if ordinal < 0 or ordinal >= context_count:
        return CUDA_ERROR_INVALID_DEVICE
    found = &contexts[ordinal]
    pthread_mutex_lock(&found.mutex)
    if found.handle == NULL:
        result = driver.cuDeviceGet(&found.device, ordinal)
        if result == CUDA_SUCCESS:
            result = driver.cuDevicePrimaryCtxRetain(&found.handle, found.device)
    pthread_mutex_unlock(&found.mutex)
    if result == CUDA_SUCCESS:
        context[0] = found
    return result


cdef device_t device_count() noexcept nogil:
    return context_count


cdef bint enter(CudaContext* context, Visit* visit) noexcept nogil:
    cdef CUcontext current = NULL
    visit.has_pushed = False
    if is_forked():
        refuse(DEVICE_ERROR, b"CUDA was initialized before this process was forked, and cannot be used in it")
        return False
    cdef CUresult result = driver.cuCtxGetCurrent(&current)
    if result == CUDA_SUCCESS and current == context.handle:
        return True
    result = driver.cuCtxPushCurrent_v2(context.handle)
    visit.has_pushed = result == CUDA_SUCCESS
    return status_of(result, b"cuCtxPushCurrent") == OK


cdef status_t leave(Visit* visit, const char* function, CUresult result) noexcept nogil:
    cdef CUcontext popped
    if visit.has_pushed:
        driver.cuCtxPopCurrent_v2(&popped)
    return status_of(result, function)
