/* An allocator used from C, on threads that know nothing of Python. tests/allocators/caching/test_c_header.py builds it:
 *
 *     cc -shared -fPIC -pthread $(python -c "import allotment.entry as e; print('-I' + e.get_include())") from_c.c
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <allotment.h>

enum { THREADS = 4, ROUNDS = 1000 };

static void* work(void* given) {
    const allotment_entry_points* allocator = (const allotment_entry_points*) given;
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = 1000 + 37 * (size_t) round;
        char* block = (char*) allocator->allocate(allocator->context, size, 0, NULL);
        if (block == NULL) return (void*) "no memory";
        memset(block, round, size);
        if (block[0] != (char) round || block[size - 1] != (char) round) return (void*) "another thread's bytes";
        if (!allocator->free(allocator->context, block, size, 0, NULL)) return (void*) "free refused";
    }
    return NULL;
}

/* 0 if all threads could work; the words go to `text`. */
int run_threads(const allotment_entry_points* allocator, char* text, size_t capacity) {
    pthread_t threads[THREADS];
    void* failure = NULL;
    if (!allotment_has(allocator)) {
        snprintf(text, capacity, "another version of the entry points: %u", allocator ? allocator->version : 0);
        return 1;
    }
    for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, (void*) allocator);
    for (int at = 0; at < THREADS; at++) {
        void* said = NULL;
        pthread_join(threads[at], &said);
        if (said != NULL) failure = said;
    }
    snprintf(text, capacity, "%s", failure ? (const char*) failure : "done");
    return failure != NULL;
}

/* What a failure sounds like. */
size_t ask_for_too_much(const allotment_entry_points* allocator, size_t size, char* text, size_t capacity) {
    if (allocator->allocate(allocator->context, size, 0, NULL) != NULL) return 0;
    return allocator->last_error(allocator->context, text, capacity);
}

size_t size_of_header(void) { return sizeof(allotment_entry_points); }
