"""Processes with memory on a GPU, as NVIDIA's management library reports them: for out-of-memory reports.

After any failure the list is empty, so that the failure cannot replace the report. Processes of other containers are
often missing, or have no size.
"""

from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int mode)
    void* dlsym(void* library, const char* name)
    enum:
        RTLD_NOW
        RTLD_LOCAL

ctypedef int nvmlReturn_t
ctypedef void* nvmlDevice_t

cdef enum:
    NVML_SUCCESS = 0
    NVML_ERROR_INSUFFICIENT_SIZE = 7

cdef struct nvmlProcessInfo_t:
    unsigned int pid
    unsigned long long usedGpuMemory
    unsigned int gpuInstanceId
    unsigned int computeInstanceId

cdef unsigned long long NOT_AVAILABLE = ~(<unsigned long long> 0)

ctypedef nvmlReturn_t (*init_t)() noexcept nogil
ctypedef nvmlReturn_t (*find_t)(const char* pci_bus_id, nvmlDevice_t* device) noexcept nogil
ctypedef nvmlReturn_t (*list_t)(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* found) noexcept nogil

cdef find_t find_device = NULL
cdef list_t list_processes = NULL           # set last: not NULL means that the library is ready


cdef bint open_library() noexcept nogil:
    global find_device, list_processes
    cdef void* library
    cdef init_t init
    if list_processes != NULL:
        return True
    library = dlopen(b"libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        return False
    init = <init_t> dlsym(library, b"nvmlInit_v2")
    find_device = <find_t> dlsym(library, b"nvmlDeviceGetHandleByPciBusId_v2")
    if init == NULL or find_device == NULL or init() != NVML_SUCCESS:
        return False
    list_processes = <list_t> dlsym(library, b"nvmlDeviceGetComputeRunningProcesses_v3")
    return list_processes != NULL


cdef nvmlProcessInfo_t* fetch(const char* pci_bus_id, unsigned int* count) noexcept nogil:
    """Return all processes on the device, in memory to be freed; NULL on failure."""
    cdef nvmlDevice_t device = NULL
    cdef nvmlProcessInfo_t* found = NULL
    cdef nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE
    count[0] = 32
    if not open_library() or find_device(pci_bus_id, &device) != NVML_SUCCESS:
        return NULL
    while result == NVML_ERROR_INSUFFICIENT_SIZE:
        free(found)
        count[0] *= 2                       # processes may have started since the library counted
        found = <nvmlProcessInfo_t*> malloc(count[0] * sizeof(nvmlProcessInfo_t))
        if found == NULL:
            return NULL
        result = list_processes(device, count, found)
    if result != NVML_SUCCESS:
        free(found)
        return NULL
    return found


def processes(str pci_bus_id not None) -> list[tuple[int, int]]:
    """Return (process id, bytes) of every process with memory on a GPU; empty if unknown."""
    cdef bytes encoded = pci_bus_id.encode()
    cdef const char* text = encoded
    cdef unsigned int count = 0
    cdef nvmlProcessInfo_t* found
    with nogil:
        found = fetch(text, &count)
    if found == NULL:
        return []
    try:
        return [(found[<size_t> at].pid, found[<size_t> at].usedGpuMemory) for at in range(count)
                if found[<size_t> at].usedGpuMemory != NOT_AVAILABLE]
    finally:
        free(found)
