"""The CUDA driver as this package uses it: types, constants and the functions that are looked up in libcuda.

The package declares them here instead of taking them from cuda.h, so that it builds without a CUDA toolkit and runs on
machines without a driver. Names are the driver's own: a field of `Driver` has exactly the name of the exported symbol,
with its version suffix, because the suffix decides the signature. `tests/devices/cuda/test_declarations.py` compares
all of it with cuda.h where a toolkit is installed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.table cimport status_t

ctypedef int CUresult
ctypedef int CUdevice
ctypedef unsigned long long CUdeviceptr
ctypedef unsigned long long CUmemGenericAllocationHandle
ctypedef void* CUcontext
ctypedef void* CUstream
ctypedef void* CUevent
ctypedef void* CUgraph
ctypedef void* CUgraphNode
ctypedef void* CUgraphExec
ctypedef void* CUmemoryPool
ctypedef uint32_t cuuint32_t
ctypedef uint64_t cuuint64_t

# Enumerations of the driver are 32-bit integers in its binary interface.
ctypedef int CUdevice_attribute
ctypedef int CUmemAllocationType
ctypedef int CUmemAllocationHandleType
ctypedef int CUmemLocationType
ctypedef int CUmemAccess_flags
ctypedef int CUmemAllocationGranularity_flags
ctypedef int CUmemPool_attribute
ctypedef int CUstreamCaptureStatus
ctypedef int CUstreamCaptureMode

cdef enum:
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_DEINITIALIZED = 4
    CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_NOT_SUPPORTED = 801

cdef enum:
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128

cdef enum:
    CU_MEM_ALLOCATION_TYPE_PINNED = 1
    CU_MEM_LOCATION_TYPE_DEVICE = 1
    CU_MEM_HANDLE_TYPE_NONE = 0
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
    CU_MEM_HANDLE_TYPE_FABRIC = 8
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
    CU_MEMHOSTALLOC_PORTABLE = 1
    CU_MEMHOSTREGISTER_PORTABLE = 1
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1
    CU_STREAM_NON_BLOCKING = 1
    CU_STREAM_LEGACY = 1
    CU_STREAM_PER_THREAD = 2
    CU_EVENT_DISABLE_TIMING = 2
    CU_EVENT_INTERPROCESS = 4
    CU_STREAM_WAIT_VALUE_GEQ = 0
    CU_STREAM_CAPTURE_STATUS_NONE = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
    CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1
    CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5
    CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7
    CU_MEMPOOL_ATTR_USED_MEM_HIGH = 8
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1

cdef enum:
    CU_IPC_HANDLE_SIZE = 64

cdef struct CUuuid:
    char bytes[16]

cdef struct CUipcMemHandle:
    char reserved[CU_IPC_HANDLE_SIZE]

cdef struct CUipcEventHandle:
    char reserved[CU_IPC_HANDLE_SIZE]

cdef struct CUmemFabricHandle:
    unsigned char data[CU_IPC_HANDLE_SIZE]

cdef struct CUmemLocation:
    CUmemLocationType type
    int id

cdef struct CUmemAllocationFlags:           # unnamed in cuda.h
    unsigned char compressionType
    unsigned char gpuDirectRDMACapable
    unsigned short usage
    unsigned char reserved[4]

cdef struct CUmemAllocationProp:
    CUmemAllocationType type
    CUmemAllocationHandleType requestedHandleTypes
    CUmemLocation location
    void* win32HandleMetaData
    CUmemAllocationFlags allocFlags

cdef struct CUmemAccessDesc:
    CUmemLocation location
    CUmemAccess_flags flags

cdef struct CUgraphEdgeData:
    unsigned char from_port
    unsigned char to_port
    unsigned char type
    unsigned char reserved[5]

cdef struct Driver:
    CUresult (*cuGetErrorName)(CUresult error, const char** text) noexcept nogil
    CUresult (*cuGetErrorString)(CUresult error, const char** text) noexcept nogil
    CUresult (*cuInit)(unsigned int flags) noexcept nogil
    CUresult (*cuDriverGetVersion)(int* version) noexcept nogil

    CUresult (*cuDeviceGetCount)(int* count) noexcept nogil
    CUresult (*cuDeviceGet)(CUdevice* device, int ordinal) noexcept nogil
    CUresult (*cuDeviceGetName)(char* name, int length, CUdevice device) noexcept nogil
    CUresult (*cuDeviceGetUuid_v2)(CUuuid* uuid, CUdevice device) noexcept nogil
    CUresult (*cuDeviceGetPCIBusId)(char* text, int length, CUdevice device) noexcept nogil
    CUresult (*cuDeviceTotalMem_v2)(size_t* size, CUdevice device) noexcept nogil
    CUresult (*cuDeviceGetAttribute)(int* value, CUdevice_attribute attribute, CUdevice device) noexcept nogil
    CUresult (*cuDeviceCanAccessPeer)(int* can, CUdevice device, CUdevice peer) noexcept nogil

    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device) noexcept nogil
    CUresult (*cuCtxGetCurrent)(CUcontext* context) noexcept nogil
    CUresult (*cuCtxPushCurrent_v2)(CUcontext context) noexcept nogil
    CUresult (*cuCtxPopCurrent_v2)(CUcontext* context) noexcept nogil
    CUresult (*cuCtxSynchronize)() noexcept nogil
    CUresult (*cuCtxEnablePeerAccess)(CUcontext peer, unsigned int flags) noexcept nogil

    CUresult (*cuMemGetInfo_v2)(size_t* free, size_t* total) noexcept nogil
    CUresult (*cuMemAlloc_v2)(CUdeviceptr* address, size_t size) noexcept nogil
    CUresult (*cuMemFree_v2)(CUdeviceptr address) noexcept nogil
    CUresult (*cuMemHostAlloc)(void** address, size_t size, unsigned int flags) noexcept nogil
    CUresult (*cuMemFreeHost)(void* address) noexcept nogil
    CUresult (*cuMemHostRegister_v2)(void* address, size_t size, unsigned int flags) noexcept nogil
    CUresult (*cuMemHostUnregister)(void* address) noexcept nogil
    CUresult (*cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address) noexcept nogil
    CUresult (*cuIpcOpenMemHandle_v2)(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) noexcept nogil
    CUresult (*cuIpcCloseMemHandle)(CUdeviceptr address) noexcept nogil
    CUresult (*cuIpcGetEventHandle)(CUipcEventHandle* handle, CUevent event) noexcept nogil
    CUresult (*cuIpcOpenEventHandle)(CUevent* event, CUipcEventHandle handle) noexcept nogil

    CUresult (*cuMemAddressReserve)(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) noexcept nogil
    CUresult (*cuMemAddressFree)(CUdeviceptr address, size_t size) noexcept nogil
    CUresult (*cuMemCreate)(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                            unsigned long long flags) noexcept nogil
    CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle) noexcept nogil
    CUresult (*cuMemMap)(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) noexcept nogil
    CUresult (*cuMemUnmap)(CUdeviceptr address, size_t size) noexcept nogil
    CUresult (*cuMemSetAccess)(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                               size_t count) noexcept nogil
    CUresult (*cuMemGetAllocationGranularity)(size_t* granularity, const CUmemAllocationProp* properties,
                                              CUmemAllocationGranularity_flags option) noexcept nogil
    CUresult (*cuMemExportToShareableHandle)(void* shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType kind, unsigned long long flags) noexcept nogil
    CUresult (*cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle* handle, void* shareable,
                                               CUmemAllocationHandleType kind) noexcept nogil

    CUresult (*cuDeviceGetDefaultMemPool)(CUmemoryPool* pool, CUdevice device) noexcept nogil
    CUresult (*cuMemAllocFromPoolAsync)(CUdeviceptr* address, size_t size, CUmemoryPool pool,
                                        CUstream stream) noexcept nogil
    CUresult (*cuMemFreeAsync)(CUdeviceptr address, CUstream stream) noexcept nogil
    CUresult (*cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep) noexcept nogil
    CUresult (*cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept nogil
    CUresult (*cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept nogil
    CUresult (*cuMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) noexcept nogil

    CUresult (*cuStreamCreate)(CUstream* stream, unsigned int flags) noexcept nogil
    CUresult (*cuStreamQuery)(CUstream stream) noexcept nogil
    CUresult (*cuStreamSynchronize)(CUstream stream) noexcept nogil
    CUresult (*cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned int flags) noexcept nogil
    CUresult (*cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                       unsigned int flags) noexcept nogil
    CUresult (*cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                        unsigned int flags) noexcept nogil
    CUresult (*cuEventCreate)(CUevent* event, unsigned int flags) noexcept nogil
    CUresult (*cuEventDestroy_v2)(CUevent event) noexcept nogil
    CUresult (*cuEventRecord)(CUevent event, CUstream stream) noexcept nogil
    CUresult (*cuEventQuery)(CUevent event) noexcept nogil
    CUresult (*cuEventSynchronize)(CUevent event) noexcept nogil

    CUresult (*cuMemcpyAsync)(CUdeviceptr destination, CUdeviceptr source, size_t size,
                              CUstream stream) noexcept nogil
    CUresult (*cuMemcpyPeerAsync)(CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
                                  CUcontext source_context, size_t size, CUstream stream) noexcept nogil
    CUresult (*cuMemcpyHtoD_v2)(CUdeviceptr destination, const void* source, size_t size) noexcept nogil
    CUresult (*cuMemcpyDtoH_v2)(void* destination, CUdeviceptr source, size_t size) noexcept nogil
    CUresult (*cuMemsetD8Async)(CUdeviceptr address, unsigned char value, size_t count,
                                CUstream stream) noexcept nogil

    CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode) noexcept nogil
    CUresult (*cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode) noexcept nogil
    CUresult (*cuStreamEndCapture)(CUstream stream, CUgraph* graph) noexcept nogil
    CUresult (*cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus* status) noexcept nogil
    CUresult (*cuGraphGetNodes)(CUgraph graph, CUgraphNode* nodes, size_t* count) noexcept nogil
    CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec* executable, CUgraph graph,
                                            unsigned long long flags) noexcept nogil
    CUresult (*cuGraphLaunch)(CUgraphExec executable, CUstream stream) noexcept nogil
    CUresult (*cuGraphExecDestroy)(CUgraphExec executable) noexcept nogil
    CUresult (*cuGraphDestroy)(CUgraph graph) noexcept nogil

    # Since CUDA 12.3 edges can carry data, and the older form of these functions fails for such edges. The newer form
    # is NULL in an older driver, where no edge has data.
    CUresult (*cuStreamGetCaptureInfo_v3)(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                          CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData** edges,
                                          size_t* count) noexcept nogil
    CUresult (*cuStreamGetCaptureInfo_v2)(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                          CUgraph* graph, const CUgraphNode** nodes, size_t* count) noexcept nogil
    CUresult (*cuGraphNodeGetDependencies_v2)(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges,
                                              size_t* count) noexcept nogil
    CUresult (*cuGraphNodeGetDependencies)(CUgraphNode node, CUgraphNode* nodes, size_t* count) noexcept nogil


# All functions, valid once `open_driver` has returned, and constant from then on.
cdef Driver driver

# Opens and initializes libcuda, the first time; raises DeviceError if there is no usable driver.
cdef int open_driver() except -1

# Whether this process was forked after the driver was opened, or after an attempt to open it: then no driver function
# may be called.
cdef bint is_forked() noexcept nogil

# The status for a result. Keeps a failure's text for `last_error_text` of this thread.
cdef status_t status_of(CUresult result, const char* function) noexcept nogil
cdef status_t refuse(status_t status, const char* reason) noexcept nogil
cdef size_t last_error_text(char* text, size_t capacity) noexcept nogil
cdef void forget_words() noexcept nogil
