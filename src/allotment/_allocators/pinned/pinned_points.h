/* A PinnedAllocator for C and C++: one table of functions that need no interpreter lock. It stays valid until the
 * process ends. Any thread may call the functions. A call that fails returns 0, and `last_error` returns the text of
 * the calling thread's last failure.
 *
 * Requests are for the host. A framework calls `record_stream` for each stream that uses a block; the stream must be of
 * the table's device. A block is reused when the work that these streams had at its free is done. */
#ifndef ALLOTMENT_PINNED_POINTS_H
#define ALLOTMENT_PINNED_POINTS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ALLOTMENT_PINNED_VERSION 1
#define ALLOTMENT_PINNED_CLASSES 64

typedef struct allotment_pinned_count {
    int64_t current, peak, allocated, freed;
} allotment_pinned_count;

typedef struct allotment_pinned_time { /* microseconds */
    int64_t total, longest, shortest, count;
} allotment_pinned_time;

typedef struct allotment_pinned_stats {
    allotment_pinned_count allocations, allocated_bytes, active_requests, active_bytes;
    allotment_pinned_time obtaining, returning;
    int64_t classes[ALLOTMENT_PINNED_CLASSES]; /* blocks obtained, by ceil(log2 size) */
} allotment_pinned_stats;

typedef struct allotment_pinned_settings {
    int use_background_threads, use_host_register, catch_all;
    uint64_t max_round_threshold, max_cached_size, register_threads;
} allotment_pinned_settings;

typedef enum allotment_pinned_failure {
    ALLOTMENT_PINNED_FAILED,
    ALLOTMENT_PINNED_OUT_OF_MEMORY,
    ALLOTMENT_PINNED_NOT_OURS /* the address is not of a block in use */
} allotment_pinned_failure;

/* An action on a block, 0 to 4: allocated, free requested, free completed, obtained from the device, returned to it.
 * Called under the lock; it must not call the allocator. */
typedef void (*allotment_pinned_listener)(
    void* self, int action, uint64_t address, uint64_t size, uint64_t first, uint64_t second);

/* A block; `active`: it cannot be allocated now. */
typedef void (*allotment_pinned_visitor)(
    void* self, uint64_t address, uint64_t size, int allocated, int active, uint64_t first, uint64_t second);

/* `accepts`: whether a pool serves the calling thread's requests. `drop`: releases what `self` stands for. */
typedef int (*allotment_pinned_filter)(void* self, uint64_t stream);
typedef void (*allotment_pinned_drop)(void* self);

typedef struct allotment_pinned_points {
    size_t size; /* of this struct, as the package was compiled */
    uint32_t version;
    int device;
    void* context; /* first argument of every function */

    uint64_t (*allocate)(void* context, size_t size); /* size > 0 */
    int (*free)(void* context, uint64_t address);
    int (*is_lent)(void* context, uint64_t address); /* returns whether a block in use begins there */
    int (*record_stream)(void* context, uint64_t address, uint64_t stream);
    int (*empty_cache)(void* context);
    int (*begin_allocate_to_pool)(
        void* context, uint64_t first, uint64_t second, allotment_pinned_filter accepts, allotment_pinned_drop drop,
        void* self);
    int (*end_allocate_to_pool)(void* context, uint64_t first, uint64_t second);
    int (*release_pool)(void* context, uint64_t first, uint64_t second);

    int (*stats)(void* context, allotment_pinned_stats* out);
    int (*reset)(void* context, int only_peaks);
    int (*visit)(void* context, allotment_pinned_visitor visit, void* self);
    void (*listen)(void* context, allotment_pinned_listener listener, void* self); /* NULL: no listener */
    int (*configure)(void* context, const allotment_pinned_settings* settings);
    /* How to get the calling thread's current stream from a framework. */
    void (*follow_current_stream)(void* context, uint64_t (*current)(int device));

    /*
     * Copies the text of the calling thread's last failure, cut to `capacity`, without a 0 at the end; returns its
     * length.
     */
    size_t (*last_error)(void* context, char* text, size_t capacity, int* failure);
} allotment_pinned_points;

#ifdef __cplusplus
}
#endif
#endif
