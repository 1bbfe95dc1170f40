/* The CUDA runtime on the driver that is made of host memory (fake_libcuda.c): as much as PyTorch calls to have streams,
 * to hand out tensors and to capture graphs, so that its allocator can be tested without a GPU.
 *
 * Compiled together with the driver into one library, which is preloaded: its functions stand before those of the real
 * runtime. A kernel does nothing. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef unsigned long long Address;
#define TO_ERROR(status) ((cudaError_t) (status))

Status cuInit(unsigned);
Status cuDeviceGetCount(int*);
Status cuDeviceCanAccessPeer(int*, int, int);
Status cuDevicePrimaryCtxRetain(void**, int);
Status cuDeviceTotalMem_v2(size_t*, int);
Status cuCtxSetCurrent(void*);
Status cuCtxSynchronize(void);
Status cuCtxEnablePeerAccess(void*, unsigned);
Status cuMemAlloc_v2(Address*, size_t);
Status cuMemFree_v2(Address);
Status cuMemGetInfo_v2(size_t*, size_t*);
Status cuMemHostAlloc(void**, size_t, unsigned);
Status cuMemFreeHost(void*);
Status cuMemHostRegister_v2(void*, size_t, unsigned);
Status cuMemHostUnregister(void*);
int fake_is_pinned(const void*);
Status cuMemcpyAsync(Address, Address, size_t, void*);
Status cuMemsetD8Async(Address, unsigned char, size_t, void*);
Status cuStreamCreate(void**, unsigned);
Status cuStreamQuery(void*);
Status cuStreamSynchronize(void*);
Status cuStreamWaitEvent(void*, void*, unsigned);
Status cuStreamIsCapturing(void*, int*);
Status cuStreamGetCaptureInfo_v3(void*, int*, unsigned long long*, void**, const void**, const void**, size_t*);
Status cuStreamBeginCapture_v2(void*, int);
Status cuStreamEndCapture(void*, void**);
Status cuThreadExchangeStreamCaptureMode(int*);
Status cuEventCreate(void**, unsigned);
Status cuEventDestroy_v2(void*);
Status cuEventRecord(void*, void*);
Status cuEventQuery(void*);
Status cuEventSynchronize(void*);
Status cuGraphGetNodes(void*, void**, size_t*);
Status cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
Status cuGraphLaunch(void*, void*);
Status cuGraphDestroy(void*);
Status cuGraphExecDestroy(void*);
Status cuGraphNodeGetDependencies_v2(void*, void**, void*, size_t*);
Status cuIpcGetMemHandle(void*, Address);
Status cuIpcOpenMemHandle_v2(Address*, cudaIpcMemHandle_t, unsigned);
Status cuIpcCloseMemHandle(Address);
Status cuIpcGetEventHandle(void*, void*);
Status cuIpcOpenEventHandle(void**, cudaIpcEventHandle_t);

static __thread int current = -1;
static __thread cudaError_t last;
static void* contexts[16];

static cudaError_t note(Status status) {
    if (status != 0 && getenv("FAKE_CUDA_TELL")) fprintf(stderr, "fake cudart: status %d\n", status);
    if (status != 0) last = TO_ERROR(status);
    return TO_ERROR(status);
}

/* Every thread works on device 0 until it says otherwise. */
static void enter(void) {
    if (current < 0) cudaSetDevice(0);
}

cudaError_t cudaSetDevice(int device) {
    cuInit(0);
    if (contexts[device] == NULL) cuDevicePrimaryCtxRetain(&contexts[device], device);
    current = device;
    return note(cuCtxSetCurrent(contexts[device]));
}
cudaError_t cudaGetDevice(int* device) { *device = current < 0 ? 0 : current; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { cuInit(0); return note(cuDeviceGetCount(count)); }
cudaError_t cudaGetLastError(void) { cudaError_t found = last; last = cudaSuccess; return found; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "failed"; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError"; }
cudaError_t cudaDeviceSynchronize(void) { enter(); return note(cuCtxSynchronize()); }
cudaError_t cudaDriverGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr which, int device) { *value = 1; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) { snprintf(text, size, "0000:00:0%d.0", device); return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* most) { enter(); *least = 0; *most = -1; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) { return note(cuDeviceCanAccessPeer(can, device, peer)); }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    const int device = current;
    enter();
    if (contexts[peer] == NULL) cuDevicePrimaryCtxRetain(&contexts[peer], peer);
    (void) device;
    return note(cuCtxEnablePeerAccess(contexts[peer], flags));
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* found, int device) {
    memset(found, 0, sizeof(*found));
    strcpy(found->name, "host memory");
    cuDeviceTotalMem_v2(&found->totalGlobalMem, device);
    found->major = 9;
    found->multiProcessorCount = 1;
    found->warpSize = 32;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t size) { enter(); return note(cuMemAlloc_v2((Address*) address, size)); }
cudaError_t cudaFree(void* address) { enter(); return note(address ? cuMemFree_v2((Address) address) : 0); }
cudaError_t cudaMemGetInfo(size_t* left, size_t* total) { enter(); return note(cuMemGetInfo_v2(left, total)); }
cudaError_t cudaHostAlloc(void** address, size_t size, unsigned flags) { enter(); return note(cuMemHostAlloc(address, size, flags)); }
cudaError_t cudaHostRegister(void* address, size_t size, unsigned flags) { enter(); return note(cuMemHostRegister_v2(address, size, flags | 1)); }
cudaError_t cudaHostUnregister(void* address) { enter(); return note(cuMemHostUnregister(address)); }
cudaError_t cudaFreeHost(void* address) { enter(); return note(cuMemFreeHost(address)); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    enter();
    return note(cuMemcpyAsync((Address) to, (Address) from, size, stream));
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, enum cudaMemcpyKind kind) {
    cudaMemcpyAsync(to, from, size, kind, NULL);
    return note(cuStreamSynchronize(NULL));
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t size, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
    enter();
    return note(cuMemsetD8Async((Address) to, value, size, stream));
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* found, const void* address) {
    memset(found, 0, sizeof(*found));
    found->type = fake_is_pinned(address) ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    found->devicePointer = (void*) address;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    enter();
    return note(cuStreamCreate((void**) stream, flags));
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { enter(); return TO_ERROR(cuStreamQuery(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { enter(); return note(cuStreamSynchronize(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    enter();
    return note(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) { enter(); return note(cuEventCreate((void**) event, flags & ~cudaEventBlockingSync)); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { enter(); return note(cuEventDestroy_v2(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { enter(); return note(cuEventRecord(event, stream)); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventQuery(cudaEvent_t event) { enter(); return TO_ERROR(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { enter(); return note(cuEventSynchronize(event)); }

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
    enter();
    return note(cuThreadExchangeStreamCaptureMode((int*) mode));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
    enter();
    return note(cuStreamIsCapturing(stream, (int*) status));
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
    unsigned long long some_id = 0;
    void* some_graph = NULL;
    const void *some_nodes = NULL, *some_edges = NULL;
    size_t some_count = 0;
    enter();
    Status done = cuStreamGetCaptureInfo_v3(stream, (int*) status, &some_id, &some_graph, &some_nodes, &some_edges, &some_count);
    if (id) *id = some_id;
    if (graph) *graph = some_graph;
    if (nodes) *nodes = some_nodes;
    if (edges) *edges = some_edges;
    if (count) *count = some_count;
    return note(done);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) { enter(); return note(cuStreamBeginCapture_v2(stream, cudaStreamCaptureModeThreadLocal)); }
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) { enter(); return note(cuStreamEndCapture(stream, (void**) graph)); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) { return note(cuGraphGetNodes(graph, (void**) nodes, count)); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
    enter();
    return note(cuGraphInstantiateWithFlags((void**) made, graph, 0));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) { return cudaGraphInstantiate(made, graph, flags); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { enter(); return note(cuGraphLaunch(graph, stream)); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return note(cuGraphDestroy(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return note(cuGraphExecDestroy(graph)); }
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges, size_t* count) {
    return note(cuGraphNodeGetDependencies_v2(node, (void**) nodes, edges, count));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) { enter(); return note(cuIpcGetMemHandle(handle, (Address) address)); }
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) { enter(); return note(cuIpcOpenMemHandle_v2((Address*) address, handle, flags)); }
cudaError_t cudaIpcCloseMemHandle(void* address) { enter(); return note(cuIpcCloseMemHandle((Address) address)); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) { enter(); return note(cuIpcGetEventHandle(handle, event)); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) { enter(); return note(cuIpcOpenEventHandle((void**) event, handle)); }

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) { *milliseconds = 1; return cudaSuccess; }
cudaError_t cudaMemset(void* to, int value, size_t size) { return cudaMemsetAsync(to, value, size, NULL); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* found, const void* kernel) { memset(found, 0, sizeof(*found)); found->maxThreadsPerBlock = 1024; return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void* kernel, enum cudaFuncAttribute which, int value) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void* kernel, int threads, size_t shared, unsigned flags) { *count = 1; return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* kernel, void** arguments) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) { return cudaSuccess; }

/* What PyTorch asks of the driver itself. */
Status cuMemRetainAllocationHandle(Address* handle, void* address) { return 801; }
Status cuMemGetAllocationPropertiesFromHandle(void* properties, Address handle) { return 801; }
Status cuMemsetD32Async(Address to, unsigned value, size_t count, void* stream) { return 801; }
extern void* dlsym(void*, const char*);
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult* found) {
    char with_version[128];
    *function = dlsym(NULL, name);
    snprintf(with_version, sizeof(with_version), "%s_v2", name);
    if (*function == NULL) *function = dlsym(NULL, with_version);
    if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
