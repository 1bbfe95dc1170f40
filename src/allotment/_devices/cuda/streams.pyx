from libc.stddef cimport size_t
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memcpy, memmove

from allotment._core.contract.table cimport CAN_EVENTS, DEVICE_ERROR, INVALID, IS_UNCHECKED, DeviceTable, status_t
from allotment._core.contract.types cimport event_t, stream_t
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.pointer_map cimport map_get, map_put, map_reserve
from allotment._devices.cuda.context cimport (
    CudaContext, Visit, context_in, enter, leave, pthread_mutex_lock, pthread_mutex_unlock)
from allotment._devices.cuda.driver cimport (
    CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_STATUS_NONE,
    CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_SUCCESS, CUevent, CUipcEventHandle, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, driver,
    refuse)

cdef enum:
    REUSE_ATTEMPTS = 4          # parked streams that are queried before a new one is created


cdef void fill_streams(DeviceTable* table) noexcept:
    table.capabilities |= CAN_EVENTS | IS_UNCHECKED
    table.keeps_stream = keeps_stream
    table.stream_create = stream_create
    table.stream_destroy = stream_destroy
    table.stream_query = stream_query
    table.stream_synchronize = stream_synchronize
    table.stream_wait = stream_wait
    table.device_synchronize = device_synchronize
    table.event_create = event_create
    table.event_destroy = event_destroy
    table.event_record = event_record
    table.event_query = event_query
    table.event_synchronize = event_synchronize
    table.shared_event_create = shared_event_create
    table.event_export = event_export
    table.event_import = event_import


# Parking.

cdef size_t place_of(CudaContext* context, CUstream stream) noexcept nogil:
    """Return the index of the stream in the sorted list, or where it would be inserted."""
    cdef size_t low = 0
    cdef size_t high = context.parked_count
    cdef size_t middle
    while low < high:
        middle = (low + high) // 2
        if <uintptr_t> context.parked[middle] < <uintptr_t> stream:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint holds(CudaContext* context, CUstream stream, size_t place) noexcept nogil:
    return place < context.parked_count and context.parked[place] == stream


cdef bint is_parked(CudaContext* context, stream_t stream) noexcept nogil:
    cdef bint found
    if context.parked_count == 0:       # read without the mutex: using a stream while parking it is the user's race
        return False
    pthread_mutex_lock(&context.mutex)
    found = holds(context, <CUstream> stream, place_of(context, <CUstream> stream))
    pthread_mutex_unlock(&context.mutex)
    return found


cdef CUresult take_stream(CudaContext* context, CUstream* stream) noexcept nogil:
    cdef CUstream idle = NULL
    pthread_mutex_lock(&context.mutex)
    idle = take_idle(context)
    pthread_mutex_unlock(&context.mutex)
    if idle == NULL:
        return make_stream(context, stream)
    stream[0] = idle
    return CUDA_SUCCESS


cdef CUresult make_stream(CudaContext* context, CUstream* stream) noexcept nogil:
    cdef CUresult result = driver.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING)
    if result == CUDA_SUCCESS:
        pthread_mutex_lock(&context.mutex)
        if map_reserve(&context.streams):       # otherwise it counts as created elsewhere
            map_put(&context.streams, <uint64_t> <uintptr_t> stream[0], context)
        pthread_mutex_unlock(&context.mutex)
    return result


cdef bint keeps_stream(void* self, stream_t stream) noexcept nogil:
    cdef CudaContext* context = context_in(self)
    pthread_mutex_lock(&context.mutex)
    cdef bint found = map_get(&context.streams, stream) != NULL
    pthread_mutex_unlock(&context.mutex)
    return found


cdef CUstream take_idle(CudaContext* context) noexcept nogil:
    # The query would invalidate a capture of this thread, unless made in relaxed mode.
    cdef CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED
    cdef CUstream idle = NULL
    cdef size_t at = context.parked_count
    cdef int attempts = REUSE_ATTEMPTS
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    while idle == NULL and at > 0 and attempts > 0:
        at -= 1
        attempts -= 1
        if driver.cuStreamQuery(context.parked[at]) == CUDA_SUCCESS:
            idle = context.parked[at]
    driver.cuThreadExchangeStreamCaptureMode(&mode)
    if idle != NULL:
        context.parked_count -= 1
        memmove(&context.parked[at], &context.parked[at + 1], (context.parked_count - at) * sizeof(CUstream))
    return idle


cdef CUresult park_stream(CudaContext* context, CUstream stream) noexcept nogil:
    cdef CUresult result = CUDA_ERROR_INVALID_HANDLE
    pthread_mutex_lock(&context.mutex)
    cdef size_t place = place_of(context, stream)
    if not holds(context, stream, place):
        result = CUDA_ERROR_OUT_OF_MEMORY
        if make_room(<void**> &context.parked, &context.parked_capacity, context.parked_count, sizeof(CUstream)):
            result = CUDA_SUCCESS
            memmove(&context.parked[place + 1], &context.parked[place],
                    (context.parked_count - place) * sizeof(CUstream))
            context.parked[place] = stream
            context.parked_count += 1
    pthread_mutex_unlock(&context.mutex)
    return result


cdef status_t refuse_parked() noexcept nogil:
    return refuse(INVALID, b"this stream was destroyed")


cdef CUresult check_handle(stream_t stream) noexcept nogil:
    """Return an error if the owner of a foreign stream has destroyed it and the driver has not reused its memory yet.

    The driver reports that here, and crashes elsewhere. Later it may crash here too, so code that can avoid using a
    foreign stream does (`IS_UNCHECKED`).
    """
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    cdef CUresult result = CUDA_SUCCESS
    if not (is_legacy(stream) or is_thread_stream(stream)):
        result = driver.cuStreamGetCaptureInfo_v2(driver_stream(stream), &status, NULL, NULL, NULL, NULL)
    return result if result == CUDA_ERROR_INVALID_CONTEXT or result == CUDA_ERROR_INVALID_HANDLE else CUDA_SUCCESS


# Streams and events. Functions that the engine may call later with a stored stream check its handle.

cdef status_t stream_create(void* self, stream_t* stream) noexcept nogil:
    cdef Visit visit
    cdef CUstream found = NULL
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = take_stream(context_in(self), &found)
    if result == CUDA_SUCCESS:
        stream[0] = <stream_t> <uintptr_t> found
    return leave(&visit, b"cuStreamCreate", result)


cdef status_t stream_destroy(void* self, stream_t stream) noexcept nogil:
    cdef Visit visit
    cdef CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE
    if is_legacy(stream):
        return refuse(INVALID, b"the default stream cannot be destroyed")
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuStreamIsCapturing(driver_stream(stream), &status)
    if result != CUDA_SUCCESS:
        return leave(&visit, b"cuStreamIsCapturing", result)
    if status != CU_STREAM_CAPTURE_STATUS_NONE:
        leave(&visit, b"", CUDA_SUCCESS)
        return refuse(DEVICE_ERROR, b"this stream is being captured and cannot be destroyed")
    return leave(&visit, b"cuStreamDestroy", park_stream(context_in(self), <CUstream> stream))


cdef status_t stream_query(void* self, stream_t stream) noexcept nogil:
    cdef Visit visit
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuStreamQuery", driver.cuStreamQuery(driver_stream(stream)))


cdef status_t stream_synchronize(void* self, stream_t stream) noexcept nogil:
    cdef Visit visit
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = check_handle(stream)
    if result == CUDA_SUCCESS:
        result = driver.cuStreamSynchronize(driver_stream(stream))
    return leave(&visit, b"cuStreamSynchronize", result)


cdef status_t stream_wait(void* self, stream_t stream, event_t event) noexcept nogil:
    cdef Visit visit
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuStreamWaitEvent", driver.cuStreamWaitEvent(driver_stream(stream), <CUevent> event, 0))


cdef status_t device_synchronize(void* self) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuCtxSynchronize", driver.cuCtxSynchronize())


cdef status_t event_create(void* self, event_t* event) noexcept nogil:
    return create_event(self, CU_EVENT_DISABLE_TIMING, event)


cdef status_t create_event(void* self, unsigned int flags, event_t* event) noexcept nogil:
    cdef Visit visit
    cdef CUevent found = NULL
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuEventCreate(&found, flags)
    if result == CUDA_SUCCESS:
        event[0] = <event_t> <uintptr_t> found
    return leave(&visit, b"cuEventCreate", result)


cdef status_t event_destroy(void* self, event_t event) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuEventDestroy", driver.cuEventDestroy_v2(<CUevent> event))


cdef status_t event_record(void* self, event_t event, stream_t stream) noexcept nogil:
    # To the driver a parked stream is still a stream, and its work may still run.
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = check_handle(stream)
    if result == CUDA_SUCCESS:
        result = driver.cuEventRecord(<CUevent> event, driver_stream(stream))
    return leave(&visit, b"cuEventRecord", result)


cdef status_t event_query(void* self, event_t event) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuEventQuery", driver.cuEventQuery(<CUevent> event))


cdef status_t event_synchronize(void* self, event_t event) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuEventSynchronize", driver.cuEventSynchronize(<CUevent> event))


cdef status_t shared_event_create(void* self, event_t* event) noexcept nogil:
    return create_event(self, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS, event)


cdef status_t event_export(void* self, event_t event, unsigned char* handle, size_t capacity,
                           size_t* length) noexcept nogil:
    cdef Visit visit
    cdef CUipcEventHandle found
    if capacity < sizeof(CUipcEventHandle):
        return refuse(INVALID, b"an exported event takes 64 bytes")
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuIpcGetEventHandle(&found, <CUevent> event)
    if result == CUDA_SUCCESS:
        memcpy(handle, &found, sizeof(CUipcEventHandle))
        length[0] = sizeof(CUipcEventHandle)
    return leave(&visit, b"cuIpcGetEventHandle", result)


cdef status_t event_import(void* self, const unsigned char* handle, size_t length, event_t* event) noexcept nogil:
    cdef Visit visit
    cdef CUipcEventHandle given
    cdef CUevent found = NULL
    if length != sizeof(CUipcEventHandle):
        return refuse(INVALID, b"the handle of an exported event has 64 bytes")
    memcpy(&given, handle, sizeof(CUipcEventHandle))
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuIpcOpenEventHandle(&found, given)
    if result == CUDA_SUCCESS:
        event[0] = <event_t> <uintptr_t> found
    return leave(&visit, b"cuIpcOpenEventHandle", result)
