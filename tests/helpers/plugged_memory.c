/* Functions for a pluggable allocator, which record the last call of each kind. Safe on several threads. */

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct call {
    const void *pointer, *stream, *filter;
    size_t size;
    int device;
    double fraction;
    uint64_t first, second;
};

struct call last_alloc, last_free, last_init, last_reset, last_fraction, last_base, last_record, last_begin, last_end,
    last_release;
atomic_long allocs, frees, bytes_out, wrong_frees, resets;

/* Each piece starts with the arguments of its request, so that its free can be compared. */
struct head {
    size_t size;
    const void *stream;
    long device, padding;
};

void *counted_alloc(size_t size, int device, void *stream) {
    struct head *head = malloc(sizeof *head + size);
    head->size = size;
    head->device = device;
    head->stream = stream;
    atomic_fetch_add(&allocs, 1);
    atomic_fetch_add(&bytes_out, (long)size);
    return head + 1;
}

void counted_free(void *pointer, size_t size, int device, void *stream) {
    struct head *head = (struct head *)pointer - 1;
    if (head->size != size || head->device != device || head->stream != stream) atomic_fetch_add(&wrong_frees, 1);
    atomic_fetch_add(&frees, 1);
    atomic_fetch_sub(&bytes_out, (long)size);
    free(head);
}

void *noted_alloc(size_t size, int device, void *stream) {
    last_alloc = (struct call){.size = size, .device = device, .stream = stream};
    return counted_alloc(size, device, stream);
}

void noted_free(void *pointer, size_t size, int device, void *stream) {
    last_free = (struct call){.pointer = pointer, .size = size, .device = device, .stream = stream};
    if (pointer) counted_free(pointer, size, device, stream);
}

void *null_alloc(size_t size, int device, void *stream) { return NULL; }

void note_init(int device_count) { last_init = (struct call){.device = device_count}; }
void note_reset(void) { atomic_fetch_add(&resets, 1); }
void note_fraction(double fraction, int device) { last_fraction = (struct call){.fraction = fraction, .device = device}; }

void *note_base(void *pointer, size_t *size) {
    last_base = (struct call){.pointer = pointer, .size = *size};
    *size = 4096;
    return (void *)((uintptr_t)pointer & ~(uintptr_t)4095);
}

void *note_base_alone(void *pointer, size_t *size) { return (char *)pointer - 16; }

void note_record(void *pointer, void *stream) { last_record = (struct call){.pointer = pointer, .stream = stream}; }

/* A pool's id as PyTorch passes it: a pair by value. */
struct pair {
    uint64_t first, second;
};

void note_begin(int device, struct pair id, void *filter) {
    last_begin = (struct call){.device = device, .first = id.first, .second = id.second, .filter = filter};
}
void note_end(int device, struct pair id) {
    last_end = (struct call){.device = device, .first = id.first, .second = id.second};
}
void note_release(int device, struct pair id) {
    last_release = (struct call){.device = device, .first = id.first, .second = id.second};
}
