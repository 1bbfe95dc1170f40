/* The functions that callers get. Each returns the driver's result unchanged, and counts its effect. */
#include "parts.h"

/* Without the driver's function, no caller could have found ours. */
#define PASS(name, ...) T_##name real = REAL(name); if (!real) return NOT_FOUND; \
                        if (passes(F_##name, __builtin_return_address(0))) return real(__VA_ARGS__)

/* The memory that the driver uses for a request: whole pages from 1 MiB on. */
static uint64_t taken(uint64_t size) { return size < MIB ? size : (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB); }

typedef struct Pending { Entry entry; int is_counted; } Pending;

static CUcontext current_context(void) {
    CUcontext context = NULL;
    T_cuCtxGetCurrent real = REAL(cuCtxGetCurrent);
    return real && real(&context) == SUCCESS ? context : NULL;
}

/* Called before the driver is asked for memory. Returns 0 beyond the limit. Without a context the driver decides. */
static int begin(Pending* pending, int device, uint64_t size, int kind, Caller caller) {
    *pending = (Pending){{.size = size, .stack = caller.stack, .library = (uint16_t)caller.library,
                          .kind = (uint8_t)kind, .device = (uint8_t)device}, device >= 0};
    if (!pending->is_counted) return 1;
    if (kind == KIND_ASYNC) atomic_store(&figures[device].has_pool, 1);
    if (kind == KIND_PLAIN || kind == KIND_MANAGED) pending->entry.more = (uintptr_t)current_context();
    return limit_allows(device, size, caller);
}

static CUresult finish(Pending* pending, CUresult result, uint64_t key) {
    if (!pending->is_counted) return result;
    pending->entry.key = key;
    ledger_settle(&pending->entry, result == SUCCESS && ledger_add(&pending->entry), 0);
    return result;
}

/* The allocator frees and shares segments. A served block lies in one, perhaps at the same address. */
static int is_ours(Caller caller) { return caller.library == LIBRARY_OURS; }

/* A block freed twice may have the address of a segment of the allocator, which the caller must not free. */
static int is_the_allocators(CUdeviceptr address, Caller caller) {
    return options.depth == DEPTH_SERVE && !is_ours(caller) && ledger_library(address) == LIBRARY_OURS;
}

/* The driver may lack memory that the allocator only caches: then the cache is released, and the driver asked again.
 * The allocator itself does this for its own requests. */
#define WITH_ROOM(is_excluded, result, call) \
    do { \
        result = call; \
        if (result == OUT_OF_MEMORY && !(is_excluded) && serve_release_cached(current_device())) result = call; \
    } while (0)

/* --- plain memory --- */

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
    CUresult result;
    Pending pending;
    PASS(cuMemAlloc_v2, address, size);
    Caller caller = CALLER;
    if (serve_plain(address, size, caller, &result)) return result;
    if (!begin(&pending, current_device(), taken(size), KIND_PLAIN, caller)) return OUT_OF_MEMORY;
    WITH_ROOM(is_ours(caller), result, real(address, size));
    return finish(&pending, result, result == SUCCESS ? *address : 0);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                                   unsigned int element) {
    CUresult result;
    Pending pending;
    PASS(cuMemAllocPitch_v2, address, pitch, width, height, element);
    Caller caller = CALLER;
    uint64_t size = height && width <= UINT64_MAX / 2 / height ? (width + 511) / 512 * 512 * height : 0;
    if (!begin(&pending, current_device(), taken(size), KIND_PLAIN, caller)) return OUT_OF_MEMORY;
    WITH_ROOM(is_ours(caller), result, real(address, pitch, width, height, element));
    return finish(&pending, result, result == SUCCESS ? *address : 0);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned int flags) {
    CUresult result;
    Pending pending;
    PASS(cuMemAllocManaged, address, size, flags);
    Caller caller = CALLER;
    if (!begin(&pending, current_device(), taken(size), KIND_MANAGED, caller)) return OUT_OF_MEMORY;
    WITH_ROOM(is_ours(caller), result, real(address, size, flags));
    return finish(&pending, result, result == SUCCESS ? *address : 0);
}

/* pre: the entry was taken before the free; afterwards the address may belong to another caller. */
static CUresult finish_free(const Entry* entry, CUresult result) {
    int is_pooled = entry->kind == KIND_ASYNC || entry->kind == KIND_POOL;
    ledger_settle(entry, result != SUCCESS && ledger_add(entry), is_pooled);
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    Entry entry;
    PASS(cuMemFree_v2, address);
    Caller caller = CALLER;
    if (!is_ours(caller) && ledger_take_served(address, &entry)) return serve_free(&entry);
    if (is_the_allocators(address, caller)) return INVALID_VALUE;
    if (!ledger_take(address, &entry)) return real(address);
    return finish_free(&entry, real(address));
}

/* --- stream-ordered memory --- */

static int is_captured(CUstream stream) {
    int status = 0;
    T_cuStreamIsCapturing real = REAL(cuStreamIsCapturing);
    return real && real(stream, &status) == SUCCESS && status != 0;
}

/* A graph owns its memory: the driver's figures contain it, and the ledger does not. */
#define ALLOCATE_ASYNC(pool_used, call) \
    int place = is_plain ? device : device_of(pool_used, device); \
    if (is_captured(own)) return limit_allows_graph(place, size) ? call : OUT_OF_MEMORY; \
    if (!begin(&pending, place, (size + 511) / 512 * 512, is_plain ? KIND_ASYNC : KIND_POOL, caller)) \
        return OUT_OF_MEMORY; \
    WITH_ROOM(is_ours(caller), result, call); \
    return finish(&pending, result, result == SUCCESS ? *address : 0)

static int is_default(int device, CUpool pool) { return device >= 0 && pool == default_pool(device); }

/* Returns the pool that a device's requests without a pool come from. */
static CUpool pool_in_use(int device) {
    CUpool pool = NULL;
    T_cuDeviceGetMemPool real = REAL(cuDeviceGetMemPool);
    return real && real(&pool, device) == SUCCESS ? pool : default_pool(device);
}

/* Returns the device that has a pool's memory, -1 for host memory. Drivers before CUDA 13 do not tell: then it is the
 * current device. */
static int device_of(CUpool pool, int current) {
    int type = LOCATION_DEVICE, device = current;
    T_cuMemPoolGetAttribute real = REAL(cuMemPoolGetAttribute);
    if (current < 0 || !real || real(pool, POOL_LOCATION_TYPE, &type) != SUCCESS) return current;
    if (type >= LOCATION_HOST && type <= LOCATION_HOST_LAST) return -1;
    if (type != LOCATION_DEVICE || real(pool, POOL_LOCATION_ID, &device) != SUCCESS) return current;
    return device < DEVICES ? device : -1;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream stream) {
    CUresult result;
    Pending pending;
    PASS(cuMemAllocAsync, address, size, stream);
    Caller caller = CALLER;
    CUstream own = stream;
    int device = current_device();
    CUpool pool = device >= 0 ? pool_in_use(device) : NULL;
    int is_plain = is_default(device, pool);
    if (is_plain && serve_async(address, size, own, caller, &result)) return result;
    ALLOCATE_ASYNC(pool, real(address, size, stream));
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t size, CUstream stream) {
    CUresult result;
    Pending pending;
    PASS(cuMemAllocAsync_ptsz, address, size, stream);
    Caller caller = CALLER;
    CUstream own = stream ? stream : THREAD_STREAM;
    int device = current_device();
    CUpool pool = device >= 0 ? pool_in_use(device) : NULL;
    int is_plain = is_default(device, pool);
    if (is_plain && serve_async(address, size, own, caller, &result)) return result;
    ALLOCATE_ASYNC(pool, real(address, size, stream));
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t size, CUpool pool, CUstream stream) {
    CUresult result;
    Pending pending;
    PASS(cuMemAllocFromPoolAsync, address, size, pool, stream);
    Caller caller = CALLER;
    CUstream own = stream;
    int device = current_device(), is_plain = is_default(device, pool);
    if (is_plain && serve_async(address, size, own, caller, &result)) return result;
    ALLOCATE_ASYNC(pool, real(address, size, pool, stream));
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t size, CUpool pool, CUstream stream) {
    CUresult result;
    Pending pending;
    PASS(cuMemAllocFromPoolAsync_ptsz, address, size, pool, stream);
    Caller caller = CALLER;
    CUstream own = stream ? stream : THREAD_STREAM;
    int device = current_device(), is_plain = is_default(device, pool);
    if (is_plain && serve_async(address, size, own, caller, &result)) return result;
    ALLOCATE_ASYNC(pool, real(address, size, pool, stream));
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    Entry entry;
    PASS(cuMemFreeAsync, address, stream);
    if (is_captured(stream)) return real(address, stream);
    if (ledger_take_served(address, &entry)) return serve_free_async(&entry, stream);
    if (!ledger_take(address, &entry)) return real(address, stream);
    return finish_free(&entry, real(address, stream));
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    Entry entry;
    PASS(cuMemFreeAsync_ptsz, address, stream);
    CUstream own = stream ? stream : THREAD_STREAM;
    if (is_captured(own)) return real(address, stream);
    if (ledger_take_served(address, &entry)) return serve_free_async(&entry, own);
    if (!ledger_take(address, &entry)) return real(address, stream);
    return finish_free(&entry, real(address, stream));
}

/* --- virtual memory --- */

EXPORT CUresult cuMemCreate(CUhandle* handle, size_t size, const CUproperties* properties, unsigned long long flags) {
    CUresult result;
    Pending pending;
    PASS(cuMemCreate, handle, size, properties, flags);
    Caller caller = CALLER;
    int device = properties && properties->location_type == LOCATION_DEVICE ? properties->location_id : -1;
    if (device >= DEVICES) device = -1;
    if (!begin(&pending, device, size, KIND_CHUNK, caller)) return OUT_OF_MEMORY;
    pending.entry.more = 1;
    WITH_ROOM(is_ours(caller), result, real(handle, size, properties, flags));
    return finish(&pending, result, result == SUCCESS ? *handle : 0);
}

EXPORT CUresult cuMemRelease(CUhandle handle) {
    Entry ended;
    PASS(cuMemRelease, handle);
    int has_ended = ledger_chunk(handle, -1, &ended);
    CUresult result = real(handle);
    ended.more = 1;
    if (has_ended) return finish_free(&ended, result);
    if (result != SUCCESS) ledger_chunk(handle, 1, &ended);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle* handle, void* address) {
    Entry ended;
    PASS(cuMemRetainAllocationHandle, handle, address);
    CUresult result = real(handle, address);
    if (result == SUCCESS) ledger_chunk(*handle, 1, &ended);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUhandle handle, unsigned long long flags) {
    PASS(cuMemMap, address, size, offset, handle, flags);
    CUresult result = real(address, size, offset, handle, flags);
    if (result == SUCCESS) ledger_add(&(Entry){.key = address, .size = size, .more = handle, .kind = KIND_MAPPING});
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    Entry ended;
    int has_ended;
    PASS(cuMemUnmap, address, size);
    CUresult result = real(address, size);
    for (uint64_t at = address, own; result == SUCCESS && at < address + size; at += own) {
        own = ledger_unmap(at, &ended, &has_ended);
        if (!own) break;
        if (has_ended) ledger_settle(&ended, 0, 0);
    }
    return result;
}

/* --- queries --- */

EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    PASS(cuMemGetInfo_v2, free_bytes, total_bytes);
    CUresult result = real(free_bytes, total_bytes);
    int device = options.limit && result == SUCCESS ? current_device() : -1;
    if (device >= 0) limit_info(device, free_bytes, total_bytes);
    return result;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
    Entry entry;
    PASS(cuMemGetAddressRange_v2, base, size, address);
    if (!ledger_find_served(address, &entry)) return real(base, size, address);
    if (base) *base = entry.key;
    if (size) *size = entry.size;
    return SUCCESS;
}

/* The driver would share the whole segment that contains a served block. */
EXPORT CUresult cuIpcGetMemHandle(void* handle, CUdeviceptr address) {
    Entry entry;
    PASS(cuIpcGetMemHandle, handle, address);
    Caller caller = CALLER;
    if (is_ours(caller) || !ledger_find_served(address, &entry)) return real(handle, address);
    say(SAID_SHARED, "%s shares memory with another process, which served memory cannot be: use --depth count or a "
        "larger --min-size", library_name(caller.library));
    return NOT_SUPPORTED;
}

/* --- functions that load code --- */

#define LOADS(name, parameters, ...) \
    EXPORT CUresult name parameters { \
        CUresult result; \
        PASS(name, __VA_ARGS__); \
        WITH_ROOM(0, result, real(__VA_ARGS__)); \
        if (result == SUCCESS) after_load(); \
        return result; \
    }
LOADS(cuModuleLoad, (void** module, const char* file), module, file)
LOADS(cuModuleLoadData, (void** module, const void* image), module, image)
LOADS(cuModuleLoadDataEx, (void** module, const void* image, unsigned int count, int* options_, void** values),
      module, image, count, options_, values)
LOADS(cuModuleLoadFatBinary, (void** module, const void* image), module, image)
LOADS(cuModuleGetFunction, (CUfunction* function, void* module, const char* name), function, module, name)
LOADS(cuKernelGetFunction, (CUfunction* function, void* kernel), function, kernel)
LOADS(cuLibraryLoadData, (void** library, const void* code, int* choices, void** values, unsigned int count,
                          int* library_choices, void** library_values, unsigned int library_count_),
      library, code, choices, values, count, library_choices, library_values, library_count_)
LOADS(cuLibraryLoadFromFile, (void** library, const char* file, int* choices, void** values, unsigned int count,
                              int* library_choices, void** library_values, unsigned int library_count_),
      library, file, choices, values, count, library_choices, library_values, library_count_)

#define LAUNCHES(name, parameters, stream_used, ...) \
    EXPORT CUresult name parameters { \
        CUresult result; \
        PASS(name, __VA_ARGS__); \
        WITH_ROOM(is_captured(stream_used), result, real(__VA_ARGS__)); \
        if (result == SUCCESS) note_launch(function); \
        return result; \
    }
LAUNCHES(cuLaunchKernel, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                          unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                          CUstream stream, void** parameters, void** extra),
         stream, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra)
LAUNCHES(cuLaunchKernel_ptsz, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                               unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                               CUstream stream, void** parameters, void** extra),
         (stream ? stream : THREAD_STREAM), function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra)
LAUNCHES(cuLaunchKernelEx, (const CUlaunch* how, CUfunction function, void** parameters, void** extra),
         (how ? how->stream : NULL), how, function, parameters, extra)
LAUNCHES(cuLaunchKernelEx_ptsz, (const CUlaunch* how, CUfunction function, void** parameters, void** extra),
         (how && how->stream ? how->stream : THREAD_STREAM), how, function, parameters, extra)
LAUNCHES(cuLaunchCooperativeKernel, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                     unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                     unsigned int shared, CUstream stream, void** parameters),
         stream, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters)
LAUNCHES(cuLaunchCooperativeKernel_ptsz, (CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                          unsigned int block_z, unsigned int shared, CUstream stream,
                                          void** parameters),
         (stream ? stream : THREAD_STREAM), function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters)

/* --- streams and contexts --- */

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
    PASS(cuStreamCreate, stream, flags);
    CUresult result = real(stream, flags);
    if (result == SUCCESS) note_stream(*stream, current_context());
    return result;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
    PASS(cuStreamCreateWithPriority, stream, flags, priority);
    CUresult result = real(stream, flags, priority);
    if (result == SUCCESS) note_stream(*stream, current_context());
    return result;
}
EXPORT CUresult cuGreenCtxStreamCreate(CUstream* stream, void* context, unsigned int flags, int priority) {
    PASS(cuGreenCtxStreamCreate, stream, context, flags, priority);
    CUresult result = real(stream, context, flags, priority);
    if (result == SUCCESS) note_stream(*stream, NULL);
    return result;
}
/* Callers find the oldest forms by dlsym with a name that has no version. */
#define DESTROYS_STREAM(name) \
    EXPORT CUresult name(CUstream stream) { \
        PASS(name, stream); \
        note_no_stream(stream); \
        return real(stream); \
    }
DESTROYS_STREAM(cuStreamDestroy)
DESTROYS_STREAM(cuStreamDestroy_v2)

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    PASS(cuDevicePrimaryCtxRetain, context, device);
    uint64_t used_before = used_before_context(device);
    CUresult result = real(context, device);
    if (result == SUCCESS) context_made(device, *context, 1, used_before);
    return result;
}
static CUcontext primary_of(int device) {
    return device >= 0 && device < DEVICES ? atomic_load(&figures[device].primary) : NULL;
}
/* All memory and all streams of a context end with it. */
static void primary_ended(int device) {
    CUcontext context = primary_of(device);
    if (context) context_ended(device, context);
}
#define RESETS(name) \
    EXPORT CUresult name(CUdevice device) { \
        PASS(name, device); \
        streams_end(primary_of(device)); \
        CUresult result = real(device); \
        if (result == SUCCESS) primary_ended(device); \
        return result; \
    }
RESETS(cuDevicePrimaryCtxReset)
RESETS(cuDevicePrimaryCtxReset_v2)

static int is_inactive(CUdevice device) {
    unsigned int flags;
    int is_active = 1;
    T_cuDevicePrimaryCtxGetState state = REAL(cuDevicePrimaryCtxGetState);
    return state && state(device, &flags, &is_active) == SUCCESS && !is_active;
}
#define RELEASES(name) \
    EXPORT CUresult name(CUdevice device) { \
        PASS(name, device); \
        CUresult result = real(device); \
        if (result == SUCCESS && is_inactive(device)) primary_ended(device); \
        return result; \
    }
RELEASES(cuDevicePrimaryCtxRelease)
RELEASES(cuDevicePrimaryCtxRelease_v2)

static int device_of_context(CUcontext context) {
    CUcontext popped;
    T_cuCtxPushCurrent_v2 push = REAL(cuCtxPushCurrent_v2);
    T_cuCtxPopCurrent_v2 pop = REAL(cuCtxPopCurrent_v2);
    if (!push || !pop || push(context) != SUCCESS) return -1;
    int device = current_device();
    pop(&popped);
    return device;
}
#define DESTROYS_CONTEXT(name) \
    EXPORT CUresult name(CUcontext context) { \
        PASS(name, context); \
        int device = device_of_context(context); \
        streams_end(context);       /* before it ends: another thread may query them at any moment */ \
        CUresult result = real(context); \
        if (result == SUCCESS) context_ended(device, context); \
        return result; \
    }
DESTROYS_CONTEXT(cuCtxDestroy)
DESTROYS_CONTEXT(cuCtxDestroy_v2)

#define CREATES_CONTEXT(name, parameters, ...) \
    EXPORT CUresult name parameters { \
        PASS(name, __VA_ARGS__); \
        uint64_t used_before = used_before_context(device); \
        CUresult result = real(__VA_ARGS__); \
        if (result == SUCCESS) context_made(device, *context, 0, used_before); \
        return result; \
    }
CREATES_CONTEXT(cuCtxCreate, (CUcontext* context, unsigned int flags, CUdevice device), context, flags, device)
CREATES_CONTEXT(cuCtxCreate_v2, (CUcontext* context, unsigned int flags, CUdevice device), context, flags, device)
CREATES_CONTEXT(cuCtxCreate_v3,
                (CUcontext* context, void* parameters, int count, unsigned int flags, CUdevice device),
                context, parameters, count, flags, device)
CREATES_CONTEXT(cuCtxCreate_v4, (CUcontext* context, void* parameters, unsigned int flags, CUdevice device),
                context, parameters, flags, device)
