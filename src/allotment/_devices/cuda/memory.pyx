from libc.stddef cimport size_t
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from posix.unistd cimport close

from allotment._core.contract.raising cimport device_error
from allotment._core.contract.table cimport (
    CAN_COPY, CAN_PEERS, CAN_PINNED, CAN_SHARE, CAN_VIRTUAL, DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY,
    SHARE_DESCRIPTOR, SHARE_FABRIC, UNSUPPORTED, Device, DeviceTable, share_t, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, device_t, stream_t
from allotment._core.tools.pointer_map cimport map_get, map_pop, map_put, map_reserve
from allotment._devices.cuda.context cimport (
    CudaBackend, CudaContext, Visit, context_in, context_of, device_count, enter, leave, pthread_mutex_lock,
    pthread_mutex_unlock)
from allotment._devices.cuda.driver cimport (
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_NONE,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMHOSTALLOC_PORTABLE,
    CU_MEMHOSTREGISTER_PORTABLE,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUDA_SUCCESS, CUdevice_attribute,
    CUdeviceptr, CUipcMemHandle, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemFabricHandle, CUmemGenericAllocationHandle, CUresult, driver, refuse, status_of)
from allotment._devices.cuda.streams cimport driver_stream, is_parked, refuse_parked


cdef int fill_memory(Device device, CudaBackend* backend) except -1:
    cdef DeviceTable* table = &device.table
    table.capabilities |= CAN_COPY | CAN_PINNED
    table.segment_allocate = segment_allocate
    table.segment_free = segment_free
    table.memory_info = memory_info
    table.copy = copy
    table.pinned_allocate = pinned_allocate
    table.pinned_free = pinned_free
    if device_count() > 1:
        table.capabilities |= CAN_PEERS
        table.peer_enable = peer_enable
    if has(backend.context, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING):
        table.capabilities |= CAN_SHARE
        table.segment_export = segment_export
        table.segment_import = segment_import
        table.segment_close = segment_close
    if has(backend.context, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED):
        fill_virtual(device, backend)
    return 0


cdef int fill_virtual(Device device, CudaBackend* backend) except -1:
    cdef DeviceTable* table = &device.table
    cdef CUmemAllocationProp* properties = &backend.chunk_properties
    cdef status_t status
    table.capabilities |= CAN_VIRTUAL | CAN_SHARE
    table.range_reserve = range_reserve
    table.range_release = range_release
    table.chunk_create = chunk_create
    table.chunk_release = chunk_release
    table.map = map_chunk
    table.unmap = unmap
    table.set_access = set_access
    table.granularity = granularity
    table.chunk_export = chunk_export
    table.chunk_import = chunk_import

    memset(properties, 0, sizeof(CUmemAllocationProp))
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = backend.context.ordinal
    properties.allocFlags.gpuDirectRDMACapable = has(
        backend.context, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
    status = measure(backend)
    if status != OK:
        raise device_error(device, status, "granularity")

    # Added after the granularity query: the granularity must be known even where the fabric is not permitted.
    if has(backend.context, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED):
        properties.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    if has(backend.context, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED):
        properties.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_FABRIC
    return 0


cdef bint has(CudaContext* context, CUdevice_attribute attribute) noexcept nogil:
    cdef int value = 0
    return driver.cuDeviceGetAttribute(&value, attribute, context.device) == CUDA_SUCCESS and value != 0


# Plain memory.

cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Visit visit
    cdef CUdeviceptr found = 0
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemAlloc_v2(&found, size)
    if result == CUDA_SUCCESS:
        address[0] = found
    return leave(&visit, b"cuMemAlloc", result)


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Visit visit
    cdef void* exported
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemFree_v2(address)
    if result == CUDA_SUCCESS and address != 0:
        pthread_mutex_lock(&context_in(self).mutex)
        exported = map_pop(&context_in(self).ipc_handles, address)
        pthread_mutex_unlock(&context_in(self).mutex)
        free(exported)
    return leave(&visit, b"cuMemFree", result)


# Virtual memory.

cdef status_t measure(CudaBackend* backend) noexcept nogil:
    cdef Visit visit
    cdef size_t page = 0
    cdef size_t total = 0
    if not enter(backend.context, &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemGetAllocationGranularity(
        &page, &backend.chunk_properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
    if result == CUDA_SUCCESS:
        result = driver.cuDeviceTotalMem_v2(&total, backend.context.device)
    backend.granularity = page
    backend.total = total
    return leave(&visit, b"cuMemGetAllocationGranularity", result)


cdef status_t granularity(void* self, bytes_t* size) noexcept nogil:
    size[0] = (<CudaBackend*> self).granularity
    return OK


cdef status_t range_reserve(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Visit visit
    cdef CUdeviceptr found = 0
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemAddressReserve(&found, size, (<CudaBackend*> self).granularity, 0, 0)
    if result == CUDA_SUCCESS:
        address[0] = found
    return leave(&visit, b"cuMemAddressReserve", result)


cdef status_t range_release(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemAddressFree", driver.cuMemAddressFree(address, size))


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    cdef CudaBackend* backend = <CudaBackend*> self
    cdef CUmemAllocationProp properties = backend.chunk_properties
    cdef CUmemGenericAllocationHandle handle = 0
    cdef Visit visit
    if size > backend.total:
        return refuse(OUT_OF_MEMORY, b"the chunk is larger than all memory of the device")
    if not enter(backend.context, &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemCreate(&handle, size, &properties, 0)
    while (result != CUDA_SUCCESS and result != CUDA_ERROR_OUT_OF_MEMORY
            and properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE):
        properties.requestedHandleTypes = weaker(properties.requestedHandleTypes)
        result = driver.cuMemCreate(&handle, size, &properties, 0)
    if result == CUDA_SUCCESS:
        backend.chunk_properties.requestedHandleTypes = properties.requestedHandleTypes
        result = adopt(backend.context, handle)
    if result == CUDA_SUCCESS:
        chunk[0] = handle
    return leave(&visit, b"cuMemCreate", result)


cdef inline CUmemAllocationHandleType weaker(CUmemAllocationHandleType types) noexcept nogil:
    """Return the handle types to request after `types` were refused: first without the fabric."""
    if types & CU_MEM_HANDLE_TYPE_FABRIC:
        return types & ~CU_MEM_HANDLE_TYPE_FABRIC
    return CU_MEM_HANDLE_TYPE_NONE


cdef status_t chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    if not drop(context_in(self), chunk):
        leave(&visit, b"", CUDA_SUCCESS)
        return refuse_chunk()
    cdef CUresult result = driver.cuMemRelease(chunk)
    if result != CUDA_SUCCESS:
        add(context_in(self), chunk)
    return leave(&visit, b"cuMemRelease", result)


# Existing chunks. An imported chunk may have the same handle as an existing one, so handles are counted.

cdef CUresult adopt(CudaContext* context, CUmemGenericAllocationHandle handle) noexcept nogil:
    """Register a new handle; release it if there is no host memory for that."""
    if add(context, handle):
        return CUDA_SUCCESS
    driver.cuMemRelease(handle)
    return CUDA_ERROR_OUT_OF_MEMORY


cdef bint add(CudaContext* context, chunk_t chunk) noexcept nogil:
    cdef uintptr_t count
    pthread_mutex_lock(&context.mutex)
    cdef bint has_room = map_reserve(&context.chunks)
    if has_room:
        count = <uintptr_t> map_get(&context.chunks, chunk)
        map_put(&context.chunks, chunk, <void*> (count + 1))
    pthread_mutex_unlock(&context.mutex)
    return has_room


cdef bint drop(CudaContext* context, chunk_t chunk) noexcept nogil:
    """Unregister a handle once, and close its descriptor the last time; False if it is not a chunk."""
    cdef size_t descriptor = 0
    pthread_mutex_lock(&context.mutex)
    cdef uintptr_t count = <uintptr_t> map_pop(&context.chunks, chunk) if chunk != 0 else 0
    if count > 1:
        map_put(&context.chunks, chunk, <void*> (count - 1))
    elif count == 1:
        descriptor = <size_t> map_pop(&context.descriptors, chunk)
    pthread_mutex_unlock(&context.mutex)
    if descriptor != 0:
        close(<int> descriptor - 1)
    return count > 0


cdef bint exists(CudaContext* context, chunk_t chunk) noexcept nogil:
    pthread_mutex_lock(&context.mutex)
    cdef bint found = chunk != 0 and map_get(&context.chunks, chunk) != NULL
    pthread_mutex_unlock(&context.mutex)
    return found


cdef status_t refuse_chunk() noexcept nogil:
    return refuse(INVALID, b"this chunk does not exist or was released")


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil:
    cdef Visit visit
    if not exists(context_in(self), chunk):
        return refuse_chunk()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemMap", driver.cuMemMap(address, size, 0, chunk, 0))


cdef status_t unmap(void* self, address_t address, bytes_t size) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemUnmap", driver.cuMemUnmap(address, size))


cdef status_t set_access(void* self, address_t address, bytes_t size, device_t device) noexcept nogil:
    cdef Visit visit
    cdef CUmemAccessDesc access
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemSetAccess", driver.cuMemSetAccess(address, size, &access, 1))


# Moving and sharing.

cdef status_t copy(void* self, address_t destination, address_t source, bytes_t size, device_t destination_device,
                   device_t source_device, stream_t stream) noexcept nogil:
    cdef CudaContext* here = context_in(self)
    cdef CudaContext* into = NULL
    cdef CudaContext* out_of = NULL
    cdef Visit visit
    cdef CUresult result
    if is_parked(here, stream):
        return refuse_parked()
    if not enter(here, &visit):
        return DEVICE_ERROR
    if destination_device == here.ordinal and source_device == here.ordinal:
        result = driver.cuMemcpyAsync(destination, source, size, driver_stream(stream))
        return leave(&visit, b"cuMemcpyAsync", result)
    result = context_of(destination_device, &into)
    if result == CUDA_SUCCESS:
        result = context_of(source_device, &out_of)
    if result == CUDA_SUCCESS:
        result = driver.cuMemcpyPeerAsync(destination, into.handle, source, out_of.handle, size, driver_stream(stream))
    return leave(&visit, b"cuMemcpyPeerAsync", result)


cdef status_t peer_enable(void* self, device_t other) noexcept nogil:
    """Let `other` access the plain memory of this device; set_access does so for chunks."""
    cdef CudaContext* here = context_in(self)
    cdef CudaContext* there = NULL
    cdef Visit visit
    if other == here.ordinal:
        return OK
    cdef CUresult result = context_of(other, &there)
    if result != CUDA_SUCCESS:
        return status_of(result, b"cuDevicePrimaryCtxRetain")
    if not enter(there, &visit):
        return DEVICE_ERROR
    result = driver.cuCtxEnablePeerAccess(here.handle, 0)
    if result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
        result = CUDA_SUCCESS
    return leave(&visit, b"cuCtxEnablePeerAccess", result)


cdef status_t segment_export(void* self, address_t base, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil:
    # Cached: the driver returns different bytes each time, so an importer could not recognise the segment.
    cdef CudaContext* context = context_in(self)
    cdef Visit visit
    cdef CUipcMemHandle* found
    cdef CUresult result = CUDA_SUCCESS
    if capacity < sizeof(CUipcMemHandle):
        return refuse(INVALID, b"an exported segment takes 64 bytes")
    if not enter(context, &visit):
        return DEVICE_ERROR
    pthread_mutex_lock(&context.mutex)
    found = <CUipcMemHandle*> map_get(&context.ipc_handles, base) if base != 0 else NULL
    if found == NULL:
        found = <CUipcMemHandle*> malloc(sizeof(CUipcMemHandle))
        result = CUDA_ERROR_OUT_OF_MEMORY
        if found != NULL and map_reserve(&context.ipc_handles):
            result = driver.cuIpcGetMemHandle(found, base)
        if result == CUDA_SUCCESS:
            map_put(&context.ipc_handles, base, found)
        else:
            free(found)
    if result == CUDA_SUCCESS:
        memcpy(handle, found, sizeof(CUipcMemHandle))
        length[0] = sizeof(CUipcMemHandle)
    pthread_mutex_unlock(&context.mutex)
    return leave(&visit, b"cuIpcGetMemHandle", result)


cdef status_t segment_import(void* self, const unsigned char* handle, size_t length,
                             address_t* base) noexcept nogil:
    cdef Visit visit
    cdef CUipcMemHandle given
    cdef CUdeviceptr found = 0
    if length != sizeof(CUipcMemHandle):
        return refuse(INVALID, b"the handle of an exported segment has 64 bytes")
    memcpy(&given, handle, sizeof(CUipcMemHandle))
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuIpcOpenMemHandle_v2(&found, given, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    if result == CUDA_SUCCESS:
        base[0] = found
    return leave(&visit, b"cuIpcOpenMemHandle", result)


cdef status_t segment_close(void* self, address_t base) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuIpcCloseMemHandle", driver.cuIpcCloseMemHandle(base))


cdef status_t chunk_export(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                           size_t* length) noexcept nogil:
    cdef Visit visit
    cdef CUmemFabricHandle found            # large enough for both forms
    cdef CUmemAllocationHandleType handle_type = handle_type_of(kind)
    cdef size_t size = handle_size_of(kind)
    if handle_type == CU_MEM_HANDLE_TYPE_NONE:
        return refuse(UNSUPPORTED, b"a chunk is shared by descriptor or over the fabric")
    if capacity < size:
        return refuse(INVALID, b"the buffer is too small for the handle")
    if not exists(context_in(self), chunk):
        return refuse_chunk()
    if not (<CudaBackend*> self).chunk_properties.requestedHandleTypes & handle_type:
        return refuse(UNSUPPORTED, b"this machine does not support sharing chunks this way")
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = (export_descriptor(context_in(self), chunk, <int*> &found) if kind == SHARE_DESCRIPTOR
                            else driver.cuMemExportToShareableHandle(&found, chunk, handle_type, 0))
    if result == CUDA_SUCCESS:
        memcpy(handle, &found, size)
        length[0] = size
    return leave(&visit, b"cuMemExportToShareableHandle", result)


cdef CUresult export_descriptor(CudaContext* context, chunk_t chunk, int* descriptor) noexcept nogil:
    """Open one descriptor per chunk, closed with it: the driver would open another each time."""
    cdef CUresult result = CUDA_SUCCESS
    pthread_mutex_lock(&context.mutex)
    cdef size_t known = <size_t> map_get(&context.descriptors, chunk)
    if known != 0:
        descriptor[0] = <int> known - 1
    elif not map_reserve(&context.descriptors):
        result = CUDA_ERROR_OUT_OF_MEMORY
    else:
        result = driver.cuMemExportToShareableHandle(
            descriptor, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
        if result == CUDA_SUCCESS:
            map_put(&context.descriptors, chunk, <void*> <size_t> (descriptor[0] + 1))
    pthread_mutex_unlock(&context.mutex)
    return result


cdef status_t chunk_import(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                           chunk_t* chunk) noexcept nogil:
    cdef Visit visit
    cdef CUmemFabricHandle given
    cdef CUmemGenericAllocationHandle found = 0
    cdef CUmemAllocationHandleType handle_type = handle_type_of(kind)
    cdef void* shareable = &given
    cdef int descriptor
    if handle_type == CU_MEM_HANDLE_TYPE_NONE:
        return refuse(UNSUPPORTED, b"a chunk is shared by descriptor or over the fabric")
    if length != handle_size_of(kind):
        return refuse(INVALID, b"the handle of a chunk has 4 bytes (descriptor) or 64 (fabric)")
    if kind == SHARE_DESCRIPTOR:            # passed by value, while a fabric handle is passed by pointer
        memcpy(&descriptor, handle, sizeof(int))
        shareable = <void*> <uintptr_t> descriptor
    else:
        memcpy(&given, handle, sizeof(CUmemFabricHandle))
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemImportFromShareableHandle(&found, shareable, handle_type)
    if result == CUDA_SUCCESS:
        result = adopt(context_in(self), found)
    if result == CUDA_SUCCESS:
        chunk[0] = found
    return leave(&visit, b"cuMemImportFromShareableHandle", result)


cdef inline CUmemAllocationHandleType handle_type_of(share_t kind) noexcept nogil:
    if kind == SHARE_DESCRIPTOR:
        return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return CU_MEM_HANDLE_TYPE_FABRIC if kind == SHARE_FABRIC else CU_MEM_HANDLE_TYPE_NONE


cdef inline size_t handle_size_of(share_t kind) noexcept nogil:
    return sizeof(int) if kind == SHARE_DESCRIPTOR else sizeof(CUmemFabricHandle)


cdef status_t pinned_allocate(void* self, bytes_t size, address_t* address) noexcept nogil:
    cdef Visit visit
    cdef void* found = NULL
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemHostAlloc(&found, size, CU_MEMHOSTALLOC_PORTABLE)
    if result == CUDA_SUCCESS:
        address[0] = <address_t> <uintptr_t> found
    return leave(&visit, b"cuMemHostAlloc", result)


cdef status_t pinned_free(void* self, address_t address) noexcept nogil:
    cdef Visit visit
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemFreeHost", driver.cuMemFreeHost(<void*> <uintptr_t> address))


cdef status_t register_memory(CudaContext* context, address_t address, bytes_t size) noexcept nogil:
    cdef Visit visit
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemHostRegister", driver.cuMemHostRegister_v2(
        <void*> <uintptr_t> address, size, CU_MEMHOSTREGISTER_PORTABLE))


cdef status_t unregister_memory(CudaContext* context, address_t address) noexcept nogil:
    cdef Visit visit
    if not enter(context, &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemHostUnregister", driver.cuMemHostUnregister(<void*> <uintptr_t> address))


cdef status_t memory_info(void* self, bytes_t* free_bytes, bytes_t* total_bytes) noexcept nogil:
    cdef Visit visit
    cdef size_t found_free = 0
    cdef size_t found_total = 0
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = driver.cuMemGetInfo_v2(&found_free, &found_total)
    if result == CUDA_SUCCESS:
        free_bytes[0] = found_free
        total_bytes[0] = found_total
    return leave(&visit, b"cuMemGetInfo", result)
