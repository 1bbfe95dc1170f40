/* NVIDIA's management library as far as PyTorch asks it: a device is found, and takes no part in a fabric. */

#include <stddef.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
    *device = (void*)1;
    return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(void* device, void* info) { return SUCCESS; }      /* as it came: not completed */
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* processes) {
    *count = 0;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* kind) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, void* info) { return NOT_SUPPORTED; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = 13000;
    return SUCCESS;
}
