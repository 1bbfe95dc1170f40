/* The parts of the library, and what each knows of the others.
 *
 *   finding    replaces the driver's functions by ours: linked, dlsym, dlvsym, cuGetProcAddress
 *   callers    which shared library called, and from which stack
 *   ledger     every live allocation, with its library: tables with their own memory under a spinlock
 *   figures    what this process has according to the driver: the context, modules, the rest
 *   limit      the cap of a device
 *   serving    serves requests from the process's allocator, through its table of C functions
 *   hooks      the functions that callers get
 *   reading    what Python asks
 *
 * No function here allocates from the C library's heap, and no lock of ours is held while the driver or the allocator
 * is called, with one exception: the list of streams, while streams are queried. */
#ifndef ALLOTMENT_PRELOAD_PARTS_H
#define ALLOTMENT_PRELOAD_PARTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "../../include/allotment.h"
#include "driver.h"

#define EXPORT __attribute__((visibility("default")))
#define MIB ((uint64_t)1 << 20)

enum { DEVICES = 16, LIBRARIES = 256, NAME_LENGTH = 96, FRAMES = 16, STACKS = 4096 };
enum { DEPTH_COUNT, DEPTH_SERVE };
enum { TENANT_JAX, TENANT_CUDNN, TENANT_OTHER, TENANTS };

/* --- setup --- */

typedef struct Options { int depth, stacks, is_off; uint64_t limit, min_size; } Options;
extern Options options;

/* Prints a line on standard error, each kind only once: `what` is one of these kinds. */
enum { SAID_LIMIT, SAID_FULL, SAID_OTHER_DRIVER, SAID_MISSING, SAID_SHARED, SAID_TWICE, SAID_DEPTH, SAYINGS };
void say(int what, const char* form, ...) __attribute__((format(printf, 2, 3)));

typedef atomic_flag Spin;
void spin_lock(Spin* spin);
void spin_unlock(Spin* spin);

int allotment_preload_depth(void);  /* -1: everything passes through */

/* --- callers --- */

enum { LIBRARY_UNKNOWN, LIBRARY_OURS };
typedef struct Caller { int library; uint32_t stack; } Caller;
#define CALLER caller_at(__builtin_return_address(0))
Caller caller_at(void* address);
int library_at(void* address);      /* that contains this code; the runtime counts as itself */
int tenant_of(int library);         /* -1: its requests are never served */
const char* library_name(int library);
int library_count(void);
void callers_forget(void);          /* addresses may now belong to other libraries */
void callers_in_child(void);        /* other threads, which a fork ended, may have held locks */
int stack_frames(uint32_t stack, void** frames);

/* --- ledger --- */

/* KIND_ASYNC is memory of the device's default pool, KIND_POOL of another one. */
enum { KIND_PLAIN, KIND_ASYNC, KIND_POOL, KIND_MANAGED, KIND_CHUNK, KIND_MAPPING, KIND_SERVED, KIND_SERVED_ASYNC };
typedef struct Entry {
    uint64_t key, size, more;       /* more: the context of plain and managed memory, the stream of a served block, the
                                       handle of a mapping, or what holds a chunk */
    uint32_t stack;                 /* of a mapping: the number of its chunk */
    uint16_t library;
    uint8_t kind, device;
} Entry;
typedef struct Sum { uint64_t driver, served, calls, peak; } Sum;

/* Bytes of a device. Between the call of a driver's function and its return, the driver's figure may contain the
 * memory or not: it is moving. */
typedef struct Standing {
    uint64_t held;          /* requested from the driver, from before the request until after the free */
    uint64_t moving;        /* the part being requested or freed now */
    uint64_t pooled;        /* the part from the driver's default pool */
    uint64_t freed;         /* of all frees that have begun */
} Standing;

int ledger_add(const Entry* entry);                                 /* 0: no room */
int ledger_take(uint64_t address, Entry* entry);                    /* 0: unknown; moves until it is settled */
int ledger_take_served(uint64_t address, Entry* entry);
int ledger_library(uint64_t address);                               /* of driver memory; -1: unknown */
int ledger_find_served(uint64_t address, Entry* entry);             /* also in the middle of a block */
int ledger_chunk(uint64_t handle, int references, Entry* ended);    /* more or fewer; 1: that was the last hold */
uint64_t ledger_unmap(uint64_t address, Entry* ended, int* has_ended);      /* the size of the mapping; 0: unknown */
void ledger_sum(int device, int library, Sum* sum);
void ledger_standing(int device, Standing* standing);
int ledger_charge(int device, uint64_t size, uint64_t most);        /* 0: everything + size would be more than `most` */
void ledger_settle(const Entry* entry, int is_held, int is_kept);   /* the driver has returned; kept: by a pool */
int ledger_measured(int device, const Standing* before, uint64_t used);     /* 1: nothing moved meanwhile */
uint64_t ledger_stack_bytes(uint32_t stack, uint64_t* calls);
void ledger_lock(void);
void ledger_unlock(void);
void ledger_empty(void);                                            /* pre: locked */
void ledger_forget_context(int device, uint64_t context, int is_primary);

/* --- figures --- */

typedef struct Figures {
    atomic_ullong context, modules, others;
    _Atomic(CUcontext) primary, measured;       /* measured: the context whose size is known */
    atomic_int has_loaded, has_pool;
    atomic_ullong last_sample_ns;
} Figures;
extern Figures figures[DEVICES];

int current_device(void);                           /* -1 without a context */
uint64_t used_before_context(int device);           /* on the device, by all processes; UINT64_MAX if unknown */
void context_made(int device, CUcontext context, int is_primary, uint64_t used_before);
void context_ended(int device, CUcontext context);
int sample(int device);                             /* asks the driver; 0 if that fails */
void after_load(void);
void note_launch(CUfunction function);
uint64_t pool_reserved(int device);                 /* by the device's default pool */
CUpool default_pool(int device);

/* --- limit --- */

int limit_allows(int device, uint64_t size, Caller caller);     /* charges it; 0: it would be beyond the limit */
int limit_allows_graph(int device, uint64_t size);              /* charges nothing */
void limit_info(int device, size_t* free_bytes, size_t* total_bytes);

/* --- serving --- */

typedef struct Server { _Atomic(const allotment_entry_points*) tables[TENANTS]; CUstream home; atomic_int state; } Server;
extern Server servers[DEVICES];

int serve_plain(CUdeviceptr* address, size_t size, Caller caller, CUresult* result);
int serve_async(CUdeviceptr* address, size_t size, CUstream stream, Caller caller, CUresult* result);
CUresult serve_free(const Entry* entry);
CUresult serve_free_async(const Entry* entry, CUstream stream);
int serve_release_cached(int device);     /* to the driver; 1: some memory may be free there now */
void note_stream(CUstream stream, CUcontext context);
void note_no_stream(CUstream stream);
void streams_end(CUcontext context);    /* they end with it */
void serving_end(int device);       /* the driver serves its requests from now on */
void serving_in_child(void);

/* --- finding --- */

enum { WAY_DLSYM, WAY_DLVSYM, WAY_PROC_ADDRESS, WAYS };         /* a caller without a way is linked */
void* hook_for(const char* name, void* real);                   /* NULL: not replaced */
int passes(int number, void* caller);                           /* counts a call; 1: the driver's own, or we are off */
void finding_start(void);

#endif
