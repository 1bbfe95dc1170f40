/* The allocator for C and C++: one table of functions that need no interpreter lock.
 *
 * Get the table from Python: `allotment.entry.entry_points(allocator)` returns a capsule named ALLOTMENT_CAPSULE,
 * `allotment.entry.entry_points_address(allocator)` the table's address. The table and the allocator stay valid until
 * the process ends. Every function may be called from any thread, with or without the interpreter lock. None raises or
 * throws: a call that fails returns NULL or 0, and `last_error` returns the text of the calling thread's last failure.
 *
 * The table is versioned. Functions are only ever added at the end, with a larger `size`; any other change increases
 * `version`. `allotment_has` says whether a table has everything that this header declares. */
#ifndef ALLOTMENT_H
#define ALLOTMENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ALLOTMENT_ENTRY_VERSION 1
#define ALLOTMENT_CAPSULE "allotment.entry_points"

/* The filter of a route: returns whether a pool serves the stream's requests. `drop` releases what `self` points to. */
typedef int (*allotment_filter)(void* self, uint64_t stream);
typedef void (*allotment_drop)(void* self);

/* The facts that an out-of-memory handler gets, in bytes; `size` is that of this struct, as the package was compiled. */
typedef struct allotment_shortage {
    size_t size;
    uint64_t requested, stream;
    uint64_t device_free, device_total;
    uint64_t reserved, allocated, waiting; /* `waiting`: freed, but not reusable yet */
} allotment_shortage;

/* An out-of-memory handler: returns 0, or another number to retry the request. */
typedef int (*allotment_step)(void* self, const allotment_shortage* facts);

typedef struct allotment_entry_points {
    size_t size;        /* of this struct, as the package was compiled */
    uint32_t version;
    void* context;      /* first argument of every function */

    /* Returns memory for work on `stream`; NULL for size 0. `device` is ignored: the allocator has only one. */
    void* (*allocate)(void* context, size_t size, int device, void* stream);
    /* Frees a block in stream order: it is reused when all streams recorded for it are done. NULL does nothing. */
    int (*free)(void* context, void* address, size_t size, int device, void* stream);
    /* Declares that work on `stream` uses the block too. */
    int (*record_stream)(void* context, void* address, void* stream);
    /* Releases cached memory to the device. */
    int (*empty_cache)(void* context);
    /* Returns the start of the segment that contains a block, and stores its size. */
    void* (*base_allocation)(void* context, void* address, size_t* size);
    /* Sets the limit as a fraction of the device's memory; 1.0 means no limit. */
    int (*set_memory_fraction)(void* context, double fraction, int device);
    /* Copies the text of the calling thread's last failure, cut to `capacity`, without a final 0; returns its length. */
    size_t (*last_error)(void* context, char* text, size_t capacity);
    /* Serves requests on streams that `accepts` accepts (NULL: all) from a private pool with the id (0, n) or (n, 0). */
    int (*begin_allocate_to_pool)(
        void* context, uint64_t first, uint64_t second, allotment_filter accepts, allotment_drop drop, void* self);
    int (*end_allocate_to_pool)(void* context, uint64_t first, uint64_t second);
    int (*release_pool)(void* context, uint64_t first, uint64_t second);
    /* Adds a handler, which is called before a request fails for lack of memory, at most `tries` times for each request.
       Returns a number for `remove_step`, or 0 if refused. A handler runs on the requesting thread without any lock, and
       may use these functions; its own requests do not invoke handlers. */
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
