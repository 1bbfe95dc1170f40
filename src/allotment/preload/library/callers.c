/* Which shared library called, and from which stack.
 *
 * A return address is looked up once, and a lock-free table remembers its library. The CUDA runtime, if it is a
 * separate library, calls on behalf of others: then the first frame outside of it counts. Names are copied, so that a
 * closed library leaves nothing behind. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unwind.h>

#include "parts.h"

enum { CACHE = 8192, LIBRARY_BITS = 8 };
_Static_assert(LIBRARIES == 1 << LIBRARY_BITS, "a library's number fits below its address");

static atomic_ullong cache[CACHE];          /* an address, and in the lowest bits its library */
static char names[LIBRARIES][NAME_LENGTH];
static int8_t tenants[LIBRARIES], for_others[LIBRARIES];
static atomic_int count;
static Spin naming = ATOMIC_FLAG_INIT, stacking = ATOMIC_FLAG_INIT;

static int has(const char* path, const char* part) { return strstr(path, part) != NULL; }

/* A caller that shares blocks with other processes passes their addresses to the driver, which knows only segments. */
static int tenant_for(const char* path, const char* name) {
    if (has(path, "/allotment/_") || has(name, "nccl") || has(name, "nvshmem") || has(name, "libuc")) return -1;
    if (has(name, "xla_cuda") || has(path, "/jaxlib/") || has(path, "/jax_cuda") || has(path, "/jax_plugins/")) return TENANT_JAX;
    return has(name, "libcudnn") ? TENANT_CUDNN : TENANT_OTHER;
}

static void short_name(const char* path, const char* name, char* text) {
    static const struct { const char *in_path, *in_name, *name; } friendly[] = {
        {"/allotment/_", NULL, "allotment"}, {NULL, "xla_cuda", "jax"}, {"/jaxlib/", NULL, "jax"},
        {"/jax_plugins/", NULL, "jax"}, {"/jax_cuda", NULL, "jax"}, {NULL, "libtorch", "torch"}, {NULL, "libc10", "torch"},
        {NULL, "libnccl", "nccl"}, {NULL, "libcudnn", "cudnn"}, {NULL, "libcublas", "cublas"},
        {NULL, "libcusolver", "cusolver"}, {NULL, "libcusparse", "cusparse"}, {NULL, "libcufft", "cufft"},
        {NULL, "libcudart", "cudart"}, {"/cupy/", NULL, "cupy"}, {"/cupy_backends/", NULL, "cupy"},
        {"/numba/", NULL, "numba"}, {"/numba_cuda/", NULL, "numba"}, {"/cuda/bindings/", NULL, "cuda-python"},
        {"/cuda/core/", NULL, "cuda-python"}, {NULL, "libffi", "ctypes"}, {NULL, "_ctypes", "ctypes"},
    };
    for (size_t at = 0; at < sizeof friendly / sizeof *friendly; at++)
        if ((friendly[at].in_path && has(path, friendly[at].in_path)) || (friendly[at].in_name && has(name, friendly[at].in_name))) {
            strcpy(text, friendly[at].name);
            return;
        }
    strncpy(text, name, NAME_LENGTH - 1);
    text[NAME_LENGTH - 1] = 0;
}

static int named(const char* text, int tenant, int calls_for_others) {
    spin_lock(&naming);
    if (!atomic_load(&count)) {
        strcpy(names[LIBRARY_UNKNOWN], "unknown");
        tenants[LIBRARY_UNKNOWN] = TENANT_OTHER;
        strcpy(names[LIBRARY_OURS], "allotment");
        tenants[LIBRARY_OURS] = -1;
        atomic_store(&count, 2);
    }
    int found = LIBRARY_UNKNOWN, known = atomic_load(&count);
    for (int at = 0; at < known; at++) if (!strcmp(names[at], text)) { found = at; goto done; }
    if (known < LIBRARIES) {
        found = known;
        strcpy(names[found], text);
        tenants[found] = (int8_t)tenant;
        for_others[found] = (int8_t)calls_for_others;
        atomic_store(&count, known + 1);
    }
done:
    spin_unlock(&naming);
    return found;
}

static int look_up(void* address) {
    Dl_info info;
    char text[NAME_LENGTH];
    if (!dladdr(address, &info) || !info.dli_fname) return named("unknown", TENANT_OTHER, 0);
    const char* slash = strrchr(info.dli_fname, '/');
    const char* name = slash ? slash + 1 : info.dli_fname;
    short_name(info.dli_fname, name, text);
    return named(text, tenant_for(info.dli_fname, name), has(name, "libcudart"));
}

int library_at(void* address) {
    uintptr_t number = (uintptr_t)address;
    size_t at = (number >> 2) * 0x9E3779B97F4A7C15ull >> 51;
    uint64_t known = atomic_load_explicit(&cache[at], memory_order_acquire);
    if (known >> LIBRARY_BITS == number) return (int)(known & (LIBRARIES - 1));
    int library = look_up(address);
    atomic_store_explicit(&cache[at], (uint64_t)number << LIBRARY_BITS | (uint64_t)library, memory_order_release);
    return library;
}

void callers_forget(void) { for (int at = 0; at < CACHE; at++) atomic_store(&cache[at], 0); }

void callers_in_child(void) {
    atomic_flag_clear(&naming);
    atomic_flag_clear(&stacking);
}

/* --- stacks --- */

static struct { void* frames[FRAMES]; int length; uint64_t hash; } stacks[STACKS];
static atomic_uint stacks_count = 1;        /* 0 means no stack */

typedef struct Walk { void* frames[FRAMES + 8]; int length, most; uintptr_t from; int is_past; } Walk;

static _Unwind_Reason_Code step(struct _Unwind_Context* context, void* self) {
    Walk* walk = self;
    uintptr_t at = _Unwind_GetIP(context);
    if (at == walk->from) walk->is_past = 1;
    if (!walk->is_past) return _URC_NO_REASON;
    walk->frames[walk->length++] = (void*)at;
    return walk->length < walk->most ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static uint32_t kept_stack(const Walk* walk) {
    uint64_t hash = 1469598103934665603ull;
    int length = walk->length < FRAMES ? walk->length : FRAMES;
    uint32_t found = 0;
    for (int at = 0; at < length; at++) hash = (hash ^ (uintptr_t)walk->frames[at]) * 1099511628211ull;
    spin_lock(&stacking);
    uint32_t known = atomic_load(&stacks_count);
    for (uint32_t at = 1; at < known && !found; at++) if (stacks[at].hash == hash) found = at;
    if (!found && known < STACKS) {
        memcpy(stacks[known].frames, walk->frames, sizeof stacks[known].frames);
        stacks[known].length = length;
        stacks[known].hash = hash;
        found = known;
        atomic_store(&stacks_count, known + 1);
    }
    spin_unlock(&stacking);
    return found;
}

int stack_frames(uint32_t stack, void** frames) {
    if (stack == 0 || stack >= atomic_load(&stacks_count)) return 0;
    memcpy(frames, stacks[stack].frames, sizeof stacks[stack].frames);
    return stacks[stack].length;
}

Caller caller_at(void* address) {
    Caller caller = {library_at(address), 0};
    if (options.is_off || (!options.stacks && !for_others[caller.library])) return caller;
    Walk walk = {.most = options.stacks ? FRAMES : 8, .from = (uintptr_t)address};
    _Unwind_Backtrace(step, &walk);
    for (int at = 1; at < walk.length && for_others[caller.library]; at++) caller.library = library_at(walk.frames[at]);
    if (options.stacks) caller.stack = kept_stack(&walk);
    return caller;
}

int tenant_of(int library) { return tenants[library]; }
const char* library_name(int library) { return names[library]; }
int library_count(void) { return atomic_load(&count); }
