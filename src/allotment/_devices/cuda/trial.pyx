"""Calls each function of the driver once.

A wrong signature shows as a wrong result or a crash, so every step uses the result of the one before: it writes memory
through one function and reads it back through another. `report` hears of each call before the next one is made. A
function that depends on a failed one is not called.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from posix.unistd cimport close

from allotment._devices.cuda.driver cimport (
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMHOSTALLOC_PORTABLE,
    CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_STATUS_ACTIVE,
    CU_STREAM_NON_BLOCKING, CU_STREAM_WAIT_VALUE_GEQ, CUDA_ERROR_NOT_READY,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUDA_SUCCESS, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent,
    CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode, CUipcEventHandle, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemoryPool, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
    cuuint64_t, driver, last_error_text, open_driver, status_of)

cdef enum:
    SIZE = 1 << 20


cdef class Trial:
    cdef object report              # called with (function, "" or the problem)
    cdef CUdevice device
    cdef CUdevice peer              # equal to `device` if there is only one
    cdef CUcontext context
    cdef CUstream stream
    cdef CUevent event
    cdef CUdeviceptr memory         # SIZE bytes
    cdef void* pinned               # SIZE bytes

    def __init__(self, report: Callable[[str, str], None]):
        self.report = report

    cdef bint expect(self, str function, CUresult result, bint is_right=True, str wrong="") except -1:
        """Report a call, which should succeed with the right result. Return whether it did."""
        cdef char[256] words
        cdef size_t length
        cdef bytes name = function.encode()
        if result != CUDA_SUCCESS:
            status_of(result, name)
            length = last_error_text(words, sizeof(words))
            wrong = words[:min(length, sizeof(words))].decode() if result != CUDA_ERROR_NOT_READY else "not ready"
        elif is_right:
            wrong = ""
        self.report(function, wrong)
        return result == CUDA_SUCCESS and is_right

    cdef object run(self, int index):
        open_driver()
        self.report("cuInit", "")
        if not self.find_device(index) or not self.enter_context():
            return
        if self.have_memory() and self.have_stream():
            self.copy_and_fill()
            self.wait_and_query()
            self.capture()
            if has(self.device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED):
                self.virtual_memory()
            if has(self.device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED):
                self.pool()
            self.share()
        self.release_all()

    cdef bint find_device(self, int index) except -1:
        cdef char[256] text
        cdef const char* words = NULL
        cdef CUuuid uuid
        cdef size_t size = 0
        cdef int value = 0
        cdef CUresult result
        memset(&uuid, 0, sizeof(uuid))
        result = driver.cuGetErrorName(CUDA_ERROR_NOT_READY, &words)
        self.expect("cuGetErrorName", result, words != NULL, "no name")
        result = driver.cuGetErrorString(CUDA_ERROR_NOT_READY, &words)
        self.expect("cuGetErrorString", result, words != NULL, "no text")
        result = driver.cuDriverGetVersion(&value)
        self.expect("cuDriverGetVersion", result, value >= 12000, f"version {value}")
        result = driver.cuDeviceGetCount(&value)
        if not self.expect("cuDeviceGetCount", result, value > index, f"{value} devices"):
            return False
        if not self.expect("cuDeviceGet", driver.cuDeviceGet(&self.device, index)):
            return False
        driver.cuDeviceGet(&self.peer, 1 - index if value > 1 and index < 2 else index)
        result = driver.cuDeviceGetName(text, sizeof(text), self.device)
        self.expect("cuDeviceGetName", result, text[0] != 0, "no name")
        result = driver.cuDeviceGetUuid_v2(&uuid, self.device)
        self.expect("cuDeviceGetUuid_v2", result, any(uuid.bytes[:16]), "all zero")
        result = driver.cuDeviceGetPCIBusId(text, sizeof(text), self.device)
        self.expect("cuDeviceGetPCIBusId", result, b":" in text, "no address")
        result = driver.cuDeviceTotalMem_v2(&size, self.device)
        self.expect("cuDeviceTotalMem_v2", result, size > SIZE, f"{size} bytes")
        result = driver.cuDeviceGetAttribute(
            &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, self.device)
        self.expect("cuDeviceGetAttribute", result, value == 0 or value == 1, f"{value}")
        self.expect("cuDeviceCanAccessPeer", driver.cuDeviceCanAccessPeer(&value, self.device, self.peer))
        return True

    cdef bint enter_context(self) except -1:
        cdef CUcontext current = NULL
        cdef CUresult result = driver.cuDevicePrimaryCtxRetain(&self.context, self.device)
        if not self.expect("cuDevicePrimaryCtxRetain", result, self.context != NULL, "no context"):
            return False
        if not self.expect("cuCtxPushCurrent_v2", driver.cuCtxPushCurrent_v2(self.context)):
            return False
        result = driver.cuCtxGetCurrent(&current)
        return self.expect("cuCtxGetCurrent", result, current == self.context, "another context is current")

    cdef bint have_memory(self) except -1:
        cdef size_t free_bytes = 0
        cdef size_t total_bytes = 0
        cdef CUresult result = driver.cuMemGetInfo_v2(&free_bytes, &total_bytes)
        self.expect("cuMemGetInfo_v2", result, 0 < free_bytes <= total_bytes, f"{free_bytes} of {total_bytes}")
        result = driver.cuMemAlloc_v2(&self.memory, SIZE)
        if not self.expect("cuMemAlloc_v2", result, self.memory % 512 == 0, f"address {self.memory:#x}"):
            return False
        result = driver.cuMemHostAlloc(&self.pinned, SIZE, CU_MEMHOSTALLOC_PORTABLE)
        self.register()
        return self.expect("cuMemHostAlloc", result, self.pinned != NULL, "no address")

    cdef int register(self) except -1:
        """Pin ordinary memory briefly."""
        cdef void* memory = malloc(SIZE)
        if memory != NULL:
            self.expect("cuMemHostRegister_v2", driver.cuMemHostRegister_v2(memory, SIZE, CU_MEMHOSTREGISTER_PORTABLE))
            self.expect("cuMemHostUnregister", driver.cuMemHostUnregister(memory))
            free(memory)
        return 0

    cdef bint have_stream(self) except -1:
        cdef CUresult result = driver.cuStreamCreate(&self.stream, CU_STREAM_NON_BLOCKING)
        if not self.expect("cuStreamCreate", result, self.stream != NULL, "no stream"):
            return False
        result = driver.cuEventCreate(&self.event, CU_EVENT_DISABLE_TIMING)
        return self.expect("cuEventCreate", result, self.event != NULL, "no event")

    cdef bint copy_and_fill(self) except -1:
        cdef unsigned char[4] seen
        cdef unsigned char* pinned = <unsigned char*> self.pinned
        cdef CUdeviceptr pinned_address = <CUdeviceptr> <uintptr_t> self.pinned
        cdef CUresult result
        memset(seen, 0, sizeof(seen))
        memset(pinned, 0, SIZE)
        self.expect("cuMemcpyHtoD_v2", driver.cuMemcpyHtoD_v2(self.memory, b"abcd", 4))
        result = driver.cuMemcpyDtoH_v2(seen, self.memory, 4)
        self.expect("cuMemcpyDtoH_v2", result, seen[:4] == b"abcd", f"read {bytes(seen[:4])}")

        self.expect("cuMemsetD8Async", driver.cuMemsetD8Async(self.memory, 7, SIZE, self.stream))
        result = driver.cuStreamSynchronize(self.stream)
        driver.cuMemcpyDtoH_v2(seen, self.memory + SIZE - 4, 4)
        self.expect("cuStreamSynchronize", result, seen[:4] == b"\7\7\7\7", "the stream was not done")

        result = driver.cuMemcpyAsync(pinned_address, self.memory, SIZE, self.stream)
        driver.cuStreamSynchronize(self.stream)
        self.expect("cuMemcpyAsync", result, pinned[SIZE - 1] == 7, "nothing copied")
        result = driver.cuMemcpyPeerAsync(
            self.memory + SIZE // 2, self.context, self.memory, self.context, SIZE // 2, self.stream)
        self.expect("cuMemcpyPeerAsync", result)
        return self.expect("cuCtxSynchronize", driver.cuCtxSynchronize())

    cdef bint wait_and_query(self) except -1:
        cdef uint32_t* word = <uint32_t*> self.pinned
        cdef CUdeviceptr address = <CUdeviceptr> <uintptr_t> self.pinned
        cdef CUresult result
        word[0] = word[1] = 0
        result = driver.cuStreamWaitValue32_v2(self.stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ)
        if not self.expect("cuStreamWaitValue32_v2", result):
            return False
        self.expect("cuStreamWriteValue32_v2", driver.cuStreamWriteValue32_v2(self.stream, address + 4, 9, 0))
        self.expect("cuEventRecord", driver.cuEventRecord(self.event, self.stream))
        self.expect("cuStreamWaitEvent", driver.cuStreamWaitEvent(self.stream, self.event, 0))
        result = driver.cuEventQuery(self.event)
        self.expect("cuEventQuery", CUDA_SUCCESS, result == CUDA_ERROR_NOT_READY, f"{result} while the stream waits")
        result = driver.cuStreamQuery(self.stream)
        self.expect("cuStreamQuery", CUDA_SUCCESS, result == CUDA_ERROR_NOT_READY, f"{result} while the stream waits")
        word[0] = 1
        result = driver.cuEventSynchronize(self.event)
        return self.expect("cuEventSynchronize", result, word[1] == 9, f"the value is {word[1]}")

    cdef bint capture(self) except -1:
        cdef CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED
        cdef CUstreamCaptureStatus status = 0
        cdef CUdeviceptr during = 0
        cdef CUgraph graph = NULL
        cdef CUgraphExec executable = NULL
        cdef unsigned char seen = 0
        cdef size_t count = 0
        cdef CUresult result = driver.cuStreamBeginCapture_v2(self.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        if not self.expect("cuStreamBeginCapture_v2", result):
            return False
        result = driver.cuStreamIsCapturing(self.stream, &status)
        self.expect("cuStreamIsCapturing", result, status == CU_STREAM_CAPTURE_STATUS_ACTIVE, f"status {status}")
        driver.cuMemsetD8Async(self.memory, 3, SIZE, self.stream)
        driver.cuMemsetD8Async(self.memory, 5, SIZE, self.stream)
        self.look_at_capture()

        result = driver.cuThreadExchangeStreamCaptureMode(&mode)
        if driver.cuMemAlloc_v2(&during, SIZE) == CUDA_SUCCESS:
            driver.cuMemFree_v2(during)
        driver.cuThreadExchangeStreamCaptureMode(&mode)
        self.expect("cuThreadExchangeStreamCaptureMode", result, during != 0, "a malloc was refused")

        result = driver.cuStreamEndCapture(self.stream, &graph)
        if not self.expect("cuStreamEndCapture", result, graph != NULL, "no graph"):
            return False
        result = driver.cuGraphGetNodes(graph, NULL, &count)
        self.expect("cuGraphGetNodes", result, count == 2, f"{count} nodes")
        if self.expect("cuGraphInstantiateWithFlags", driver.cuGraphInstantiateWithFlags(&executable, graph, 0)):
            result = driver.cuGraphLaunch(executable, self.stream)
            driver.cuStreamSynchronize(self.stream)
            driver.cuMemcpyDtoH_v2(&seen, self.memory, 1)
            self.expect("cuGraphLaunch", result, seen == 5, f"the memory holds {seen}")
            self.expect("cuGraphExecDestroy", driver.cuGraphExecDestroy(executable))
        return self.expect("cuGraphDestroy", driver.cuGraphDestroy(graph))

    cdef bint look_at_capture(self) except -1:
        """Check two nodes in sequence as the newer and the older functions report them."""
        cdef CUstreamCaptureStatus status = 0
        cdef const CUgraphNode* last = NULL
        cdef const CUgraphEdgeData* edges = NULL
        cdef CUgraphNode node = NULL
        cdef CUgraphNode before = NULL
        cdef CUgraphEdgeData edge
        cdef cuuint64_t identity = 0
        cdef size_t count = 0
        cdef CUresult result
        if driver.cuStreamGetCaptureInfo_v3 != NULL:
            result = driver.cuStreamGetCaptureInfo_v3(
                self.stream, &status, &identity, NULL, &last, &edges, &count)
            self.expect("cuStreamGetCaptureInfo_v3", result, count == 1 and identity != 0,
                        f"capture {identity}, {count} last nodes")
        result = driver.cuStreamGetCaptureInfo_v2(self.stream, &status, &identity, NULL, &last, &count)
        if not self.expect("cuStreamGetCaptureInfo_v2", result, count == 1 and identity != 0,
                           f"capture {identity}, {count} last nodes"):
            return False
        node = last[0]
        if driver.cuGraphNodeGetDependencies_v2 != NULL:
            count = 1
            result = driver.cuGraphNodeGetDependencies_v2(node, &before, &edge, &count)
            self.expect("cuGraphNodeGetDependencies_v2", result, count == 1 and before != NULL, f"{count} nodes")
        count = 0
        result = driver.cuGraphNodeGetDependencies(node, NULL, &count)
        return self.expect("cuGraphNodeGetDependencies", result, count == 1, f"{count} nodes")

    cdef bint virtual_memory(self) except -1:
        cdef CUmemAllocationProp properties
        cdef CUmemAccessDesc access
        cdef CUmemGenericAllocationHandle chunk = 0
        cdef CUmemGenericAllocationHandle again = 0
        cdef CUdeviceptr base = 0
        cdef size_t page = 0
        cdef int descriptor = -1
        cdef unsigned char seen = 0
        cdef CUresult result
        memset(&properties, 0, sizeof(properties))
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.device
        access.location = properties.location
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE

        result = driver.cuMemGetAllocationGranularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        if not self.expect("cuMemGetAllocationGranularity", result, page > 0 and page % 4096 == 0, f"{page} bytes"):
            return False
        result = driver.cuMemAddressReserve(&base, 2 * page, page, 0, 0)
        if not self.expect("cuMemAddressReserve", result, base % page == 0, f"address {base:#x}"):
            return False
        if self.expect("cuMemCreate", driver.cuMemCreate(&chunk, page, &properties, 0)):
            result = driver.cuMemExportToShareableHandle(
                &descriptor, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
            self.expect("cuMemExportToShareableHandle", result, descriptor >= 0, f"descriptor {descriptor}")
            result = driver.cuMemImportFromShareableHandle(
                &again, <void*> <uintptr_t> descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            self.expect("cuMemImportFromShareableHandle", result)
            close(descriptor)

            # The chunk is mapped at both pages, once by its own handle and once by the imported one.
            result = driver.cuMemMap(base, page, 0, chunk, 0)
            if self.expect("cuMemMap", result) and driver.cuMemMap(base + page, page, 0, again, 0) == CUDA_SUCCESS:
                result = driver.cuMemSetAccess(base, 2 * page, &access, 1)
                driver.cuMemsetD8Async(base, 11, page, self.stream)
                driver.cuStreamSynchronize(self.stream)
                driver.cuMemcpyDtoH_v2(&seen, base + page, 1)
                self.expect("cuMemSetAccess", result, seen == 11, f"the other page holds {seen}")
                self.expect("cuMemUnmap", driver.cuMemUnmap(base, 2 * page))
            self.expect("cuMemRelease", driver.cuMemRelease(chunk))
            if again != 0:
                driver.cuMemRelease(again)
        return self.expect("cuMemAddressFree", driver.cuMemAddressFree(base, 2 * page))

    cdef bint pool(self) except -1:
        cdef CUmemoryPool pool = NULL
        cdef CUmemAccessDesc access
        cdef CUdeviceptr memory = 0
        cdef cuuint64_t before = 0
        cdef cuuint64_t used = 0
        cdef cuuint64_t threshold = ~(<cuuint64_t> 0)
        cdef unsigned char seen = 0
        cdef CUresult result = driver.cuDeviceGetDefaultMemPool(&pool, self.device)
        if not self.expect("cuDeviceGetDefaultMemPool", result, pool != NULL, "no pool"):
            return False
        self.expect("cuMemPoolSetAttribute", driver.cuMemPoolSetAttribute(
            pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold))
        driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &before)
        result = driver.cuMemAllocFromPoolAsync(&memory, SIZE, pool, self.stream)
        driver.cuMemsetD8Async(memory, 13, SIZE, self.stream)
        driver.cuStreamSynchronize(self.stream)
        driver.cuMemcpyDtoH_v2(&seen, memory + SIZE - 1, 1)
        self.expect("cuMemAllocFromPoolAsync", result, seen == 13, f"the memory holds {seen}")
        result = driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used)
        self.expect("cuMemPoolGetAttribute", result, used >= before + SIZE, f"{used} bytes in use, {before} before")
        result = driver.cuMemFreeAsync(memory, self.stream)
        driver.cuStreamSynchronize(self.stream)
        driver.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used)
        self.expect("cuMemFreeAsync", result, used == before, f"{used} bytes in use, {before} before")
        self.expect("cuMemPoolTrimTo", driver.cuMemPoolTrimTo(pool, 0))
        if self.peer != self.device:
            access.location.type = CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self.peer
            access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            self.expect("cuMemPoolSetAccess", driver.cuMemPoolSetAccess(pool, &access, 1))
        return True

    cdef bint share(self) except -1:
        cdef CUipcMemHandle handle
        cdef CUipcEventHandle event_handle
        cdef CUevent event = NULL
        cdef CUcontext other = NULL
        cdef CUresult result
        memset(&handle, 0, sizeof(handle))
        result = driver.cuIpcGetMemHandle(&handle, self.memory)
        self.expect("cuIpcGetMemHandle", result, any(handle.reserved[:64]), "all zero")
        memset(&event_handle, 0, sizeof(event_handle))
        if driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS) == CUDA_SUCCESS:
            result = driver.cuIpcGetEventHandle(&event_handle, event)
            self.expect("cuIpcGetEventHandle", result, any(event_handle.reserved[:64]), "all zero")
            driver.cuEventDestroy_v2(event)
        if self.peer != self.device and driver.cuDevicePrimaryCtxRetain(&other, self.peer) == CUDA_SUCCESS:
            result = driver.cuCtxEnablePeerAccess(other, 0)
            if result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
                result = CUDA_SUCCESS
            self.expect("cuCtxEnablePeerAccess", result)
        return True

    cdef int release_all(self) except -1:
        cdef CUcontext popped = NULL
        cdef CUresult result
        if self.event != NULL:
            self.expect("cuEventDestroy_v2", driver.cuEventDestroy_v2(self.event))
        if self.pinned != NULL:
            self.expect("cuMemFreeHost", driver.cuMemFreeHost(self.pinned))
        if self.memory != 0:
            self.expect("cuMemFree_v2", driver.cuMemFree_v2(self.memory))
        result = driver.cuCtxPopCurrent_v2(&popped)
        self.expect("cuCtxPopCurrent_v2", result, popped == self.context, "another context was current")
        return 0


cdef bint has(CUdevice device, CUdevice_attribute attribute) noexcept:
    cdef int value = 0
    driver.cuDeviceGetAttribute(&value, attribute, device)
    return value != 0


def try_every_function(index: int, report: Callable[[str, str], None]) -> None:
    """Call each function of the CUDA driver on a device; `report(function, complaint)` follows each call.

    The complaint is empty if the call was right. Does not call functions that need a second process, or a second device
    on a machine without one, nor those that depend on a failed one. Raises DeviceError if there is no usable driver.
    """
    Trial(report).run(index)
