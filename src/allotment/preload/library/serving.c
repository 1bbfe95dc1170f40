/* Serves requests from the process's allocator, through its table of C functions.
 *
 * A block of cuMemAlloc belongs to no stream: its user may use it on any stream at once. So these blocks belong to a
 * separate stream, on which nothing ever runs. cuMemFree, which in the driver waits for all work, tells the allocator
 * which streams have work; the block is reused when that work is done. Only its own thread can name the stream that each
 * thread has for itself, so the block also waits for an event of the default stream, which comes after all of these. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "parts.h"

enum { STREAMS = 4096, BUSY = 64, SET_UP_MS = 1000, UNKNOWN = 0, READY, OFF, BEING_SET_UP };

Server servers[DEVICES];
static _Atomic(int (*)(int)) set_up;        /* Python code */
static _Atomic(int (*)(void)) may_run_python;
static __thread int inside __attribute__((tls_model("initial-exec")));

static struct { CUstream stream; CUcontext context; int device; } streams[STREAMS];
static int stream_count, too_many_streams;
static Spin listing = ATOMIC_FLAG_INIT;
static atomic_uint destroyed_busy, waited_for[DEVICES];     /* streams whose work goes on without them */

EXPORT void allotment_preload_set_up_with(int (*function)(int), int (*holds_interpreter)(void)) {
    atomic_store(&may_run_python, holds_interpreter);
    atomic_store(&set_up, function);
}

/* Called by `set_up`, with a table for each tenant. At depth `count` the tables only release what is cached. */
EXPORT void allotment_preload_serve(int device, const allotment_entry_points* const* tables, void* home) {
    servers[device].home = home;
    for (int tenant = 0; tenant < TENANTS; tenant++)
        atomic_store(&servers[device].tables[tenant], allotment_has(tables[tenant]) ? tables[tenant] : NULL);
}

void serving_end(int device) { atomic_store(&servers[device].state, OFF); }

void serving_in_child(void) {
    atomic_store(&set_up, NULL);
    for (int device = 0; device < DEVICES; device++) serving_end(device);
    stream_count = 0;
    atomic_flag_clear(&listing);
}

/* --- existing streams --- */

static int is_capturing(CUstream stream) {
    int status = 0;
    T_cuStreamIsCapturing real = REAL(cuStreamIsCapturing);
    return !real || real(stream, &status) != SUCCESS || status != 0;
}

static int has_work(CUstream stream) {
    return !is_capturing(stream) && REAL(cuStreamQuery)(stream) == NOT_READY;
}

void note_stream(CUstream stream, CUcontext context) {
    if (options.depth != DEPTH_SERVE) return;
    int device = current_device();
    spin_lock(&listing);
    int at = 0;
    while (at < stream_count && streams[at].stream != stream) at++;
    if (at == STREAMS) too_many_streams = 1;
    else {
        streams[at].stream = stream;
        streams[at].context = context;
        streams[at].device = device;
        if (at == stream_count) stream_count++;
    }
    spin_unlock(&listing);
}

void note_no_stream(CUstream stream) {
    if (options.depth != DEPTH_SERVE) return;
    int mode = CAPTURE_RELAXED;
    T_cuThreadExchangeStreamCaptureMode exchange = REAL(cuThreadExchangeStreamCaptureMode);
    spin_lock(&listing);
    int at = 0;
    while (at < stream_count && streams[at].stream != stream) at++;
    if (at < stream_count) {
        if (exchange) exchange(&mode);
        if (has_work(stream)) atomic_fetch_add(&destroyed_busy, 1);
        if (exchange) exchange(&mode);
        streams[at] = streams[--stream_count];
    }
    spin_unlock(&listing);
}

void streams_end(CUcontext context) {
    if (!context) return;
    spin_lock(&listing);
    for (int at = 0; at < stream_count;)
        if (streams[at].context == context) streams[at] = streams[--stream_count];
        else at++;
    spin_unlock(&listing);
}

/* Orders the reuse of the block after what each thread has submitted to its own stream. */
static void order_after_thread_streams(const allotment_entry_points* table, const Entry* entry) {
    if (is_capturing(NULL)) REAL(cuCtxSynchronize)();
    else table->record_stream(table->context, (void*)(uintptr_t)entry->key, NULL);
}

/* Orders the reuse of the block after all work submitted to its device. pre: the device's context is current */
static void order_after_all_work(const allotment_entry_points* table, const Entry* entry) {
    int mode = CAPTURE_RELAXED, count = 0, foreign_count = 0, must_wait = too_many_streams;
    unsigned int destroyed = atomic_load(&destroyed_busy);
    CUstream busy[BUSY];
    CUcontext popped, foreign[BUSY];
    CUcontext primary = atomic_load(&figures[entry->device].primary);
    T_cuThreadExchangeStreamCaptureMode exchange = REAL(cuThreadExchangeStreamCaptureMode);
    if (destroyed != atomic_load(&waited_for[entry->device])) must_wait = 1;
    if (must_wait && REAL(cuCtxSynchronize)() == SUCCESS) atomic_store(&waited_for[entry->device], destroyed);
    must_wait = 0;
    if (exchange) exchange(&mode);
    if (!is_capturing(NULL)) table->record_stream(table->context, (void*)(uintptr_t)entry->key, NULL);
    spin_lock(&listing);            /* so that no stream is destroyed while it is queried */
    for (int at = 0; at < stream_count; at++) {
        if (streams[at].device != entry->device && streams[at].device >= 0) continue;
        if ((uint64_t)(uintptr_t)streams[at].stream == entry->more || !has_work(streams[at].stream)) continue;
        /* The allocator records streams of the primary context only. Green contexts belong to it, and have no other. */
        CUcontext context = streams[at].context;
        if (context == primary && count < BUSY) busy[count++] = streams[at].stream;
        else if (!context || context == primary) must_wait = 1;
        else if (foreign_count < BUSY && (!foreign_count || foreign[foreign_count - 1] != context))
            foreign[foreign_count++] = context;
    }
    spin_unlock(&listing);
    for (int at = 0; at < count; at++) table->record_stream(table->context, (void*)(uintptr_t)entry->key, busy[at]);
    if (exchange) exchange(&mode);
    if (must_wait) REAL(cuCtxSynchronize)();
    for (int at = 0; at < foreign_count; at++) {
        if (REAL(cuCtxPushCurrent_v2)(foreign[at]) != SUCCESS) continue;
        REAL(cuCtxSynchronize)();
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
}

/* --- requests --- */

static int finish_set_up(int device) {
    int (*function)(int) = atomic_load(&set_up), failed = options.depth == DEPTH_SERVE ? OFF : UNKNOWN;
    inside++;
    int worked = function && function(device) && atomic_load(&servers[device].tables[TENANT_OTHER]);
    inside--;
    atomic_store_explicit(&servers[device].state, worked ? READY : failed, memory_order_release);
    return worked;
}

static void* set_up_apart(void* device) {
    finish_set_up((int)(intptr_t)device);
    return NULL;
}

/* A caller without the interpreter may hold a lock that the interpreter's holder is waiting for. So another thread sets
 * up, and the caller does not wait for it for ever: the driver serves what is requested meanwhile. */
static int is_ready(int device) {
    Server* server = &servers[device];
    int expected = UNKNOWN, state = atomic_load_explicit(&server->state, memory_order_acquire);
    if (state == READY) return 1;
    int (*function)(int) = atomic_load(&set_up);
    if (state != UNKNOWN || !function || !atomic_compare_exchange_strong(&server->state, &expected, BEING_SET_UP)) return 0;
    int (*holds_interpreter)(void) = atomic_load(&may_run_python);
    if (holds_interpreter && holds_interpreter()) return finish_set_up(device);
    pthread_t thread;
    if (pthread_create(&thread, NULL, set_up_apart, (void*)(intptr_t)device)) return finish_set_up(device);
    pthread_detach(thread);
    for (int waited = 0; waited < SET_UP_MS && atomic_load(&server->state) == BEING_SET_UP; waited++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load_explicit(&server->state, memory_order_acquire) == READY;
}

/* Returns the table that serves this request; NULL if the driver serves it. */
static const allotment_entry_points* table_for(size_t size, Caller caller, int* device) {
    CUcontext context = NULL;
    int tenant = tenant_of(caller.library);
    if (options.depth != DEPTH_SERVE || inside || tenant < 0 || size == 0 || size < options.min_size) return NULL;
    T_cuCtxGetCurrent current = REAL(cuCtxGetCurrent);
    *device = current_device();
    if (*device < 0 || !current || current(&context) != SUCCESS) return NULL;
    if (context != atomic_load(&figures[*device].primary) || !is_ready(*device)) return NULL;
    return atomic_load(&servers[*device].tables[tenant]);
}

static int is_out_of_memory(const allotment_entry_points* table) {
    char text[16] = "";
    size_t length = table->last_error(table->context, text, sizeof text - 1);
    return length >= 13 && !strncmp(text, "out of memory", 13);
}

static int serve(const allotment_entry_points* table, Entry entry, CUdeviceptr* address, CUresult* result) {
    inside++;
    void* block = table->allocate(table->context, entry.size, entry.device, (void*)(uintptr_t)entry.more);
    if (!block && is_out_of_memory(table)) {
        inside--;
        *result = OUT_OF_MEMORY;
        return 1;
    }
    entry.key = (uint64_t)(uintptr_t)block;
    int is_noted = block && ledger_add(&entry);
    if (block && !is_noted) table->free(table->context, block, entry.size, entry.device, NULL);
    inside--;
    if (!is_noted) return 0;
    *address = entry.key;
    *result = SUCCESS;
    return 1;
}

int serve_plain(CUdeviceptr* address, size_t size, Caller caller, CUresult* result) {
    int device = -1;
    const allotment_entry_points* table = address ? table_for(size, caller, &device) : NULL;
    if (!table) return 0;
    Entry entry = {.size = size, .more = (uintptr_t)servers[device].home, .stack = caller.stack,
                   .library = (uint16_t)caller.library, .kind = KIND_SERVED, .device = (uint8_t)device};
    return serve(table, entry, address, result);
}

int serve_async(CUdeviceptr* address, size_t size, CUstream stream, Caller caller, CUresult* result) {
    int device = -1;
    const allotment_entry_points* table = address ? table_for(size, caller, &device) : NULL;
    if (!table || stream == THREAD_STREAM || is_capturing(stream)) return 0;
    if (stream == LEGACY_STREAM) stream = NULL;
    Entry entry = {.size = size, .more = (uintptr_t)stream, .stack = caller.stack,
                   .library = (uint16_t)caller.library, .kind = KIND_SERVED_ASYNC, .device = (uint8_t)device};
    return serve(table, entry, address, result);
}

static CUresult free_block(const allotment_entry_points* table, const Entry* entry) {
    if (table->free(table->context, (void*)(uintptr_t)entry->key, entry->size, entry->device, NULL)) return SUCCESS;
    ledger_add(entry);      /* the device refused an event: the block stays in use, and can be freed again */
    return UNKNOWN_ERROR;
}

CUresult serve_free(const Entry* entry) {
    const allotment_entry_points* table = atomic_load(&servers[entry->device].tables[TENANT_OTHER]);
    CUcontext popped, context = atomic_load(&figures[entry->device].primary);
    inside++;
    int is_pushed = context && REAL(cuCtxPushCurrent_v2)(context) == SUCCESS;    /* the caller's may be another */
    order_after_all_work(table, entry);
    CUresult result = free_block(table, entry);
    if (is_pushed) REAL(cuCtxPopCurrent_v2)(&popped);
    inside--;
    return result;
}

CUresult serve_free_async(const Entry* entry, CUstream stream) {
    const allotment_entry_points* table = atomic_load(&servers[entry->device].tables[TENANT_OTHER]);
    if (stream == LEGACY_STREAM) stream = NULL;
    inside++;
    if (stream == THREAD_STREAM) order_after_thread_streams(table, entry);
    else if ((uint64_t)(uintptr_t)stream != entry->more)
        table->record_stream(table->context, (void*)(uintptr_t)entry->key, stream);
    CUresult result = free_block(table, entry);
    inside--;
    return result;
}

int serve_release_cached(int device) {
    if (device < 0 || inside) return 0;
    if (options.depth == DEPTH_COUNT ? !is_ready(device) : atomic_load(&servers[device].state) != READY) return 0;
    const allotment_entry_points* table = atomic_load(&servers[device].tables[TENANT_OTHER]);
    if (!table) return 0;
    inside++;
    int worked = table->empty_cache(table->context);
    inside--;
    return worked;
}
