/* What this library knows of the CUDA driver: a few types, and every function that it replaces. */
#ifndef ALLOTMENT_PRELOAD_DRIVER_H
#define ALLOTMENT_PRELOAD_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle;
typedef void* CUcontext;
typedef void* CUstream;
typedef void* CUpool;
typedef void* CUfunction;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, NOT_FOUND = 500, NOT_SUPPORTED = 801, UNKNOWN_ERROR = 999,
    LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_LAST = 4, CAPTURE_RELAXED = 2, GRAPH_RESERVED = 2,
    RESERVED_IN_POOL = 5, POOL_LOCATION_ID = 11, POOL_LOCATION_TYPE = 12,
    PER_THREAD_FLAG = 2, NEWEST_KNOWN = 13990      /* the newest CUDA whose functions are known to have these forms */
};
#define LEGACY_STREAM ((CUstream)1)
#define THREAD_STREAM ((CUstream)2)

typedef struct { int type, handle_types, location_type, location_id; } CUproperties;    /* its beginning */

typedef struct { unsigned int sizes[7]; CUstream stream; } CUlaunch;                    /* likewise */

/* FUNCTION(exported name, name for cuGetProcAddress, the CUDA since which that name means this form, whether stream 0
 * is the calling thread's, parameters). */
#define EVERY_FUNCTION \
    FUNCTION(cuGetProcAddress, cuGetProcAddress, 11030, 0, \
             (const char* name, void** found, int version, uint64_t flags)) \
    FUNCTION(cuGetProcAddress_v2, cuGetProcAddress, 12000, 0, \
             (const char* name, void** found, int version, uint64_t flags, int* status)) \
    FUNCTION(cuMemAlloc_v2, cuMemAlloc, 3020, 0, (CUdeviceptr* address, size_t size)) \
    FUNCTION(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, 0, \
             (CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned int element)) \
    FUNCTION(cuMemAllocManaged, cuMemAllocManaged, 6000, 0, (CUdeviceptr* address, size_t size, unsigned int flags)) \
    FUNCTION(cuMemFree_v2, cuMemFree, 3020, 0, (CUdeviceptr address)) \
    FUNCTION(cuMemAllocAsync, cuMemAllocAsync, 11020, 0, (CUdeviceptr* address, size_t size, CUstream stream)) \
    FUNCTION(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, 1, (CUdeviceptr* address, size_t size, CUstream stream)) \
    FUNCTION(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0, \
             (CUdeviceptr* address, size_t size, CUpool pool, CUstream stream)) \
    FUNCTION(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, 1, \
             (CUdeviceptr* address, size_t size, CUpool pool, CUstream stream)) \
    FUNCTION(cuMemFreeAsync, cuMemFreeAsync, 11020, 0, (CUdeviceptr address, CUstream stream)) \
    FUNCTION(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, 1, (CUdeviceptr address, CUstream stream)) \
    FUNCTION(cuMemCreate, cuMemCreate, 10020, 0, \
             (CUhandle* handle, size_t size, const CUproperties* properties, unsigned long long flags)) \
    FUNCTION(cuMemRelease, cuMemRelease, 10020, 0, (CUhandle handle)) \
    FUNCTION(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 0, (CUhandle* handle, void* address)) \
    FUNCTION(cuMemMap, cuMemMap, 10020, 0, \
             (CUdeviceptr address, size_t size, size_t offset, CUhandle handle, unsigned long long flags)) \
    FUNCTION(cuMemUnmap, cuMemUnmap, 10020, 0, (CUdeviceptr address, size_t size)) \
    FUNCTION(cuMemGetInfo_v2, cuMemGetInfo, 3020, 0, (size_t* free_bytes, size_t* total_bytes)) \
    FUNCTION(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020, 0, \
             (CUdeviceptr* base, size_t* size, CUdeviceptr address)) \
    FUNCTION(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, 0, (void* handle, CUdeviceptr address)) \
    FUNCTION(cuModuleLoad, cuModuleLoad, 2000, 0, (void** module, const char* file)) \
    FUNCTION(cuModuleLoadData, cuModuleLoadData, 2000, 0, (void** module, const void* image)) \
    FUNCTION(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, 0, \
             (void** module, const void* image, unsigned int count, int* options, void** values)) \
    FUNCTION(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000, 0, (void** module, const void* image)) \
    FUNCTION(cuModuleGetFunction, cuModuleGetFunction, 2000, 0, \
             (CUfunction* function, void* module, const char* name)) \
    FUNCTION(cuLibraryLoadData, cuLibraryLoadData, 12000, 0, \
             (void** library, const void* code, int* options, void** values, unsigned int count, \
              int* library_options, void** library_values, unsigned int library_count)) \
    FUNCTION(cuLibraryLoadFromFile, cuLibraryLoadFromFile, 12000, 0, \
             (void** library, const char* file, int* options, void** values, unsigned int count, \
              int* library_options, void** library_values, unsigned int library_count)) \
    FUNCTION(cuKernelGetFunction, cuKernelGetFunction, 12000, 0, (CUfunction* function, void* kernel)) \
    FUNCTION(cuLaunchKernel, cuLaunchKernel, 4000, 0, \
             (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
              unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, \
              CUstream stream, void** parameters, void** extra)) \
    FUNCTION(cuLaunchKernel_ptsz, cuLaunchKernel, 7000, 1, \
             (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
              unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, \
              CUstream stream, void** parameters, void** extra)) \
    FUNCTION(cuLaunchKernelEx, cuLaunchKernelEx, 11060, 0, \
             (const CUlaunch* how, CUfunction function, void** parameters, void** extra)) \
    FUNCTION(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, 1, \
             (const CUlaunch* how, CUfunction function, void** parameters, void** extra)) \
    FUNCTION(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, 0, \
             (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
              unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, \
              CUstream stream, void** parameters)) \
    FUNCTION(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, 1, \
             (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
              unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared, \
              CUstream stream, void** parameters)) \
    FUNCTION(cuStreamCreate, cuStreamCreate, 2000, 0, (CUstream* stream, unsigned int flags)) \
    FUNCTION(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, 0, \
             (CUstream* stream, unsigned int flags, int priority)) \
    FUNCTION(cuGreenCtxStreamCreate, cuGreenCtxStreamCreate, 12050, 0, \
             (CUstream* stream, void* context, unsigned int flags, int priority)) \
    FUNCTION(cuStreamDestroy, cuStreamDestroy, 2000, 0, (CUstream stream)) \
    FUNCTION(cuStreamDestroy_v2, cuStreamDestroy, 4000, 0, (CUstream stream)) \
    FUNCTION(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0, (CUcontext* context, CUdevice device)) \
    FUNCTION(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0, (CUdevice device)) \
    FUNCTION(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, 0, (CUdevice device)) \
    FUNCTION(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 0, (CUdevice device)) \
    FUNCTION(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, 0, (CUdevice device)) \
    FUNCTION(cuCtxDestroy, cuCtxDestroy, 2000, 0, (CUcontext context)) \
    FUNCTION(cuCtxDestroy_v2, cuCtxDestroy, 4000, 0, (CUcontext context)) \
    FUNCTION(cuCtxCreate, cuCtxCreate, 2000, 0, (CUcontext* context, unsigned int flags, CUdevice device)) \
    FUNCTION(cuCtxCreate_v2, cuCtxCreate, 3020, 0, (CUcontext* context, unsigned int flags, CUdevice device)) \
    FUNCTION(cuCtxCreate_v3, cuCtxCreate, 11040, 0, \
             (CUcontext* context, void* parameters, int count, unsigned int flags, CUdevice device)) \
    FUNCTION(cuCtxCreate_v4, cuCtxCreate, 12050, 0, \
             (CUcontext* context, void* parameters, unsigned int flags, CUdevice device))

/* Further functions, which only this library calls. */
#define EVERY_HELPER \
    HELPER(cuDriverGetVersion, (int* version)) \
    HELPER(cuCtxGetCurrent, (CUcontext* context)) \
    HELPER(cuCtxGetDevice, (CUdevice* device)) \
    HELPER(cuCtxPushCurrent_v2, (CUcontext context)) \
    HELPER(cuCtxPopCurrent_v2, (CUcontext* context)) \
    HELPER(cuCtxSynchronize, (void)) \
    HELPER(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int* flags, int* is_active)) \
    HELPER(cuDeviceGetPCIBusId, (char* text, int length, CUdevice device)) \
    HELPER(cuStreamQuery, (CUstream stream)) \
    HELPER(cuStreamIsCapturing, (CUstream stream, int* status)) \
    HELPER(cuThreadExchangeStreamCaptureMode, (int* mode)) \
    HELPER(cuDeviceGetDefaultMemPool, (CUpool* pool, CUdevice device)) \
    HELPER(cuDeviceGetMemPool, (CUpool* pool, CUdevice device)) \
    HELPER(cuMemPoolGetAttribute, (CUpool pool, int attribute, void* value)) \
    HELPER(cuMemPoolTrimTo, (CUpool pool, size_t keep)) \
    HELPER(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, void* value))

enum {
#define FUNCTION(name, base, since, per_thread, parameters) F_##name,
#define HELPER(name, parameters) F_##name,
    EVERY_FUNCTION EVERY_HELPER
#undef FUNCTION
#undef HELPER
    FUNCTIONS
};

#define FUNCTION(name, base, since, per_thread, parameters) \
    typedef CUresult (*T_##name) parameters; CUresult name parameters;
#define HELPER(name, parameters) typedef CUresult (*T_##name) parameters;
EVERY_FUNCTION EVERY_HELPER
#undef FUNCTION
#undef HELPER

/* Returns the driver's own function; NULL if the driver has none with that name. */
void* real_function(int number);
#define REAL(name) ((T_##name)real_function(F_##name))

#endif
