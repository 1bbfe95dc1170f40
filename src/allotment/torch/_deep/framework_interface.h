/* What PyTorch needs from Allotment beyond the entry points of allotment.h, for C++: the framework interface.
 *
 * There is one table for the process, and the device is an argument, because PyTorch has one allocator for all devices.
 * A function that fails returns 0 or NULL; `failure` then has the reason, for the calling thread. Functions marked
 * "python" take the interpreter lock; they are for rare calls. The others take it only when they fail or use a device
 * for the first time. Pointers passed to a visitor are valid until it returns.
 *
 * `allotment_upcalls` is the other direction: what the engine asks of PyTorch. It is passed once. */
#ifndef ALLOTMENT_FRAMEWORK_INTERFACE_H
#define ALLOTMENT_FRAMEWORK_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ALLOTMENT_INTERFACE_VERSION 4
#define ALLOTMENT_DEVICES_MOST 64
#define ALLOTMENT_FOREIGN_CONTEXT (1u << 23)    /* the first number of a context of PyTorch's */
#define ALLOTMENT_CONTEXTS_MOST (1u << 23)      /* how many such numbers exist */

enum allotment_failure_kind {
    ALLOTMENT_FAILED = 1,
    ALLOTMENT_OUT_OF_MEMORY,
    ALLOTMENT_REJECTED          /* the settings forbid the request; the device was not asked */
};

typedef struct allotment_failure {
    int kind;
    char* text;                 /* PyTorch's message; valid until the thread's next failure */
    uint64_t rounded, segment, most, device_free, allocated, reserved;       /* if out of memory */
} allotment_failure;

typedef struct allotment_stat {
    int64_t current, peak, allocated, freed;
} allotment_stat;

/* Statistics by their names in `torch.cuda.memory_stats`. The engine has the list of them. */
typedef struct allotment_statistics_visitor {
    void* self;
    void (*number)(void* self, const char* name, int64_t value);
    void (*stat)(void* self, const char* name, const allotment_stat* value);
    void (*stats)(void* self, const char* name, const allotment_stat* three);           /* all, small, large */
    void (*pool)(void* self, uint64_t first, uint64_t second, const allotment_stat* reserved);      /* likewise */
} allotment_statistics_visitor;

/* A context is the number of one of PyTorch's contexts; 0 for none and for stacks that Allotment recorded itself. */
typedef struct allotment_record {
    int action;                 /* numbered as in PyTorch's enumeration */
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
    uint32_t number;            /* rank by creation among the visited segments */
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
    void (*segment)(void* self, const allotment_segment* segment);     /* then its blocks */
    void (*block)(void* self, const allotment_block* block);
    void (*annotation)(void* self, int device, int64_t time_us);       /* then its pairs */
    void (*pair)(void* self, const char* key, const char* value);
    void (*settings)(void* self, const char* text);     /* if PyTorch's own text is incomplete */
} allotment_snapshot_visitor;

typedef struct allotment_upcalls {
    size_t size;
    /* The calling thread's context; 0: none. Not called under the engine's lock. */
    uint32_t (*gather)(void);
    /* The frames of a context, innermost first. */
    void (*frames)(uint32_t context, void (*visit)(void* self, const char* name, const char* file, int64_t line),
                   void* self);
    /* Called with each record of the history, under the engine's lock. */
    void (*record)(const allotment_record* record);
    /* Called before the engine asks the device for memory. Returns whether it freed something. */
    int (*free_memory)(void);
    /* The calling thread's current stream of a device. */
    uint64_t (*current_stream)(int device);
} allotment_upcalls;

/* The source of a pool's segments. An address of 0 means that no memory is left. */
typedef struct allotment_raw_allocator {
    void* self;
    uint64_t (*allocate)(void* self, size_t size, uint64_t stream);
    void (*free)(void* self, uint64_t address, size_t size, uint64_t stream);
    void (*drop)(void* self);
} allotment_raw_allocator;

/* A figure of the engine, split by size class: its value is the sum of ceiling - room. Other threads change it; reading
 * it takes no lock. */
typedef struct allotment_figure {
    const int64_t* ceiling;
    const int64_t* room;
} allotment_figure;

/* A device that PyTorch uses. `entry_points` is set last: with NULL, the rest is not valid. */
typedef struct allotment_bound_device {
    const struct allotment_entry_points* entry_points;
    allotment_figure allocated, reserved;   /* bytes */
} allotment_bound_device;

typedef struct allotment_interface {
    size_t size;                /* of this struct, when the package was compiled */
    uint32_t version;

    const allotment_failure* (*failure)(void);
    const allotment_bound_device* devices;      /* ALLOTMENT_DEVICES_MOST of them */
    /* Bind an allocator to a device unless it has one. */
    int (*bind)(int device);                                                /* python */
    /* Make the last failure of a device's entry points the failure here. */
    void (*take_failure)(int device);                                       /* python */
    /* Whether the thread's last failed call of an entry point got an address that is not a block in use there. */
    int (*was_unknown_address)(void);
    void (*set_upcalls)(const allotment_upcalls* upcalls);

    /* 0: the address does not begin a block in use */
    size_t (*block_size)(int device, void* address);
    uint32_t (*block_context)(int device, const void* address);
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
    /* Visit each of PyTorch's contexts that a block or a record still refers to. 0: not possible from here. */
    int (*contexts_in_use)(void (*visit)(void* self, uint32_t context), void* self);
    /* Whether each record goes to the upcall. */
    int (*relay_records)(int on);

    /* python */
    int (*statistics)(int device, const allotment_statistics_visitor* visitor);
    int (*reset_statistics)(int device, int peaks);
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
    /* `size` is for a class that the settings do not name; 0: the size for all streams */
    int (*set_reserve_class)(int device, uint64_t stream, const char* name, size_t size);
} allotment_interface;

#ifdef __cplusplus
}
#endif
#endif
