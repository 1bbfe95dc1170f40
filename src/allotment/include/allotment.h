/* The allocator for C and C++: one table of functions that need no interpreter lock.
 *
 * Python hands it over: `allotment.entry.entry_points(allocator)` is a capsule named ALLOTMENT_CAPSULE,
 * `allotment.entry.entry_points_address(allocator)` the same as a number. It, and the allocator, stay valid until the
 * process ends. Every function may be called from any thread, with the interpreter lock or without. None raises or
 * throws: a call that fails returns NULL or 0, and `last_error` has the words, for the thread that called.
 *
 * The form is versioned. Functions are only ever added at the end, with a larger `size`; anything else is another
 * `version`. `allotment_has` says whether a table has all that this header declares. */
#ifndef ALLOTMENT_H
#define ALLOTMENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ALLOTMENT_ENTRY_VERSION 1
#define ALLOTMENT_CAPSULE "allotment.entry_points"

/* Whether a stream's requests are served by a pool; and what `self` stood for is needed no more. */
typedef int (*allotment_filter)(void* self, uint64_t stream);
typedef void (*allotment_drop)(void* self);

/* What is told to a step, in bytes: `size` is that of the struct, as the package was compiled. */
typedef struct allotment_shortage {
    size_t size;
    uint64_t requested, stream;
    uint64_t device_free, device_total;
    uint64_t reserved, allocated, waiting; /* held, in use, and freed but not to be reused yet */
} allotment_shortage;

/* Whether to try again: not 0. */
typedef int (*allotment_step)(void* self, const allotment_shortage* facts);

typedef struct allotment_entry_points {
    size_t size;        /* of this struct, as the package was compiled */
    uint32_t version;
    void* context;      /* first argument of every function */

    /* Memory for work on `stream`; size 0 gives NULL. `device` is the allocator's, and not looked at. */
    void* (*allocate)(void* context, size_t size, int device, void* stream);
    /* Stream-ordered: reused when all streams that were recorded are done. NULL does nothing. */
    int (*free)(void* context, void* address, size_t size, int device, void* stream);
    /* Work on `stream` uses the block too. */
    int (*record_stream)(void* context, void* address, void* stream);
    /* Give cached memory back to the device. */
    int (*empty_cache)(void* context);
    /* The start of the segment that holds a block, and its size. */
    void* (*base_allocation)(void* context, void* address, size_t* size);
    /* A limit, as a part of the device's memory; 1.0 is none. */
    int (*set_memory_fraction)(void* context, double fraction, int device);
    /* Words for the calling thread's last failure, cut to `capacity` and without a 0 at the end; their length. */
    size_t (*last_error)(void* context, char* text, size_t capacity);
    /* Requests on streams that `accepts` says yes to (NULL: all) are served by a private pool, (0, n) or (n, 0). */
    int (*begin_allocate_to_pool)(
        void* context, uint64_t first, uint64_t second, allotment_filter accepts, allotment_drop drop, void* self);
    int (*end_allocate_to_pool)(void* context, uint64_t first, uint64_t second);
    int (*release_pool)(void* context, uint64_t first, uint64_t second);
    /* Ask `step` before a request fails for want of memory, `tries` times at most for each; 0: refused, else a number
       by which it is removed. It runs on the thread that asked, without any lock, and may use these functions; what it
       asks for itself goes without steps. */
    int (*on_out_of_memory)(void* context, allotment_step step, void* self, int tries);
    int (*remove_step)(void* context, int step);
} allotment_entry_points;

static inline int allotment_has(const allotment_entry_points* table) {
    return table != NULL && table->version == ALLOTMENT_ENTRY_VERSION && table->size >= sizeof(allotment_entry_points);
}

#ifdef __cplusplus
}
#endif
#endif
