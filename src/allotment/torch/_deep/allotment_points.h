/* What PyTorch's allocator interface needs of our allocators beyond the entry points (allotment.h), for C++.
 *
 * One table for the process, because PyTorch's interface is of the process: a device is an argument. Functions return 0,
 * or NULL, if they failed; `failure` then has the reason, for the calling thread. Those marked "python" take the
 * interpreter lock, and are for what is asked for rarely; none of the others does, unless it fails or a device is
 * asked for the first time. Pointers handed to a visitor are valid while it runs.
 *
 * The other half, `allotment_framework`, is what the engine asks of PyTorch: it is handed over once. */
#ifndef ALLOTMENT_POINTS_H
#define ALLOTMENT_POINTS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ALLOTMENT_POINTS_VERSION 3
#define ALLOTMENT_DEVICES_MOST 64
#define ALLOTMENT_FOREIGN_CONTEXT (1u << 23)    /* numbers of the framework's contexts: from here on */
#define ALLOTMENT_CONTEXTS_MOST (1u << 23)      /* and as many */

enum allotment_failure_kind {
    ALLOTMENT_FAILED = 1,
    ALLOTMENT_OUT_OF_MEMORY,
    ALLOTMENT_REJECTED          /* out of memory by the settings, before the device was asked */
};

typedef struct allotment_failure {
    int kind;
    char* text;                 /* in PyTorch's words; of the calling thread, until its next failure */
    uint64_t rounded, segment, most, device_free, allocated, reserved;       /* out of memory */
} allotment_failure;

typedef struct allotment_stat {
    int64_t current, peak, allocated, freed;
} allotment_stat;

typedef struct allotment_stats {
    int64_t num_alloc_retries, num_ooms, num_oom_rejections, num_sync_all_streams, num_device_alloc, num_device_free;
    int64_t max_split_size;
    /* all, small, large */
    allotment_stat allocation[3], segment[3], active[3], inactive_split[3];
    allotment_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3], requested_bytes[3];
    allotment_stat oversize_allocations, oversize_segments;
} allotment_stats;

/* The contexts are numbers: 0, or one of the framework's own; what else there is shows as 0. */
typedef struct allotment_record {
    int action;                 /* in the order of PyTorch's enumeration */
    int device;
    uint64_t address, size, stream, pool_first, pool_second;
    int64_t time_us;
    uint32_t context;
    const char* compile_context;
    const char* user_metadata;
    const char* internal_metadata;
} allotment_record;

typedef struct allotment_segment {
    uint64_t address, total, allocated, active, requested, stream, pool_first, pool_second;
    uint32_t context;
    uint32_t number;            /* of those told, in order of creation */
    int is_small, is_expandable;
} allotment_segment;

typedef struct allotment_block {
    uint64_t address, size, requested;
    int allocated, active;
    uint32_t context;
} allotment_block;

typedef struct allotment_snapshot_visitor {
    void* self;
    void (*record)(void* self, const allotment_record* record);
    void (*segment)(void* self, const allotment_segment* segment);     /* its blocks follow */
    void (*block)(void* self, const allotment_block* block);
    void (*annotation)(void* self, int device, int64_t time_us);       /* its pairs follow */
    void (*pair)(void* self, const char* key, const char* value);
    void (*settings)(void* self, const char* text);     /* where PyTorch's own text does not tell all */
} allotment_snapshot_visitor;

typedef struct allotment_framework {
    size_t size;
    /* The calling thread's context; 0: none. Not called under the engine's lock. */
    uint32_t (*gather)(void);
    /* What frames a context stands for, innermost first. */
    void (*frames)(uint32_t context, void (*visit)(void* self, const char* name, const char* file, int64_t line),
                   void* self);
    /* A record of the history, under the engine's lock. */
    void (*record)(const allotment_record* record);
    /* A request is about to ask the device for more: whether something was freed. */
    int (*free_memory)(void);
    /* The calling thread's current stream of a device. */
    uint64_t (*current_stream)(int device);
} allotment_framework;

/* Where the segments of a pool come from. An address of 0: there is no memory. */
typedef struct allotment_raw_allocator {
    void* self;
    uint64_t (*allocate)(void* self, size_t size, uint64_t stream);
    void (*free)(void* self, uint64_t address, size_t size, uint64_t stream);
    void (*drop)(void* self);
} allotment_raw_allocator;

typedef struct allotment_points {
    size_t size;                /* of this struct, as the package was compiled */
    uint32_t version;

    const allotment_failure* (*failure)(void);
    /* The entry points of each device that was asked for memory (allotment_entry_points); NULL: not yet. */
    void* const* tables;
    void* (*table_of)(int device);                                          /* python, the first time */
    /* The last failure of a function of a device's table becomes the failure here. */
    void (*take_failure)(int device);                                       /* python */
    /* Whether the thread's last function of a table that failed was given an address of no block in use there. */
    int (*is_not_ours)(void);
    void (*serve)(const allotment_framework* framework);

    /* 0: no block in use begins there */
    size_t (*block_size)(int device, void* address);
    uint32_t (*block_context)(int device, const void* address);
    void (*gauges)(int device, int64_t* allocated, int64_t* reserved);
    int (*largest_block)(int device, size_t* largest);
    int (*empty_cache)(int device, uint64_t first, uint64_t second);
    /* `raw` may be NULL */
    int (*create_or_incref_pool)(int device, uint64_t first, uint64_t second, const allotment_raw_allocator* raw);
    int (*pool_use_count)(int device, uint64_t first, uint64_t second);     /* -1: failed */
    int (*set_use_on_oom)(int device, uint64_t first, uint64_t second, int on);
    int (*set_no_split)(int device, uint64_t first, uint64_t second);
    int (*live_addresses)(int device, uint64_t first, uint64_t second, void (*visit)(void* self, uint64_t address),
                          void* self);
    int (*is_recording)(int device);
    /* Every framework's context that a block or a record still has; 0: cannot be told now. */
    int (*contexts_in_use)(void (*visit)(void* self, uint32_t context), void* self);
    int (*track)(int on);

    /* python */
    int (*stats)(int device, allotment_stats* stats,
                 void (*pool)(void* self, uint64_t first, uint64_t second, const allotment_stat* reserved), void* self);
    int (*reset_stats)(int device, int peaks);
    double (*memory_fraction)(int device);
    int (*set_memory_fraction)(int device, double fraction);
    int (*enable)(int on);
    int (*is_enabled)(void);
    int (*configure)(const char* text);
    int (*record_history)(int on, int level, size_t most, int clear, const char* const* skip, size_t skip_count,
                          int gathers);
    int (*annotate)(int device, const char* const* keys, const char* const* values, size_t count);
    int (*annotate_block)(int device, const void* address, const char* text);
    void (*push_compile_context)(const char* name);
    void (*pop_compile_context)(void);
    void (*set_user_metadata)(const char* text);
    const char* (*user_metadata)(void);
    int (*snapshot)(int device, uint64_t first, uint64_t second, int with_records,
                    const allotment_snapshot_visitor* visitor);
    void* (*checkpoint)(int device, uint64_t first, uint64_t second);
    int (*restore)(int device, void* state, void (*freed)(void* self, uint64_t address),
                   void (*created)(void* self, uint64_t address), void* self);
    void (*drop_state)(void* state);
    int (*share)(int device, void* address, uint64_t* offset,
                 void (*handle)(void* self, const char* bytes, size_t length), void* self);
    void* (*open_shared)(int device, const char* bytes, size_t length, uint64_t* address);
    void (*close_shared)(void* opened);
    int (*enable_peer)(int owner, int peer);
    int (*expandable_sizes)(int device, void (*visit)(void* self, uint64_t stream, int is_small, uint64_t mapped),
                            void* self);
    void* (*allocate_at)(int device, size_t size, void* address, uint64_t stream);
    /* `size` is for a class that the settings do not name; 0: as the settings say for all */
    int (*set_reserve_class)(int device, uint64_t stream, const char* name, size_t size);
} allotment_points;

#ifdef __cplusplus
}
#endif
#endif
