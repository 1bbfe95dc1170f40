/*
 * The C library's memory, which fails on request. This library is preloaded. It counts the requests of modules in one
 * folder, named by FAILING_MEMORY_FOLDER, and of no others, and refuses those that it was told to refuse.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);

static int is_on;
static long seen, first, last;

/* Requests are counted from 0 on; `times` of them are refused, from number `after` on. */
void failing_memory_plan(long after, long times) {
    seen = 0;
    first = after;
    last = after + times;
}

/* Start to count and refuse, or stop; returns how many requests were made. */
long failing_memory_turn(int on) {
    is_on = on;
    return seen;
}

static int is_refused(const void* caller) {
    Dl_info found;
    const char* folder = is_on ? getenv("FAILING_MEMORY_FOLDER") : NULL;
    if (folder == NULL || !dladdr(caller, &found) || strncmp(found.dli_fname, folder, strlen(folder)) != 0) return 0;
    long number = seen++;
    return number >= first && number < last;
}

void* malloc(size_t size) {
    return is_refused(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
    return is_refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) {
    return is_refused(__builtin_return_address(0)) ? NULL : __libc_realloc(old, size);
}
