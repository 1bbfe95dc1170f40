/* The functions that Python calls. */
#include <string.h>

#include "parts.h"

EXPORT int allotment_preload_depth(void) { return options.is_off ? -1 : options.depth; }
EXPORT uint64_t allotment_preload_limit(void) { return options.limit; }

typedef struct Overview {
    uint64_t context, modules, others, held, pool_kept, graphs, used, is_measured;
} Overview;

/* Returns the figures of a device; queries the driver first if the device has a primary context. 0 if it has none. */
EXPORT int allotment_preload_overview(int device, Overview* overview) {
    CUcontext popped, context;
    size_t free_bytes = 0, total_bytes = 0;
    memset(overview, 0, sizeof *overview);
    if (device < 0 || device >= DEVICES || options.is_off) return 0;
    Figures* own = &figures[device];
    context = atomic_load(&own->primary);
    T_cuCtxPushCurrent_v2 push = REAL(cuCtxPushCurrent_v2);
    if (!context || !push || push(context) != SUCCESS) return 0;
    sample(device);
    REAL(cuMemGetInfo_v2)(&free_bytes, &total_bytes);
    T_cuDeviceGetGraphMemAttribute graphs = REAL(cuDeviceGetGraphMemAttribute);
    if (!graphs || graphs(device, GRAPH_RESERVED, &overview->graphs) != SUCCESS) overview->graphs = 0;
    Standing standing;
    ledger_standing(device, &standing);
    uint64_t reserved = pool_reserved(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    overview->context = atomic_load(&own->context);
    overview->modules = atomic_load(&own->modules);
    overview->others = atomic_load(&own->others);
    overview->held = standing.held;
    overview->pool_kept = reserved > standing.pooled ? reserved - standing.pooled : 0;
    overview->used = total_bytes - free_bytes;
    overview->is_measured = atomic_load(&own->measured) != NULL;
    return 1;
}

EXPORT int allotment_preload_libraries(void) { return library_count(); }

EXPORT void allotment_preload_library(int device, int library, char* name, Sum* sum) {
    strcpy(name, library_name(library));
    ledger_sum(device, library, sum);
}

/* Copies a stack's frames; returns 0 if the stack does not exist. */
EXPORT int allotment_preload_stack(uint32_t stack, void** frames, uint64_t* bytes, uint64_t* calls) {
    int length = stack_frames(stack, frames);
    if (length) *bytes = ledger_stack_bytes(stack, calls);
    return length;
}
