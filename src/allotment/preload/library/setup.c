/* The start of the library, its messages, and forks. It never shuts down: threads may run until the process ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parts.h"

Options options;
EXPORT const int allotment_preload_version = 1;

void say(int what, const char* form, ...) {
    static atomic_int said[SAYINGS];
    char line[512] = "allotment.preload: ";
    size_t start = strlen(line);
    if (atomic_exchange(&said[what], 1)) return;
    va_list values;
    va_start(values, form);
    int length = vsnprintf(line + start, sizeof line - start - 1, form, values);
    va_end(values);
    if (length < 0) return;
    length = length + (int)start < (int)sizeof line - 2 ? length + (int)start : (int)sizeof line - 2;
    line[length] = '\n';
    if (write(2, line, (size_t)length + 1) < 0) return;
}

void spin_lock(Spin* spin) {
    for (int tries = 0; atomic_flag_test_and_set_explicit(spin, memory_order_acquire);)
        if (++tries > 100) sched_yield();
}
void spin_unlock(Spin* spin) { atomic_flag_clear_explicit(spin, memory_order_release); }

static uint64_t number_in(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    char* end = NULL;
    if (!text || !*text) return otherwise;
    unsigned long long number = strtoull(text, &end, 10);
    if (*end || *text == '-') {
        say(SAID_LIMIT, "%s=%.40s is not a number of bytes and is ignored", name, text);
        return otherwise;
    }
    return number;
}

/* A fork waits until no thread changes the ledger. The child has none of its parent's device memory. */
static void before_fork(void) { ledger_lock(); }
static void in_parent(void) { ledger_unlock(); }
static void in_child(void) {
    ledger_empty();
    ledger_unlock();
    callers_in_child();
    serving_in_child();
    memset(figures, 0, sizeof figures);
}

__attribute__((constructor)) static void start(void) {
    const char* depth = getenv("ALLOTMENT_PRELOAD");
    finding_start();
    void* first = dlsym(RTLD_DEFAULT, "allotment_preload_depth");
    if (first && first != (void*)allotment_preload_depth) {
        options.is_off = 1;
        say(SAID_TWICE, "the library is preloaded twice; the first copy is used");
        return;
    }
    if (!depth) { options.is_off = 1; return; }
    if (!strcmp(depth, "serve")) options.depth = DEPTH_SERVE;
    else if (strcmp(depth, "count") != 0) {
        say(SAID_DEPTH, "ALLOTMENT_PRELOAD=%.40s is neither count nor serve; everything passes through", depth);
        options.is_off = 1;
        return;
    }
    options.limit = number_in("ALLOTMENT_PRELOAD_LIMIT", UINT64_MAX);
    if (!options.limit) say(SAID_LIMIT, "a limit of 0 bytes is below the context, and is ignored");
    if (options.limit == UINT64_MAX) options.limit = 0;
    options.min_size = number_in("ALLOTMENT_PRELOAD_MIN_SIZE", 0);
    options.stacks = number_in("ALLOTMENT_PRELOAD_STACKS", 0) != 0;
    pthread_atfork(before_fork, in_parent, in_child);
}
