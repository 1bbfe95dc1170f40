/* Replaces the driver's functions by ours, whichever way a caller looks them up.
 *
 * Linked callers: our functions have the driver's names and are found first. dlsym, dlvsym: our functions of that name
 * call the real one, and replace a result inside libcuda. cuGetProcAddress: ours calls the driver's, and replaces the
 * result if its form is known. Functions that are not in the list of driver.h pass through unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

#include "parts.h"

typedef void* (*dlsym_t)(void*, const char*);
typedef void* (*dlvsym_t)(void*, const char*, const char*);
typedef int (*dlclose_t)(void*);

static dlsym_t real_dlsym;
static dlvsym_t real_dlvsym;
static dlclose_t real_dlclose;
static _Atomic(void*) reals[FUNCTIONS];
static atomic_int missing[FUNCTIONS];

typedef struct Known { const char* name; const char* base; int since, per_thread; void* hook; } Known;
static const Known known[] = {
#define FUNCTION(name, base, since, per_thread, parameters) {#name, #base, since, per_thread, (void*)name},
#define HELPER(name, parameters) {#name, "", 0, 0, NULL},
    EVERY_FUNCTION EVERY_HELPER
#undef FUNCTION
#undef HELPER
};

/* Finds a function of a loaded library in its symbol table, because dlsym cannot look up dlsym. */
static void* symbol_in(const struct link_map* object, const char* name) {
    const ElfW(Sym)* symbols = NULL;
    const char* names = NULL;
    const uint32_t* hash = NULL;
    for (const ElfW(Dyn)* entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (const void*)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) names = (const void*)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) hash = (const void*)entry->d_un.d_ptr;
    }
    if (!symbols || !names || !hash) return NULL;
    uint32_t buckets = hash[0], offset = hash[1], words = hash[2];
    const uint32_t* bucket = hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t* chain = bucket + buckets;
    for (uint32_t number = 0; number < buckets; number++) {
        if (bucket[number] < offset) continue;
        for (uint32_t at = bucket[number];; at++) {
            if (!strcmp(names + symbols[at].st_name, name) && symbols[at].st_value)
                return (void*)(object->l_addr + symbols[at].st_value);
            if (chain[at - offset] & 1) break;
        }
    }
    return NULL;
}

void finding_start(void) {
    static const char* const homes[] = {"libc.so.6", "libdl.so.2"};
    for (int home = 0; home < 2; home++) {
        struct link_map* object = dlopen(homes[home], RTLD_LAZY | RTLD_NOLOAD);
        if (!object) continue;
        if (!real_dlsym) real_dlsym = (dlsym_t)symbol_in(object, "dlsym");
        if (!real_dlvsym) real_dlvsym = (dlvsym_t)symbol_in(object, "dlvsym");
        if (!real_dlclose) real_dlclose = (dlclose_t)symbol_in(object, "dlclose");
    }
}

/* --- how functions were looked up --- */

static struct { atomic_int ways; atomic_ullong calls; atomic_int libraries[WAYS]; } taken[FUNCTIONS];
static atomic_uintptr_t driver_low, driver_high;

static void note_way(int number, int way, void* caller) {
    if (!(atomic_fetch_or(&taken[number].ways, 1 << way) & 1 << way))
        atomic_store(&taken[number].libraries[way], library_at(caller));
}

static int is_in_driver(const void* code) {
    uintptr_t at = (uintptr_t)code;
    return at >= atomic_load_explicit(&driver_low, memory_order_relaxed)
        && at < atomic_load_explicit(&driver_high, memory_order_relaxed);
}

int passes(int number, void* caller) {
    if (options.is_off || is_in_driver(caller)) return 1;
    atomic_fetch_add_explicit(&taken[number].calls, 1, memory_order_relaxed);
    return 0;
}

EXPORT int allotment_preload_way(int number, const char** name, uint64_t* calls, int* ways, const char** libraries) {
    if (number < 0 || number >= FUNCTIONS || !known[number].hook) return 0;
    *name = known[number].name;
    *calls = atomic_load(&taken[number].calls);
    *ways = atomic_load(&taken[number].ways);
    for (int way = 0; way < WAYS; way++) libraries[way] = library_name(atomic_load(&taken[number].libraries[way]));
    return 1;
}

static int note_extent(struct dl_phdr_info* object, size_t size, void* function) {
    uintptr_t high = 0;
    (void)size;
    for (int at = 0; at < object->dlpi_phnum; at++)
        if (object->dlpi_phdr[at].p_type == PT_LOAD) {
            uintptr_t end = object->dlpi_addr + object->dlpi_phdr[at].p_vaddr + object->dlpi_phdr[at].p_memsz;
            if (end > high) high = end;
        }
    if ((uintptr_t)function < object->dlpi_addr || (uintptr_t)function >= high) return 0;
    atomic_store(&driver_low, object->dlpi_addr);
    atomic_store(&driver_high, high);
    return 1;
}

/* Notes the addresses of the driver's code: its own calls pass through, because it may hold locks. The driver stays
 * loaded from then on, although its users may close it: its functions are remembered here. */
static void note_driver(void* function) {
    Dl_info info;
    if (atomic_load(&driver_high) || !dladdr(function, &info) || !info.dli_fname) return;
    dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    dl_iterate_phdr(note_extent, function);
}

static int is_driver(const void* function) {
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_fname) return 0;
    const char* slash = strrchr(info.dli_fname, '/');
    return !strncmp(slash ? slash + 1 : info.dli_fname, "libcuda.so", 10);
}

/* Searches the driver first: a library between this one and the driver may have functions with these names too. */
static void* find_in_driver(const char* name) {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) return real_dlsym(RTLD_NEXT, name);
    void* found = real_dlsym(driver, name);
    real_dlclose(driver);
    return found;
}

void* real_function(int number) {
    void* found = atomic_load_explicit(&reals[number], memory_order_acquire);
    if (found || !real_dlsym || atomic_load(&missing[number])) return found;
    found = find_in_driver(known[number].name);
    if (found) {
        note_driver(found);
        atomic_store_explicit(&reals[number], found, memory_order_release);
    } else if (find_in_driver("cuInit")) atomic_store(&missing[number], 1);
    return found;
}

static int number_of(const char* name) {
    for (int number = 0; number < FUNCTIONS; number++) if (!strcmp(known[number].name, name)) return number;
    return -1;
}

/* Returns our function for one of the driver's, and remembers the driver's. A second driver keeps its own functions. */
static void* replace(int number, void* real) {
    void* expected = NULL;
    note_driver(real);
    if (atomic_compare_exchange_strong(&reals[number], &expected, real) || expected == real) return known[number].hook;
    say(SAID_OTHER_DRIVER, "a second CUDA driver is loaded; its functions pass through");
    return real;
}

void* hook_for(const char* name, void* real) {
    if (options.is_off || name[0] != 'c' || name[1] != 'u') return NULL;
    int number = number_of(name);
    if (number < 0 || !known[number].hook || !is_driver(real)) return NULL;
    return replace(number, real);
}

static int is_ours(const char* name, const void* found) { return known[number_of(name)].hook == found; }

/* pre: `found` is not NULL. Returns NULL for a function that is not replaced. */
static void* replacement(void* found, const char* name) {
    if (!is_ours(name, found)) return hook_for(name, found);
    return options.is_off ? find_in_driver(name) : found;
}

static int may_be_replaced(const char* name) {
    int number = name && name[0] == 'c' && name[1] == 'u' ? number_of(name) : -1;
    return number >= 0 && known[number].hook;
}

/* Each ends with a jump: the meaning of RTLD_NEXT depends on the return address, which must stay the same. */
EXPORT __attribute__((noinline, optimize("O2"))) void* dlsym(void* handle, const char* name) {
    if (!real_dlsym) finding_start();
    if (handle != RTLD_NEXT && may_be_replaced(name) && !is_in_driver(__builtin_return_address(0))) {
        void* found = real_dlsym(handle, name);
        if (found && is_ours(name, found) && !find_in_driver(name)) return real_dlsym(RTLD_NEXT, name);    /* sets dlerror */
        void* ours = found ? replacement(found, name) : NULL;
        if (ours) note_way(number_of(name), WAY_DLSYM, __builtin_return_address(0));
        return ours ? ours : found;
    }
    return real_dlsym(handle, name);
}

EXPORT __attribute__((noinline, optimize("O2"))) void* dlvsym(void* handle, const char* name, const char* version) {
    if (!real_dlvsym) finding_start();
    if (handle != RTLD_NEXT && may_be_replaced(name) && !is_in_driver(__builtin_return_address(0))) {
        void* found = real_dlvsym(handle, name, version);
        if (found && is_ours(name, found) && !find_in_driver(name)) return real_dlvsym(RTLD_NEXT, name, version);
        void* ours = found ? replacement(found, name) : NULL;
        if (ours) note_way(number_of(name), WAY_DLVSYM, __builtin_return_address(0));
        return ours ? ours : found;
    }
    return real_dlvsym(handle, name, version);
}

EXPORT int dlclose(void* handle) {
    if (!real_dlclose) finding_start();
    int result = real_dlclose(handle);
    callers_forget();
    return result;
}

/* --- cuGetProcAddress --- */

/* Returns the form of a name for a caller of this version, as the driver chooses it. An exported name has one form. */
static int form_of(const char* name, int version, int per_thread) {
    int best = -1;
    for (int number = 0; number < FUNCTIONS; number++) {
        const Known* function = &known[number];
        int is_base = !strcmp(function->base, name);
        if (!function->hook || (is_base ? function->per_thread != per_thread : strcmp(function->name, name))) continue;
        if (function->since <= version && (best < 0 || function->since > known[best].since)) best = number;
    }
    return best < 0 && per_thread ? form_of(name, version, 0) : best;
}

static void replace_found(const char* name, void** found, int version, uint64_t flags, void* caller) {
    if (options.is_off || !name || !found || !*found || is_in_driver(caller)) return;
    int number = form_of(name, version, (flags & PER_THREAD_FLAG) != 0);
    if (number < 0) return;
    void* exported = real_function(number);
    if (exported != *found && (exported == NULL || version > NEWEST_KNOWN)) return;     /* the form may differ */
    note_way(number, WAY_PROC_ADDRESS, caller);
    *found = known[number].hook;
}

EXPORT CUresult cuGetProcAddress(const char* name, void** found, int version, uint64_t flags) {
    T_cuGetProcAddress real = REAL(cuGetProcAddress);
    if (!real) return NOT_FOUND;
    CUresult result = real(name, found, version, flags);
    if (result == SUCCESS) replace_found(name, found, version, flags, __builtin_return_address(0));
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char* name, void** found, int version, uint64_t flags, int* status) {
    T_cuGetProcAddress_v2 real = REAL(cuGetProcAddress_v2);
    if (!real) return NOT_FOUND;
    CUresult result = real(name, found, version, flags, status);
    if (result == SUCCESS) replace_found(name, found, version, flags, __builtin_return_address(0));
    return result;
}
