/* What this process has on a device according to the driver, next to what was counted.
 *
 * The size of the context is the difference that its creation made. NVML reports it, and needs no context itself. The
 * size of modules is the difference around loads, and around the first launch of each function, at which the driver
 * loads most of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

#include "parts.h"

enum { SAMPLES_APART_NS = 2000000, LAUNCHED = 1 << 16 };

Figures figures[DEVICES];

int current_device(void) {
    CUdevice device = -1;
    T_cuCtxGetDevice real = REAL(cuCtxGetDevice);
    return real && real(&device) == SUCCESS && device >= 0 && device < DEVICES ? device : -1;
}

/* --- NVML --- */

static struct {
    atomic_int state;       /* 0 not tried, 1 being tried, 2 available, 3 missing */
    int (*by_bus)(const char*, void**);
    int (*memory)(void*, unsigned long long*);
} nvml;

static void open_nvml(void) {
    int expected = 0;
    if (!atomic_compare_exchange_strong(&nvml.state, &expected, 1)) return;
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = library ? (int (*)(void))dlsym(library, "nvmlInit_v2") : NULL;
    if (library) {
        nvml.by_bus = (int (*)(const char*, void**))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
        nvml.memory = (int (*)(void*, unsigned long long*))dlsym(library, "nvmlDeviceGetMemoryInfo");
    }
    atomic_store(&nvml.state, init && nvml.by_bus && nvml.memory && init() == 0 ? 2 : 3);
}

uint64_t used_before_context(int device) {
    char bus[32];
    void* handle = NULL;
    unsigned long long total_free_used[3];
    T_cuDeviceGetPCIBusId bus_of = REAL(cuDeviceGetPCIBusId);
    if (device < 0 || device >= DEVICES || atomic_load(&figures[device].measured)) return UINT64_MAX;
    open_nvml();
    if (atomic_load(&nvml.state) != 2 || !bus_of || bus_of(bus, sizeof bus, device) != SUCCESS) return UINT64_MAX;
    if (nvml.by_bus(bus, &handle) != 0 || nvml.memory(handle, total_free_used) != 0) return UINT64_MAX;
    return total_free_used[2];
}

/* --- the context --- */

static int ask(uint64_t* used) {
    size_t free_bytes = 0, total_bytes = 0;
    int mode = CAPTURE_RELAXED;             /* our query must not end a capture */
    T_cuThreadExchangeStreamCaptureMode exchange = REAL(cuThreadExchangeStreamCaptureMode);
    T_cuMemGetInfo_v2 real = REAL(cuMemGetInfo_v2);
    if (exchange) exchange(&mode);
    int worked = real && real(&free_bytes, &total_bytes) == SUCCESS;
    if (exchange) exchange(&mode);
    if (!worked) return 0;
    *used = total_bytes - free_bytes;
    return 1;
}

void context_made(int device, CUcontext context, int is_primary, uint64_t used_before) {
    CUcontext popped, none = NULL;
    Standing before;
    uint64_t used = 0;
    if (device < 0 || device >= DEVICES) return;
    Figures* own = &figures[device];
    if (is_primary) atomic_store(&own->primary, context);
    T_cuCtxPushCurrent_v2 push = REAL(cuCtxPushCurrent_v2);
    T_cuCtxPopCurrent_v2 pop = REAL(cuCtxPopCurrent_v2);
    if (atomic_load(&own->measured) || !push || !pop || push(context) != SUCCESS) return;
    ledger_standing(device, &before);
    uint64_t used_now = used_before_context(device);
    if (ask(&used) && atomic_compare_exchange_strong(&own->measured, &none, context)) {
        uint64_t took = used;
        if (used_before != UINT64_MAX && used_now != UINT64_MAX)
            took = used_now > used_before ? used_now - used_before : 0;
        took = took < used ? took : used;
        atomic_store(&own->context, took);
        atomic_store(&own->others, used - took);
        ledger_measured(device, &before, took);
        if (options.limit && options.limit <= took) {
            say(SAID_LIMIT, "the limit of %llu MiB is below the %llu MiB that the context takes, and is ignored",
                (unsigned long long)(options.limit / MIB), (unsigned long long)(took / MIB));
            options.limit = 0;
        }
    }
    pop(&popped);
}

void context_ended(int device, CUcontext context) {
    CUcontext primary = context, measured = context;
    if (device < 0 || device >= DEVICES) return;
    Figures* own = &figures[device];
    int is_primary = atomic_compare_exchange_strong(&own->primary, &primary, NULL);
    ledger_forget_context(device, (uintptr_t)context, is_primary);
    streams_end(context);
    if (is_primary) serving_end(device);        /* the allocator's memory is gone */
    if (!atomic_compare_exchange_strong(&own->measured, &measured, NULL)) return;
    atomic_store(&own->context, 0);
    atomic_store(&own->modules, 0);
}

/* --- pools --- */

CUpool default_pool(int device) {
    CUpool pool = NULL;
    T_cuDeviceGetDefaultMemPool real = REAL(cuDeviceGetDefaultMemPool);
    return real && real(&pool, device) == SUCCESS ? pool : NULL;
}

uint64_t pool_reserved(int device) {
    uint64_t bytes = 0;
    CUpool pool = atomic_load(&figures[device].has_pool) ? default_pool(device) : NULL;
    T_cuMemPoolGetAttribute real = REAL(cuMemPoolGetAttribute);
    return pool && real && real(pool, RESERVED_IN_POOL, &bytes) == SUCCESS ? bytes : 0;
}

/* --- samples --- */

/* Another device than the current one is asked in its primary context, if it has one. */
static int ask_on(int device, uint64_t* used) {
    CUcontext popped, context = atomic_load(&figures[device].primary);
    T_cuCtxPushCurrent_v2 push = REAL(cuCtxPushCurrent_v2);
    T_cuCtxPopCurrent_v2 pop = REAL(cuCtxPopCurrent_v2);
    if (device == current_device()) return ask(used);
    if (!context || !push || !pop || push(context) != SUCCESS) return 0;
    int worked = ask(used);
    pop(&popped);
    return worked;
}

int sample(int device) {
    Figures* own = &figures[device];
    Standing before;
    ledger_standing(device, &before);
    uint64_t used, reserved = pool_reserved(device);
    if (!ask_on(device, &used)) return 0;
    uint64_t others = atomic_load(&own->others);
    used = used > others ? used - others : 0;
    if (!ledger_measured(device, &before, used)) return 1;
    int64_t rest = (int64_t)(used - before.held)
                 - (int64_t)(reserved > before.pooled ? reserved - before.pooled : 0)
                 - (int64_t)(atomic_load(&own->context) + atomic_load(&own->modules));
    if (rest < 0) {                         /* something was unloaded */
        uint64_t modules = atomic_load(&own->modules);
        atomic_store(&own->modules, modules > (uint64_t)-rest ? modules - (uint64_t)-rest : 0);
    }
    if (atomic_exchange(&own->has_loaded, 0) && rest > 0) atomic_fetch_add(&own->modules, (uint64_t)rest);
    return 1;
}

void after_load(void) {
    struct timespec time;
    int device = current_device();
    if (device < 0 || !atomic_load(&figures[device].measured)) return;
    Figures* own = &figures[device];
    atomic_store(&own->has_loaded, 1);
    clock_gettime(CLOCK_MONOTONIC, &time);
    uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    if (now - atomic_load(&own->last_sample_ns) < SAMPLES_APART_NS) return;     /* the next one includes this change */
    atomic_store(&own->last_sample_ns, now);
    sample(device);
}

void note_launch(CUfunction function) {
    static atomic_uintptr_t launched[LAUNCHED];
    static atomic_int count;
    size_t at = ((uintptr_t)function >> 4) * 0x9E3779B97F4A7C15ull >> 48;
    for (int tries = 0; tries < 64; tries++, at = (at + 1) % LAUNCHED) {
        uintptr_t found = atomic_load_explicit(&launched[at], memory_order_relaxed);
        if (found == (uintptr_t)function) return;
        if (found) continue;
        if (atomic_load(&count) > LAUNCHED / 2) return;
        if (!atomic_compare_exchange_strong(&launched[at], &found, (uintptr_t)function)) continue;
        atomic_fetch_add(&count, 1);
        after_load();
        return;
    }
}
