/* The cap of a device for the whole process: context, modules and everything requested from the driver.
 *
 * Part of it stays free for what the driver allocates itself: kernels that it loads at their first launch, and their
 * local memory. A request beyond the cap first makes the driver's pool and the process's allocator release caches. */
#include "parts.h"

enum { SAMPLE_EVERY = 32, HEADROOM_PART = 64 };
#define HEADROOM_MOST (256 * MIB)

static uint64_t room_in(uint64_t limit) {
    uint64_t kept = limit / HEADROOM_PART;
    return limit - (kept < HEADROOM_MOST ? kept : HEADROOM_MOST);
}

static int fits(int device, uint64_t size) { return ledger_charge(device, size, room_in(options.limit)); }

static void trim_pool(int device) {
    T_cuMemPoolTrimTo trim = REAL(cuMemPoolTrimTo);
    CUpool pool = atomic_load(&figures[device].has_pool) ? default_pool(device) : NULL;
    if (trim && pool) trim(pool, 0);
}

int limit_allows(int device, uint64_t size, Caller caller) {
    static atomic_uint asked;
    if (!options.limit) return ledger_charge(device, size, UINT64_MAX);
    if (atomic_fetch_add(&asked, 1) % SAMPLE_EVERY == 0) sample(device);
    if (fits(device, size)) return 1;
    if (sample(device) && fits(device, size)) return 1;
    trim_pool(device);
    if (sample(device) && fits(device, size)) return 1;
    return caller.library != LIBRARY_OURS && serve_release_cached(device) && sample(device) && fits(device, size);
}

/* A graph gets its memory when it is launched. So this request is compared with the room that there is now. */
int limit_allows_graph(int device, uint64_t size) {
    if (!options.limit || device < 0) return 1;
    sample(device);
    if (!fits(device, size)) return 0;
    ledger_settle(&(Entry){.size = size, .device = (uint8_t)device}, 0, 0);
    return 1;
}

void limit_info(int device, size_t* free_bytes, size_t* total_bytes) {
    if (!options.limit) return;
    uint64_t used = *total_bytes - *free_bytes, others = atomic_load(&figures[device].others);
    uint64_t room = room_in(options.limit);
    used = used > others ? used - others : 0;
    uint64_t left = used < room ? room - used : 0;
    if (*free_bytes > left) *free_bytes = left;
    if (*total_bytes > options.limit) *total_bytes = options.limit;
}
