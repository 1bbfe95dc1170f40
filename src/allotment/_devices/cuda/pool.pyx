from allotment._core.contract.table cimport CAN_STREAM_ORDERED, DEVICE_ERROR, OK, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._devices.cuda.context cimport (
    CudaBackend, CudaContext, Visit, context_in, enter, leave, pthread_mutex_lock, pthread_mutex_unlock)
from allotment._devices.cuda.driver cimport (
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_DEVICE,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_USED_MEM_HIGH, CUDA_SUCCESS, CUdeviceptr, CUmemAccessDesc, CUmemoryPool, CUmemPool_attribute,
    CUresult, cuuint64_t, driver)
from allotment._devices.cuda.streams cimport driver_stream, is_parked, refuse_parked


cdef void fill_pool(DeviceTable* table, CudaBackend* backend) noexcept:
    cdef int has_pools = 0
    driver.cuDeviceGetAttribute(&has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, backend.context.device)
    if has_pools == 0:
        return
    table.capabilities |= CAN_STREAM_ORDERED
    table.ordered_allocate = ordered_allocate
    table.ordered_free = ordered_free
    table.ordered_trim = ordered_trim
    table.ordered_usage = ordered_usage
    table.ordered_reset_high = ordered_reset_high
    table.ordered_access = ordered_access


cdef CUresult pool_of(CudaContext* context, CUmemoryPool* pool) noexcept nogil:
    cdef CUresult result = CUDA_SUCCESS
    pthread_mutex_lock(&context.mutex)
    if context.pool == NULL:
        result = driver.cuDeviceGetDefaultMemPool(pool, context.device)
        if result == CUDA_SUCCESS:
            result = set_up(pool[0])
        if result == CUDA_SUCCESS:
            context.pool = pool[0]
    pool[0] = context.pool
    pthread_mutex_unlock(&context.mutex)
    return result


cdef CUresult set_up(CUmemoryPool pool) noexcept nogil:
    cdef cuuint64_t everything = ~(<cuuint64_t> 0)
    cdef int on = 1
    cdef CUresult result = driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &on)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &on)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &on)
    return result


cdef status_t ordered_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef Visit visit
    cdef CUmemoryPool pool = NULL
    cdef CUdeviceptr found = 0
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = pool_of(context_in(self), &pool)
    if result == CUDA_SUCCESS:
        result = driver.cuMemAllocFromPoolAsync(&found, size, pool, driver_stream(stream))
    if result == CUDA_SUCCESS:
        address[0] = found
    return leave(&visit, b"cuMemAllocFromPoolAsync", result)


cdef status_t ordered_free(void* self, address_t address, stream_t stream) noexcept nogil:
    cdef Visit visit
    if is_parked(context_in(self), stream):
        return refuse_parked()
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    return leave(&visit, b"cuMemFreeAsync", driver.cuMemFreeAsync(address, driver_stream(stream)))


cdef status_t ordered_trim(void* self, bytes_t keep) noexcept nogil:
    cdef Visit visit
    cdef CUmemoryPool pool = NULL
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = pool_of(context_in(self), &pool)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolTrimTo(pool, keep)
    return leave(&visit, b"cuMemPoolTrimTo", result)


cdef CUresult read_figure(CUmemoryPool pool, CUmemPool_attribute now, CUmemPool_attribute high, bytes_t* current,
                          bytes_t* peak) noexcept nogil:
    cdef cuuint64_t found = 0
    cdef cuuint64_t most = 0
    cdef CUresult result = driver.cuMemPoolGetAttribute(pool, now, &found)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolGetAttribute(pool, high, &most)
    current[0] = found
    peak[0] = max(found, most)      # after a reset the high mark is zero, whatever is in use
    return result


cdef status_t ordered_usage(void* self, bytes_t* used, bytes_t* used_high, bytes_t* reserved,
                            bytes_t* reserved_high) noexcept nogil:
    cdef Visit visit
    cdef CUmemoryPool pool = NULL
    cdef bytes_t in_use = 0, most_in_use = 0, held = 0, most_held = 0
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = pool_of(context_in(self), &pool)
    if result == CUDA_SUCCESS:
        result = read_figure(
            pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &in_use, &most_in_use)
    if result == CUDA_SUCCESS:
        result = read_figure(
            pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &held, &most_held)
    if result == CUDA_SUCCESS:
        used[0], used_high[0], reserved[0], reserved_high[0] = in_use, most_in_use, held, most_held
    return leave(&visit, b"cuMemPoolGetAttribute", result)


cdef status_t ordered_reset_high(void* self) noexcept nogil:
    cdef Visit visit
    cdef CUmemoryPool pool = NULL
    cdef cuuint64_t nothing = 0
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = pool_of(context_in(self), &pool)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &nothing)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &nothing)
    return leave(&visit, b"cuMemPoolSetAttribute", result)


cdef status_t ordered_access(void* self, device_t device) noexcept nogil:
    cdef Visit visit
    cdef CUmemoryPool pool = NULL
    cdef CUmemAccessDesc access
    if device == context_in(self).ordinal:
        return OK                   # the device itself always has access, and the driver would refuse the call
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    if not enter(context_in(self), &visit):
        return DEVICE_ERROR
    cdef CUresult result = pool_of(context_in(self), &pool)
    if result == CUDA_SUCCESS:
        result = driver.cuMemPoolSetAccess(pool, &access, 1)
    return leave(&visit, b"cuMemPoolSetAccess", result)
