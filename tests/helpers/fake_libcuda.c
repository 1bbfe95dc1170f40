/* A CUDA driver made of host memory: as much of libcuda as the CUDA backend calls, so that it can be tested
 * without a GPU.
 *
 * "Device" addresses are addresses of this process. A stream is a queue that moves whenever anybody looks, up to
 * the first step that has to wait; so a stream that is held stays held, and nothing happens by chance. Where the
 * real driver is strict (a current context, captures, mappings), so is this one; where the real one crashes, this
 * one aborts.
 *
 * Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_VERSION (13000), FAKE_CUDA_INIT (0: what cuInit answers),
 * FAKE_CUDA_WITHOUT (a comma list: "descriptors" and "fabric" are refused when a chunk is made with them, "registering"
 * of memory at all; without "strictness" a chunk can be made in any capture, as PyTorch does it), FAKE_CUDA_MEMORY (a file: all processes that
 * are given it share the memory of one device; else each has its own), FAKE_CUDA_CONTEXT (0: bytes that a context takes),
 * FAKE_CUDA_FAIL (a comma list of functions; each answers 999 and does nothing, if it looks).
 * Compiled with -DOLD_DRIVER, functions that came after CUDA 12.2 are missing.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long Handle;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_STATE = 401, NOT_READY = 600, PEER_ALREADY_ENABLED = 704,
    NOT_PERMITTED = 800, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908
};
enum { MAX_DEVICES = 4, MAX_NODES = 64, MAX_PROCESSES = 64, PAGE = 2 << 20 };
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALID };
enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };
static const size_t TOTAL = (size_t)1 << 30;

typedef struct Context { int ordinal; int can_access[MAX_DEVICES]; } Context;

/* Events between processes: what was recorded and completed is counted in memory that both have. */
typedef struct Counts { long recorded, completed; } Counts;

typedef struct Event {
    long references;
    int descriptor;                         /* of its counts, -1 if no other process can have them */
    Counts* counts;
    struct Capture* capture;                /* of the last record, with the nodes it stood for */
    struct Node* nodes[MAX_NODES];
    size_t node_count;
} Event;

typedef struct Step {
    enum { FILL, COPY, WAIT_VALUE, WRITE_VALUE, RECORD, WAIT_EVENT, RUN_GRAPH, POOL_FREE, NOTHING } kind;
    CUdeviceptr to, from;
    size_t size;
    uint32_t value;
    Event* event;
    long ticket;
    struct Graph* graph;
    struct Area* area;
    struct Step* next;
} Step;

typedef struct Node { Step step; struct Node* before[MAX_NODES]; size_t before_count; struct Node* next; } Node;
typedef struct Graph { Node* first; Node* last; size_t count; } Graph;

typedef struct Capture {
    uint64_t id;
    int is_invalid;
    struct Stream* origin;
    pthread_t thread;
    Graph* graph;
} Capture;

typedef struct Stream {
    long magic;
    Context* context;                       /* that it ends with; NULL for what each thread has */
    int is_of_thread;
    Step* first;
    Capture* capture;
    Node* last[MAX_NODES];                  /* what the next captured node comes after */
    size_t last_count;
    struct Stream* next;
} Stream;

typedef struct Area {                       /* an allocation, a reservation, a mapping or an import */
    enum { PLAIN, PINNED, REGISTERED, RESERVED, MAPPED, IMPORTED, POOLED, LEAVING, IDLE, IN_GRAPH } kind;
    CUdeviceptr base;
    size_t size;
    int descriptor;
    struct Chunk* chunk;
    struct Pool* pool;
    struct Capture* capture;                /* that memory of a graph was allocated in */
    Context* context;                       /* that plain memory ends with */
    struct Area* next;
} Area;

typedef struct Chunk { long magic, references; int descriptor, handle_types; size_t size; int is_imported; } Chunk;

typedef struct Share { pid_t process; size_t bytes; } Share;     /* what a process has of the device's memory */

typedef struct Pool {
    uint64_t threshold, held, held_high, used, used_high;
    int reuse[4], access[MAX_DEVICES], is_on_host;
} Pool;

enum { STREAM_MAGIC = 0x57EA, DESTROYED_MAGIC = 0xDEAD, CHUNK_MAGIC = 0xC4A2 };

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static Context contexts[MAX_DEVICES];
static Pool pools[MAX_DEVICES];
static Stream* streams;
static Stream default_stream = {.magic = STREAM_MAGIC};
static Area* areas;
static Share only;
static Share* shares = &only;               /* in a file that all processes map, if there is one */
static Share* mine = &only;
static int share_count = 1, shares_file = -1;
static uint64_t captures_begun;
static int is_initialized;
static __thread Context* stack[32];
static __thread int depth;
static __thread int thread_mode = MODE_GLOBAL;

#define EXPORT __attribute__((visibility("default")))
#define LOCKED __attribute__((cleanup(unlock))) pthread_mutex_t* held = lock(); (void)held
#define NEED_CONTEXT if (!is_initialized) return NOT_INITIALIZED; if (depth == 0) return INVALID_CONTEXT; LOCKED; \
    if (fails(__func__)) return 999; if (is_refused()) return refusal

static pthread_mutex_t* lock(void) { pthread_mutex_lock(&mutex); return &mutex; }
static void unlock(pthread_mutex_t** held) { pthread_mutex_unlock(*held); }

static int fails(const char* name) {
    const char* text = getenv("FAKE_CUDA_FAIL");
    const char* found = text ? strstr(text, name) : NULL;
    return found && (found[strlen(name)] == 0 || found[strlen(name)] == ',');
}

/* Of the calls from now on, `times` are refused from the one with this number on (from 0). Returns how many there were
 * since this was called before. */
static long calls_made, first_refused, times_refused;
static CUresult refusal;
EXPORT long fake_refuse(long number, long times, CUresult answer) {
    LOCKED;
    long made = calls_made;
    calls_made = 0; first_refused = number; times_refused = times; refusal = answer;
    return made;
}
static int is_refused(void) {
    long number = calls_made++;
    return number >= first_refused && number - first_refused < times_refused;
}

static long setting(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}
static int device_count(void) { return (int)setting("FAKE_CUDA_DEVICES", 1); }
static int is_without(const char* what) {
    const char* text = getenv("FAKE_CUDA_WITHOUT");
    return text && strstr(text, what);
}

/* How much of the device's memory is taken. What a process had that is gone is free again. */

static int is_alive(const Share* share) { return share->process && !kill(share->process, 0); }
static size_t used(void) {
    size_t sum = 0;
    for (int i = 0; i < share_count; i++) if (mine == &shares[i] || is_alive(&shares[i])) sum += shares[i].bytes;
    return sum;
}
EXPORT size_t fake_used(void) { return used(); }
static void lock_shares(int operation) { if (shares_file >= 0 && flock(shares_file, operation)) abort(); }
static void join_others(void) {
    const char* path = getenv("FAKE_CUDA_MEMORY");
    size_t size = MAX_PROCESSES * sizeof(Share);
    if (!path || shares_file >= 0) return;
    shares_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (shares_file < 0 || ftruncate(shares_file, (off_t)size)) abort();
    shares = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, shares_file, 0);
    if (shares == MAP_FAILED) abort();
    share_count = MAX_PROCESSES;
    lock_shares(LOCK_EX);
    for (mine = shares; is_alive(mine); mine++) if (mine == shares + MAX_PROCESSES - 1) abort();
    *mine = (Share){.process = getpid()};
    lock_shares(LOCK_UN);
}

/* The library and its devices. */

EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
    static __thread char name[32];
    snprintf(name, sizeof name, "CUDA_ERROR_%d", error);
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : name;
    return SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : "as the fake driver sees it";
    return SUCCESS;
}
EXPORT CUresult cuInit(unsigned int flags) {
    CUresult answer = (CUresult)setting("FAKE_CUDA_INIT", 0);
    is_initialized = answer == SUCCESS;
    join_others();
    for (int i = 0; i < MAX_DEVICES; i++) contexts[i].ordinal = i;
    return flags ? INVALID_VALUE : answer;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = (int)setting("FAKE_CUDA_VERSION", 13000);
    return SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) { *count = device_count(); return SUCCESS; }
EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    snprintf(name, length, "Fake GPU %d", device);
    return SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(char* uuid, CUdevice device) {
    for (int i = 0; i < 16; i++) uuid[i] = (char)(16 * device + i);
    return SUCCESS;
}
EXPORT CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    if (fails(__func__)) return 999;
    snprintf(text, length, "0000:%02X:00.0", device + 1);
    return SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t* size, CUdevice device) { (void)device; *size = TOTAL; return SUCCESS; }
EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case 41: case 102: case 103: case 110: case 115: case 128: *value = 1; return SUCCESS;
    case 75: *value = 9; return SUCCESS;
    case 76: *value = 0; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    *can = device != peer;
    return SUCCESS;
}

/* Contexts. */

/* What another thread could do during a function: `call` is called once, when that function is called next. */
static const char* watched;
static void (*watcher)(void);
EXPORT void fake_during(const char* name, void (*call)(void)) { watched = name; watcher = call; }
static void during(const char* name) {
    void (*call)(void) = watcher && !strcmp(watched, name) ? watcher : NULL;
    if (!call) return;
    watcher = NULL;
    call();
}

static int primaries[MAX_DEVICES];          /* how often each was retained */
EXPORT CUresult cuDevicePrimaryCtxRetain(Context** context, CUdevice device) {
    static int is_made;
    if (!is_initialized) return NOT_INITIALIZED;
    if (fails(__func__)) return 999;
    if (!is_made++) mine->bytes += (size_t)setting("FAKE_CUDA_CONTEXT", 0);
    primaries[device]++;
    *context = &contexts[device];
    return SUCCESS;
}
static void end_all_of(Context* context);
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    if (fails(__func__)) return 999;
    primaries[device] = 0;
    end_all_of(&contexts[device]);
    return SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (fails(__func__)) return 999;
    if (!primaries[device]) return INVALID_CONTEXT;
    if (!--primaries[device]) end_all_of(&contexts[device]);
    return SUCCESS;
}
/* The oldest forms do the same. */
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return fails("cuDevicePrimaryCtxReset") ? 999 : cuDevicePrimaryCtxReset_v2(device);
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return fails("cuDevicePrimaryCtxRelease") ? 999 : cuDevicePrimaryCtxRelease_v2(device);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* is_active) {
    if (fails(__func__)) return 999;
    *flags = 0;
    *is_active = primaries[device] > 0;
    return SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(Context** context) {
    if (fails(__func__)) return 999;
    if (!is_initialized) return NOT_INITIALIZED;
    *context = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    if (fails(__func__)) return 999;
    if (depth == 0) return INVALID_CONTEXT;
    *device = stack[depth - 1]->ordinal;
    return SUCCESS;
}
EXPORT CUresult cuCtxPushCurrent_v2(Context* context) {
    if (fails(__func__)) return 999;
    if (depth == 32) abort();
    stack[depth++] = context;
    return SUCCESS;
}
EXPORT CUresult cuCtxPopCurrent_v2(Context** context) {
    if (depth == 0) return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(Context* context) {
    if (depth) depth--;
    if (context) stack[depth++] = context;
    return SUCCESS;
}
EXPORT CUresult cuCtxCreate_v2(Context** context, unsigned int flags, CUdevice device) {
    if (fails(__func__)) return 999;
    if (!is_initialized) return NOT_INITIALIZED;
    if (flags) return INVALID_VALUE;
    *context = calloc(1, sizeof **context);
    (*context)->ordinal = device;
    return cuCtxPushCurrent_v2(*context);
}
EXPORT CUresult cuCtxCreate(Context** context, unsigned int flags, CUdevice device) {
    return fails("cuCtxCreate") ? 999 : cuCtxCreate_v2(context, flags, device);
}
EXPORT CUresult cuCtxDestroy_v2(Context* context) {
    if (fails(__func__)) return 999;
    if (depth && stack[depth - 1] == context) depth--;
    end_all_of(context);
    return SUCCESS;
}
EXPORT CUresult cuCtxDestroy(Context* context) { return fails("cuCtxDestroy") ? 999 : cuCtxDestroy_v2(context); }
EXPORT CUresult cuCtxEnablePeerAccess(Context* peer, unsigned int flags) {
    NEED_CONTEXT;
    Context* here = stack[depth - 1];
    if (peer == here || flags) return INVALID_CONTEXT;
    if (here->can_access[peer->ordinal]) return PEER_ALREADY_ENABLED;
    here->can_access[peer->ordinal] = 1;
    return SUCCESS;
}

/* Streams and events: queues that move when somebody looks. */

static long completed(const Event* event) { return __atomic_load_n(&event->counts->completed, __ATOMIC_ACQUIRE); }

static void run(const Step* step) {
    if (step->kind == FILL) memset((void*)step->to, (int)step->value, step->size);
    if (step->kind == COPY) memmove((void*)step->to, (void*)step->from, step->size);
    if (step->kind == WRITE_VALUE) __atomic_store_n((uint32_t*)step->to, step->value, __ATOMIC_RELEASE);
    if (step->kind == RECORD && completed(step->event) < step->ticket)
        __atomic_store_n(&step->event->counts->completed, step->ticket, __ATOMIC_RELEASE);
    if (step->kind == POOL_FREE) {
        step->area->kind = IDLE;
        step->area->pool->used -= step->area->size;
    }
    if (step->kind == RUN_GRAPH)
        for (Node* node = step->graph->first; node; node = node->next) run(&node->step);
}
static int has_to_wait(const Step* step) {
    if (step->kind == WAIT_VALUE)
        return (int32_t)(__atomic_load_n((uint32_t*)step->to, __ATOMIC_ACQUIRE) - step->value) < 0;
    return step->kind == WAIT_EVENT && completed(step->event) < step->ticket;
}
static void drop_event(Event* event) {
    if (!event || --event->references > 0) return;
    if (event->descriptor < 0) free(event->counts);
    else { munmap(event->counts, sizeof(Counts)); close(event->descriptor); }
    free(event);
}

static int move_stream(Stream* stream) {
    int has_moved = 0;
    while (stream->first && !has_to_wait(stream->first)) {
        Step* step = stream->first;
        stream->first = step->next;
        run(step);
        drop_event(step->event);
        free(step);
        has_moved = 1;
    }
    return has_moved;
}
static void move_all(void) {
    int has_moved = 1;
    while (has_moved) {
        has_moved = move_stream(&default_stream);
        for (Stream* stream = streams; stream; stream = stream->next) has_moved |= move_stream(stream);
    }
}
/* Stays when its thread has ended: somebody may still wait for it. */
/* At rising addresses: allocators sort free memory by the handle of its stream, and then a program that is run again
 * finds it in the same order. */
static Stream* new_stream(void) {
    static char* next = (char*)0x400000000000;
    Stream* made = mmap(next, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) abort();
    next += (sizeof *made + 4095) / 4096 * 4096;
    made->magic = STREAM_MAGIC;
    made->next = streams;
    return streams = made;
}
static Stream* stream_of_thread(void) {
    static __thread Stream* own;
    if (own) return own;
    own = new_stream();
    own->is_of_thread = 1;
    return own;
}
static Stream* stream_of(Stream* given) {
    if (given == NULL || given == (Stream*)1) return &default_stream;
    if (given == (Stream*)2) return stream_of_thread();
    if (given->magic != STREAM_MAGIC) abort();
    return given;
}
static void add_last(Stream* stream, Node* node) {
    for (size_t i = 0; i < stream->last_count; i++) if (stream->last[i] == node) return;
    stream->last[stream->last_count++] = node;
}
static CUresult enqueue(Stream* stream, Step step);

/* The legacy stream comes after what the default streams of threads were given. */
static void wait_for_threads(void) {
    static int is_inside;
    if (is_inside) return;
    is_inside = 1;
    for (Stream* stream = streams; stream; stream = stream->next) {
        if (!stream->is_of_thread || !stream->first || stream->capture) continue;
        Event* event = calloc(1, sizeof *event);
        *event = (Event){.references = 1, .descriptor = -1, .counts = calloc(1, sizeof(Counts))};
        event->counts->recorded = 1;
        enqueue(stream, (Step){.kind = RECORD, .event = event, .ticket = 1});
        enqueue(&default_stream, (Step){.kind = WAIT_EVENT, .event = event, .ticket = 1});
        drop_event(event);
    }
    is_inside = 0;
}
static CUresult enqueue(Stream* stream, Step step) {
    if (stream->capture) {
        if (stream->capture->is_invalid) return CAPTURE_INVALIDATED;
        Node* node = calloc(1, sizeof *node);
        Graph* graph = stream->capture->graph;
        node->step = step;
        memcpy(node->before, stream->last, sizeof stream->last);
        node->before_count = stream->last_count;
        if (graph->last) graph->last->next = node; else graph->first = node;
        graph->last = node;
        graph->count++;
        stream->last[0] = node;
        stream->last_count = 1;
        return SUCCESS;
    }
    if (stream == &default_stream) wait_for_threads();
    Step* queued = malloc(sizeof *queued);
    *queued = step;
    queued->next = NULL;
    if (step.event) step.event->references++;
    Step** end = &stream->first;
    while (*end) end = &(*end)->next;
    *end = queued;
    move_all();
    return SUCCESS;
}
/* What a capture forbids this thread spoils the capture. */
static CUresult spoil(void) {
    CUresult result = SUCCESS;
    for (Stream* stream = streams; stream; stream = stream->next)
        if (thread_mode != MODE_RELAXED && stream->capture && pthread_equal(stream->capture->thread, pthread_self())) {
            stream->capture->is_invalid = 1;
            result = CAPTURE_UNSUPPORTED;
        }
    return result;
}
/* Waits for one stream; for NULL, for those of the current context and those that belong to none. */
static CUresult wait_until_idle(Stream* only) {
    for (;;) {
        {
            LOCKED;
            move_all();
            int is_idle = only ? only->first == NULL : default_stream.first == NULL;
            for (Stream* stream = streams; stream && !only; stream = stream->next)
                is_idle &= stream->first == NULL || (stream->context && stream->context != stack[depth - 1]);
            if (is_idle) return SUCCESS;
        }
        usleep(200);
    }
}

EXPORT CUresult cuCtxSynchronize(void) {
    { NEED_CONTEXT; if (spoil()) return CAPTURE_UNSUPPORTED; }
    during("cuCtxSynchronize");
    return wait_until_idle(NULL);
}
EXPORT CUresult cuStreamCreate(Stream** stream, unsigned int flags) {
    NEED_CONTEXT;
    if (flags != 1) return INVALID_VALUE;
    *stream = new_stream();
    (*stream)->context = stack[depth - 1];
    return SUCCESS;
}
EXPORT CUresult cuStreamCreateWithPriority(Stream** stream, unsigned int flags, int priority) {
    if (fails(__func__)) return 999;
    return priority ? INVALID_VALUE : cuStreamCreate(stream, flags);
}
/* Its memory stays, so that a later use of it shows. */
EXPORT CUresult cuStreamDestroy_v2(Stream* given) {
    NEED_CONTEXT;
    stream_of(given)->magic = DESTROYED_MAGIC;
    return SUCCESS;
}
EXPORT CUresult cuStreamDestroy(Stream* given) { return fails("cuStreamDestroy") ? 999 : cuStreamDestroy_v2(given); }
EXPORT CUresult cuStreamQuery(Stream* given) {
    NEED_CONTEXT;
    Stream* stream = stream_of(given);
    if (stream->capture) { stream->capture->is_invalid = 1; return CAPTURE_UNSUPPORTED; }
    if (spoil()) return CAPTURE_UNSUPPORTED;
    move_all();
    return stream->first ? NOT_READY : SUCCESS;
}
EXPORT CUresult cuStreamSynchronize(Stream* given) {
    { NEED_CONTEXT; if (stream_of(given)->capture) { given->capture->is_invalid = 1; return CAPTURE_UNSUPPORTED; } }
    return wait_until_idle(stream_of(given));
}
EXPORT CUresult cuEventCreate(Event** event, unsigned int flags) {
    NEED_CONTEXT;
    if (flags != 2 && flags != 6) return INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    (*event)->references = 1;
    (*event)->descriptor = -1;
    if (flags == 2) { (*event)->counts = calloc(1, sizeof(Counts)); return SUCCESS; }
    (*event)->descriptor = memfd_create("fake cuda event", MFD_CLOEXEC);
    if ((*event)->descriptor < 0 || ftruncate((*event)->descriptor, sizeof(Counts))) abort();
    (*event)->counts = mmap(NULL, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, (*event)->descriptor, 0);
    return SUCCESS;
}
EXPORT CUresult cuIpcGetEventHandle(char (*handle)[64], Event* event) {
    NEED_CONTEXT;
    if (event->descriptor < 0) return INVALID_HANDLE;
    memset(handle, 0, sizeof *handle);
    snprintf(*handle, sizeof *handle, "/proc/%d/fd/%d", getpid(), event->descriptor);
    return SUCCESS;
}
typedef struct { char text[64]; } EventHandle;
EXPORT CUresult cuIpcOpenEventHandle(Event** event, EventHandle handle) {
    NEED_CONTEXT;
    int owner;
    if (sscanf(handle.text, "/proc/%d/", &owner) != 1 || owner == getpid()) return INVALID_CONTEXT;
    int descriptor = open(handle.text, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return INVALID_HANDLE;
    *event = calloc(1, sizeof **event);
    (*event)->references = 1;
    (*event)->descriptor = descriptor;
    (*event)->counts = mmap(NULL, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return SUCCESS;
}
EXPORT CUresult cuEventDestroy_v2(Event* event) { NEED_CONTEXT; drop_event(event); return SUCCESS; }
EXPORT CUresult cuEventRecord(Event* event, Stream* given) {
    NEED_CONTEXT;
    Stream* stream = stream_of(given);
    event->capture = stream->capture;
    if (stream->capture) {
        memcpy(event->nodes, stream->last, sizeof stream->last);
        event->node_count = stream->last_count;
        return SUCCESS;
    }
    event->counts->recorded++;
    return enqueue(stream, (Step){.kind = RECORD, .event = event, .ticket = event->counts->recorded});
}
EXPORT CUresult cuEventQuery(Event* event) {
    NEED_CONTEXT;
    if (event->capture) return CAPTURED_EVENT;
    move_all();
    return completed(event) < event->counts->recorded ? NOT_READY : SUCCESS;
}
EXPORT CUresult cuEventSynchronize(Event* event) {
    CUresult result = NOT_READY;
    while ((result = cuEventQuery(event)) == NOT_READY) usleep(200);
    return result;
}
EXPORT CUresult cuStreamWaitEvent(Stream* given, Event* event, unsigned int flags) {
    NEED_CONTEXT;
    Stream* stream = stream_of(given);
    if (flags) return INVALID_VALUE;
    if (!event->capture) return enqueue(stream, (Step){.kind = WAIT_EVENT, .event = event, .ticket = event->counts->recorded});
    if (stream->capture && stream->capture != event->capture) return 902;
    stream->capture = event->capture;
    for (size_t i = 0; i < event->node_count; i++) add_last(stream, event->nodes[i]);
    return SUCCESS;
}
EXPORT CUresult cuStreamWaitValue32_v2(Stream* stream, CUdeviceptr address, uint32_t value, unsigned int flags) {
    NEED_CONTEXT;
    return flags ? INVALID_VALUE
                 : enqueue(stream_of(stream), (Step){.kind = WAIT_VALUE, .to = address, .value = value});
}
EXPORT CUresult cuStreamWriteValue32_v2(Stream* stream, CUdeviceptr address, uint32_t value, unsigned int flags) {
    NEED_CONTEXT;
    return flags ? INVALID_VALUE
                 : enqueue(stream_of(stream), (Step){.kind = WRITE_VALUE, .to = address, .value = value});
}

/* Capture and graphs. */

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    if (fails(__func__)) return 999;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return SUCCESS;
}
EXPORT CUresult cuStreamBeginCapture_v2(Stream* given, int mode) {
    NEED_CONTEXT;
    Stream* stream = stream_of(given);
    if (stream == &default_stream) return CAPTURE_UNSUPPORTED;
    if (stream->capture || mode != MODE_THREAD_LOCAL) return ILLEGAL_STATE;
    Capture* capture = calloc(1, sizeof *capture);
    *capture = (Capture){.id = ++captures_begun, .origin = stream, .thread = pthread_self()};
    capture->graph = calloc(1, sizeof *capture->graph);
    stream->capture = capture;
    stream->last_count = 0;
    return SUCCESS;
}
static int is_before(const Node* early, const Node* late) {
    if (early == late) return 1;
    for (size_t i = 0; i < late->before_count; i++) if (is_before(early, late->before[i])) return 1;
    return 0;
}
static int is_joined(const Stream* stream, const Stream* origin) {
    for (size_t i = 0; i < stream->last_count; i++) {
        int found = 0;
        for (size_t j = 0; j < origin->last_count; j++) found |= is_before(stream->last[i], origin->last[j]);
        if (!found) return 0;
    }
    return 1;
}
EXPORT CUresult cuStreamEndCapture(Stream* given, Graph** graph) {
    NEED_CONTEXT;
    Stream* origin = stream_of(given);
    Capture* capture = origin->capture;
    CUresult result = SUCCESS;
    if (!capture) return ILLEGAL_STATE;
    if (capture->origin != origin) return CAPTURE_UNMATCHED;
    if (!pthread_equal(capture->thread, pthread_self())) return CAPTURE_WRONG_THREAD;
    for (Stream* stream = streams; stream; stream = stream->next)
        if (stream->capture == capture && !is_joined(stream, origin)) result = CAPTURE_UNJOINED;
    if (capture->is_invalid) result = CAPTURE_INVALIDATED;
    for (Stream* stream = streams; stream; stream = stream->next)
        if (stream->capture == capture) { stream->capture = NULL; stream->last_count = 0; }
    *graph = result == SUCCESS ? capture->graph : NULL;
    return result;
}
static int status_of(const Stream* stream) {
    return !stream->capture ? CAPTURE_NONE : stream->capture->is_invalid ? CAPTURE_INVALID : CAPTURE_ACTIVE;
}
EXPORT CUresult cuStreamIsCapturing(Stream* stream, int* status) {
    NEED_CONTEXT;
    *status = status_of(stream_of(stream));
    return SUCCESS;
}
EXPORT CUresult cuStreamGetCaptureInfo_v2(Stream* given, int* status, uint64_t* id, Graph** graph, Node*** nodes,
                                          size_t* count) {
    NEED_CONTEXT;
#ifndef FORGETFUL  /* what it says of a destroyed one, as long as its memory is nobody else's; elsewhere it crashes */
    if (given > (Stream*)2 && given->magic == DESTROYED_MAGIC) return INVALID_CONTEXT;
#endif
    Stream* stream = stream_of(given);
    *status = status_of(stream);
    if (*status != CAPTURE_ACTIVE) return SUCCESS;
    if (id) *id = stream->capture->id;
    if (graph) *graph = stream->capture->graph;
    if (nodes) *nodes = stream->last;
    if (count) *count = stream->last_count;
    return SUCCESS;
}
EXPORT CUresult cuGraphNodeGetDependencies(Node* node, Node** nodes, size_t* count) {
    LOCKED;
    size_t room = nodes ? *count : 0;
    for (size_t i = 0; i < room; i++) nodes[i] = i < node->before_count ? node->before[i] : NULL;
    *count = nodes && room < node->before_count ? room : node->before_count;
    return SUCCESS;
}
#ifndef OLD_DRIVER
EXPORT CUresult cuStreamGetCaptureInfo_v3(Stream* stream, int* status, uint64_t* id, Graph** graph, Node*** nodes,
                                          const void** edges, size_t* count) {
    if (edges && !nodes) return INVALID_VALUE;
    if (nodes && !edges) return 402;        /* as though the edges had data */
    if (edges) *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}
EXPORT CUresult cuGraphNodeGetDependencies_v2(Node* node, Node** nodes, char (*edges)[8], size_t* count) {
    if (edges && !nodes) return INVALID_VALUE;
    if (nodes && !edges) return 402;
    if (edges) memset(edges, 0, 8 * *count);
    return cuGraphNodeGetDependencies(node, nodes, count);
}
#endif
EXPORT CUresult cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
    if (nodes) abort();
    *count = graph->count;
    return SUCCESS;
}
EXPORT CUresult cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long flags) {
    NEED_CONTEXT;
    *executable = calloc(1, sizeof **executable);
    **executable = *graph;
    return flags > 1 ? INVALID_VALUE : SUCCESS;
}
EXPORT CUresult cuGraphLaunch(Graph* executable, Stream* stream) {
    NEED_CONTEXT;
    return enqueue(stream_of(stream), (Step){.kind = RUN_GRAPH, .graph = executable});
}
EXPORT CUresult cuGraphExecDestroy(Graph* executable) { NEED_CONTEXT; memset(executable, 0, sizeof *executable); return SUCCESS; }
EXPORT CUresult cuGraphDestroy(Graph* graph) { NEED_CONTEXT; graph->count = 0; return SUCCESS; }

/* Memory. */

static Area* add_area(int kind, void* base, size_t size, int descriptor) {
    Area* area = calloc(1, sizeof *area);
    *area = (Area){.kind = kind, .base = (CUdeviceptr)base, .size = size, .descriptor = descriptor, .next = areas,
                   .context = depth ? stack[depth - 1] : NULL};
    areas = area;
    return area;
}
static Area* find_area(unsigned kind, CUdeviceptr base) {
    for (Area* area = areas; area; area = area->next) if (area->kind == kind && area->base == base) return area;
    return NULL;
}
static void remove_area(Area* gone) {
    Area** place = &areas;
    while (*place != gone) place = &(*place)->next;
    *place = gone->next;
    free(gone);
}
/* 0: the device is full. */
static int take(size_t size) {
    lock_shares(LOCK_EX);
    int fits = size <= TOTAL - used();
    if (fits) mine->bytes += size;
    lock_shares(LOCK_UN);
    return fits;
}
/* Shared memory of this size, counted; NULL if the device is full. */
static void* take_memory(size_t size, int* descriptor) {
    if (!take(size)) return NULL;
    *descriptor = memfd_create("fake cuda memory", MFD_CLOEXEC);
    if (*descriptor < 0 || ftruncate(*descriptor, (off_t)size)) abort();
    /* At rising addresses, so that a program that is run again finds its memory in the same order. */
    static char* next = (char*)0x600000000000;
    next += (size + PAGE - 1) / PAGE * PAGE;
    return mmap(next - (size + PAGE - 1) / PAGE * PAGE, size, PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
}

static void let_plain_go(Area* area) {
    munmap((void*)area->base, area->size);
    close(area->descriptor);
    mine->bytes -= area->size;
    remove_area(area);
}
static void end_all_of(Context* context) {
    LOCKED;
    for (Area *area = areas, *next; area; area = next) {
        next = area->next;
        if (area->kind == PLAIN && area->context == context) let_plain_go(area);
    }
    for (Stream* stream = streams; stream; stream = stream->next)
        if (stream->context == context) stream->magic = DESTROYED_MAGIC;
}

EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    NEED_CONTEXT;
    *free_bytes = TOTAL - used();
    *total_bytes = TOTAL;
    return SUCCESS;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t size) {
    NEED_CONTEXT;
    int descriptor;
    if (spoil()) return CAPTURE_UNSUPPORTED;
    during("cuMemAlloc_v2");
    void* base = take_memory(size, &descriptor);
    if (!base) return OUT_OF_MEMORY;
    *address = add_area(PLAIN, base, size, descriptor)->base;
    return SUCCESS;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    NEED_CONTEXT;
    Area* area = find_area(PLAIN, address);
    if (spoil()) return CAPTURE_UNSUPPORTED;
    if (!area) return INVALID_VALUE;
    let_plain_go(area);
    during("cuMemFree_v2");
    return SUCCESS;
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned int flags) {
    if (fails("cuMemAllocManaged")) return 999;
    return flags == 1 ? cuMemAlloc_v2(address, size) : INVALID_VALUE;
}
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned int element) {
    if (fails("cuMemAllocPitch_v2")) return 999;
    if (element != 4 && element != 8 && element != 16) return INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(address, *pitch * height);
}
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
    NEED_CONTEXT;
    for (Area* area = areas; area; area = area->next) {
        int is_memory = area->kind == PLAIN || area->kind == MAPPED || area->kind == IMPORTED;
        if (!is_memory || address < area->base || address - area->base >= area->size) continue;
        if (base) *base = area->base;
        if (size) *size = area->size;
        return SUCCESS;
    }
    return INVALID_VALUE;
}
/* A module is as large as its first eight bytes say; a function takes a page when it is first launched. */
EXPORT CUresult cuModuleLoadData(void** module, const size_t* image) {
    NEED_CONTEXT;
    if (!take(*image)) return OUT_OF_MEMORY;
    *module = (void*)image;
    return SUCCESS;
}
EXPORT CUresult cuArrayCreate_v2(void** array, const size_t* size) {
    NEED_CONTEXT;
    mine->bytes += *size;
    *array = (void*)size;
    return SUCCESS;
}
EXPORT CUresult cuLaunchKernel(int* function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                               unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                               Stream* stream, void** parameters, void** extra) {
    NEED_CONTEXT;
    (void)grid_x; (void)grid_y; (void)grid_z; (void)block_x; (void)block_y; (void)block_z; (void)shared;
    (void)parameters; (void)extra;
    if (!*function && !take(PAGE)) return OUT_OF_MEMORY;
    *function = 1;
    return enqueue(stream_of(stream), (Step){.kind = NOTHING});
}
EXPORT CUresult cuLaunchCooperativeKernel(int* function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                          unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                          unsigned int shared, Stream* stream, void** parameters) {
    if (fails(__func__)) return 999;
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, NULL);
}
EXPORT CUresult cuMemHostAlloc(void** address, size_t size, unsigned int flags) {
    NEED_CONTEXT;
    if (flags > 1) return INVALID_VALUE;
    *address = calloc(1, size);
    if (!*address) return OUT_OF_MEMORY;
    add_area(PINNED, *address, size, -1);
    return SUCCESS;
}
EXPORT CUresult cuMemFreeHost(void* address) {
    NEED_CONTEXT;
    Area* area = find_area(PINNED, (CUdeviceptr)address);
    if (!area) return INVALID_VALUE;
    free(address);
    remove_area(area);
    return SUCCESS;
}

/* Whether an address lies in host memory that the driver knows. */
EXPORT int fake_is_pinned(const void* address) {
    for (Area* area = areas; area; area = area->next) {
        if ((area->kind == PINNED || area->kind == REGISTERED) && (CUdeviceptr)address - area->base < area->size) return 1;
    }
    return 0;
}

EXPORT CUresult cuMemHostRegister_v2(void* address, size_t size, unsigned int flags) {
    NEED_CONTEXT;
    if (!address || !size || flags != 1 || find_area(REGISTERED, (CUdeviceptr)address)) return INVALID_VALUE;
    if (is_without("registering")) return NOT_SUPPORTED;
    add_area(REGISTERED, address, size, -1);
    return SUCCESS;
}
EXPORT CUresult cuMemHostUnregister(void* address) {
    NEED_CONTEXT;
    Area* area = find_area(REGISTERED, (CUdeviceptr)address);
    if (!area) return INVALID_VALUE;
    remove_area(area);
    return SUCCESS;
}

typedef struct { char text[64]; } IpcHandle;

EXPORT CUresult cuIpcGetMemHandle(IpcHandle* handle, CUdeviceptr address) {
    NEED_CONTEXT;
    Area* area = find_area(PLAIN, address);
    if (!area) return INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    snprintf(handle->text, sizeof handle->text, "/proc/%d/fd/%d %zu", getpid(), area->descriptor, area->size);
    return SUCCESS;
}
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, IpcHandle handle, unsigned int flags) {
    NEED_CONTEXT;
    char path[64];
    size_t size;
    int owner;
    if (flags != 1 || sscanf(handle.text, "%63s %zu", path, &size) != 2) return INVALID_VALUE;
    if (sscanf(path, "/proc/%d/", &owner) != 1 || owner == getpid()) return INVALID_CONTEXT;
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return INVALID_HANDLE;
    void* base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    *address = add_area(IMPORTED, base, size, descriptor)->base;
    return SUCCESS;
}
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    NEED_CONTEXT;
    Area* area = find_area(IMPORTED, address);
    if (!area) return INVALID_VALUE;
    munmap((void*)area->base, area->size);
    close(area->descriptor);
    remove_area(area);
    return SUCCESS;
}

/* Virtual memory. */

typedef struct {
    int type, handle_types, location_type, location_id;
    void* unused;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
} Properties;
typedef struct { int location_type, location_id, flags; } Access;

static int is_page_multiple(unsigned long long number) { return number % PAGE == 0; }
static int are_valid(const Properties* properties) {
    return properties->type == 1 && properties->location_type == 1 && properties->location_id < device_count()
        && !properties->unused && !properties->compression && properties->rdma <= 1 && !properties->usage;
}
static Chunk* chunk_of(Handle handle) {
    if (((Chunk*)handle)->magic != CHUNK_MAGIC) abort();
    return (Chunk*)handle;
}
static void let_chunk_go(Chunk* chunk) {
    if (--chunk->references > 0) return;
    close(chunk->descriptor);
    if (!chunk->is_imported) mine->bytes -= chunk->size;
    chunk->magic = 0;
}
static Area* reservation_of(CUdeviceptr base, size_t size) {
    for (Area* area = areas; area; area = area->next)
        if (area->kind == RESERVED && area->base <= base && base + size <= area->base + area->size) return area;
    return NULL;
}
/* How much of a range is mapped by whole mappings; SIZE_MAX if it cuts through one. */
static size_t mapped_within(CUdeviceptr base, size_t size) {
    size_t mapped = 0;
    for (Area* area = areas; area; area = area->next) {
        if (area->kind != MAPPED || area->base >= base + size || area->base + area->size <= base) continue;
        if (area->base < base || area->base + area->size > base + size) return SIZE_MAX;
        mapped += area->size;
    }
    return mapped;
}
static int is_wholly_mapped(CUdeviceptr base, size_t size) { return size && mapped_within(base, size) == size; }

EXPORT CUresult cuMemGetAllocationGranularity(size_t* size, const Properties* properties, int option) {
    NEED_CONTEXT;
    if (!are_valid(properties) || option) return INVALID_VALUE;
    *size = PAGE;
    return SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    NEED_CONTEXT;
    if (!is_page_multiple(size) || (alignment && alignment != PAGE) || hint || flags) return INVALID_VALUE;
    static char* next = (char*)0x500000000000;      /* rising, as in take_memory */
    char* wide = mmap(next, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (wide == MAP_FAILED) return OUT_OF_MEMORY;
    char* base = (char*)(((uintptr_t)wide + PAGE - 1) / PAGE * PAGE);
    munmap(wide, base - wide);
    munmap(base + size, PAGE - (base - wide));
    next += size;
    *address = add_area(RESERVED, base, size, -1)->base;
    return SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    NEED_CONTEXT;
    Area* area = find_area(RESERVED, address);
    if (!area || area->size != size || mapped_within(address, size)) return INVALID_VALUE;
    munmap((void*)address, size);
    remove_area(area);
    return SUCCESS;
}
EXPORT CUresult cuMemCreate(Handle* handle, size_t size, const Properties* properties, unsigned long long flags) {
    NEED_CONTEXT;
    int descriptor;
    if (!is_without("strictness") && spoil()) return CAPTURE_UNSUPPORTED;
    if (!are_valid(properties) || !is_page_multiple(size) || flags) return INVALID_VALUE;
    if ((properties->handle_types & 8) && is_without("fabric")) return NOT_PERMITTED;
    if ((properties->handle_types & 1) && is_without("descriptors")) return NOT_SUPPORTED;
    void* base = take_memory(size, &descriptor);
    if (!base) return OUT_OF_MEMORY;
    munmap(base, size);
    Chunk* chunk = calloc(1, sizeof *chunk);
    *chunk = (Chunk){CHUNK_MAGIC, 1, descriptor, properties->handle_types, size, 0};
    *handle = (Handle)chunk;
    return SUCCESS;
}
EXPORT CUresult cuMemRelease(Handle handle) { NEED_CONTEXT; let_chunk_go(chunk_of(handle)); return SUCCESS; }
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, Handle handle, unsigned long long flags) {
    NEED_CONTEXT;
    Chunk* chunk = chunk_of(handle);
    if (offset || flags || size != chunk->size || !is_page_multiple(address)) return INVALID_VALUE;
    if (!reservation_of(address, size) || mapped_within(address, size)) return INVALID_VALUE;
    mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, chunk->descriptor, 0);
    add_area(MAPPED, (void*)address, size, -1)->chunk = chunk;
    chunk->references++;
    return SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    NEED_CONTEXT;
    if (!is_wholly_mapped(address, size)) return INVALID_VALUE;
    mmap((void*)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (Area *area = areas, *next; area; area = next) {
        next = area->next;
        if (area->kind != MAPPED || area->base < address || area->base >= address + size) continue;
        let_chunk_go(area->chunk);
        remove_area(area);
    }
    return SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const Access* access, size_t count) {
    NEED_CONTEXT;
    if (count != 1 || access->location_type != 1 || access->flags != 3) return INVALID_VALUE;
    if (access->location_id < 0 || access->location_id >= device_count()) return INVALID_DEVICE;
    if (!is_wholly_mapped(address, size)) return INVALID_VALUE;
    mprotect((void*)address, size, PROT_READ | PROT_WRITE);
    return SUCCESS;
}
EXPORT CUresult cuMemExportToShareableHandle(void* shareable, Handle handle, int kind, unsigned long long flags) {
    NEED_CONTEXT;
    Chunk* chunk = chunk_of(handle);
    if (flags || !(chunk->handle_types & kind)) return INVALID_VALUE;
    if (kind == 1) *(int*)shareable = fcntl(chunk->descriptor, F_DUPFD_CLOEXEC, 3);
    else snprintf(shareable, 64, "/proc/%d/fd/%d", getpid(), chunk->descriptor);
    return SUCCESS;
}
EXPORT CUresult cuMemImportFromShareableHandle(Handle* handle, void* shareable, int kind) {
    NEED_CONTEXT;
    int descriptor = kind == 1 ? fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 3) : open(shareable, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return INVALID_VALUE;
    Chunk* chunk = calloc(1, sizeof *chunk);
    *chunk = (Chunk){CHUNK_MAGIC, 1, descriptor, kind, (size_t)lseek(descriptor, 0, SEEK_END), 1};
    *handle = (Handle)chunk;
    return SUCCESS;
}

/* The device's own pool. Free memory is kept for requests of its size; a free happens when its stream gets to it. */

EXPORT CUresult cuDeviceGetDefaultMemPool(Pool** pool, CUdevice device) {
    if (fails(__func__)) return 999;
    if (device < 0 || device >= device_count()) return INVALID_DEVICE;
    *pool = &pools[device];
    return SUCCESS;
}
EXPORT CUresult cuMemPoolCreate(Pool** pool, const Properties* properties) {
    *pool = calloc(1, sizeof **pool);
    (*pool)->is_on_host = properties->location_type == 2;
    return SUCCESS;
}
static uint64_t* figure_of(Pool* pool, int attribute) {
    uint64_t* figures[] = {&pool->threshold, &pool->held, &pool->held_high, &pool->used, &pool->used_high};
    return attribute >= 4 && attribute <= 8 ? figures[attribute - 4] : NULL;
}
EXPORT CUresult cuMemPoolSetAttribute(Pool* pool, int attribute, void* value) {
    LOCKED;
    if (attribute >= 1 && attribute <= 3) { pool->reuse[attribute] = *(int*)value; return SUCCESS; }
    if (attribute == 5 || attribute == 7 || !figure_of(pool, attribute)) return INVALID_VALUE;
    if (attribute != 4 && *(uint64_t*)value != 0) return INVALID_VALUE;
    *figure_of(pool, attribute) = *(uint64_t*)value;
    return SUCCESS;
}
EXPORT CUresult cuMemPoolGetAttribute(Pool* pool, int attribute, void* value) {
    if (fails(__func__)) return 999;
    LOCKED;
    move_all();
    if (attribute >= 1 && attribute <= 3) { *(int*)value = pool->reuse[attribute]; return SUCCESS; }
    if (attribute == 12) { *(int*)value = pool->is_on_host ? 2 : 1; return SUCCESS; }
    if (!figure_of(pool, attribute)) return INVALID_VALUE;
    *(uint64_t*)value = *figure_of(pool, attribute);
    return SUCCESS;
}
static void release_idle(Pool* pool, uint64_t keep) {
    for (Area *area = areas, *next; area && pool->held > keep; area = next) {
        next = area->next;
        if (area->kind != IDLE || area->pool != pool) continue;
        munmap((void*)area->base, area->size);
        close(area->descriptor);
        mine->bytes -= area->size;
        pool->held -= area->size;
        remove_area(area);
    }
}
EXPORT CUresult cuMemPoolTrimTo(Pool* pool, size_t keep) {
    NEED_CONTEXT;
    move_all();
    release_idle(pool, keep);
    return SUCCESS;
}
EXPORT CUresult cuMemPoolSetAccess(Pool* pool, const Access* access, size_t count) {
    NEED_CONTEXT;
    if (count != 1 || access->location_type != 1 || access->flags != 3) return INVALID_VALUE;
    if (access->location_id < 0 || access->location_id >= device_count()) return INVALID_DEVICE;
    if (pool == &pools[access->location_id]) return INVALID_DEVICE;
    pool->access[access->location_id] = 1;
    return SUCCESS;
}
static Area* take_idle_area(Pool* pool, size_t size) {
    for (Area* area = areas; area; area = area->next)
        if (area->kind == IDLE && area->pool == pool && area->size == size) return area;
    return NULL;
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t size, Pool* pool, Stream* given) {
    NEED_CONTEXT;
    Stream* stream = stream_of(given);
    int descriptor;
    if (!stream->capture && spoil()) return CAPTURE_UNSUPPORTED;
    if (size > TOTAL) return OUT_OF_MEMORY;
    size = (size + 511) / 512 * 512;
    move_all();
    Area* area = stream->capture ? NULL : take_idle_area(pool, size);
    if (stream->capture && stream->capture->is_invalid) return CAPTURE_INVALIDATED;
    if (!area) {
        if (size > TOTAL - used()) release_idle(pool, 0);
        void* base = take_memory(size, &descriptor);
        if (!base) return OUT_OF_MEMORY;
        if (pool->is_on_host) mine->bytes -= size;
        area = add_area(IDLE, base, size, descriptor);
        area->pool = pool;
        if (!stream->capture) pool->held += size;
    }
    *address = area->base;
    if (stream->capture) {
        area->kind = IN_GRAPH;
        area->capture = stream->capture;
        return enqueue(stream, (Step){.kind = NOTHING});
    }
    area->kind = POOLED;
    pool->used += size;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool->held > pool->held_high) pool->held_high = pool->held;
    return SUCCESS;
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, Stream* stream) {
    if (fails(__func__)) return 999;
    return depth ? cuMemAllocFromPoolAsync(address, size, &pools[stack[depth - 1]->ordinal], stream) : INVALID_CONTEXT;
}
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t size, Stream* stream) {
    if (fails(__func__)) return 999;
    return cuMemAllocAsync(address, size, stream ? stream : (Stream*)2);
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, Stream* given) {
    NEED_CONTEXT;
    Stream* stream = stream_of(given);
    Area* area = find_area(IN_GRAPH, address);
    if (stream->capture) {
        if (stream->capture->is_invalid) return CAPTURE_INVALIDATED;
        if (!area || area->capture != stream->capture) return INVALID_VALUE;
        area->capture = NULL;               /* the graph frees it each time */
        return enqueue(stream, (Step){.kind = NOTHING});
    }
    if (area) {                             /* the graph keeps the memory for its next launch */
        if (!area->capture) return INVALID_VALUE;
        return SUCCESS;
    }
    area = find_area(POOLED, address);
    if (!area) return INVALID_VALUE;
    area->kind = LEAVING;
    return enqueue(stream, (Step){.kind = POOL_FREE, .area = area});
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, Stream* stream) {
    if (fails(__func__)) return 999;
    return cuMemFreeAsync(address, stream ? stream : (Stream*)2);
}

/* Functions by their names without a version; these forms are the only ones here. */

EXPORT CUresult cuGetProcAddress_v2(const char* name, void** found, int version, uint64_t flags, int* status) {
    if (fails(__func__)) return 999;
    static const char* const ends[] = {"_ptsz", "_v2_ptsz", "_v2", ""};
    char whole[128];
    *found = NULL;
    for (int at = flags & 2 ? 0 : 2; at < 4 && !*found && version >= 3020; at++) {
        snprintf(whole, sizeof whole, "%s%s", name, ends[at]);
        Dl_info own;
        void* library = dladdr((void*)cuInit, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        *found = library ? dlsym(library, whole) : NULL;
    }
    if (status) *status = *found ? 0 : 1;
    return *found ? SUCCESS : 500;
}
EXPORT CUresult cuGetProcAddress(const char* name, void** found, int version, uint64_t flags) {
    if (fails(__func__)) return 999;
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}

/* Copies and fills. */

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, Stream* stream) {
    NEED_CONTEXT;
    return enqueue(stream_of(stream), (Step){.kind = COPY, .to = to, .from = from, .size = size});
}
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, Context* to_context, CUdeviceptr from, Context* from_context,
                                  size_t size, Stream* stream) {
    if (!to_context || !from_context) return INVALID_CONTEXT;
    return cuMemcpyAsync(to, from, size, stream);
}
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t size) {
    NEED_CONTEXT;
    memcpy((void*)to, from, size);
    return SUCCESS;
}
EXPORT CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t size) {
    NEED_CONTEXT;
    memcpy(to, (void*)from, size);
    return SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, Stream* stream) {
    NEED_CONTEXT;
    return enqueue(stream_of(stream), (Step){.kind = FILL, .to = to, .value = value, .size = count});
}
