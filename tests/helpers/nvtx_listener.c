/* What a profiler is to NVTX: a library that programs load by NVTX_INJECTION64_PATH and that gets every call. This one
 * writes a line for each, into the file that NVTX_HEARD names: "push MESSAGE BYTES", "pop", "count NAME VALUE".
 *
 * Declared here is as much of the protocol as that needs; the places of functions are of NVTX 3. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLBACKS = 1, CORE2 = 5, PUSH = 4, POP = 5, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };
enum { COUNTERS = 4, REGISTER_COUNTER = 0, SAMPLE_INT64 = 1 };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    int64_t payload;
    int32_t message_type;
    const char* message; /* what `register_string` gave */
} Attributes;

typedef struct {
    size_t size;
    int (*module)(int module, void**** functions, unsigned* count);
} Callbacks;

typedef struct {
    size_t id, count;
    intptr_t* functions;
} Segment;

typedef struct {
    uint16_t version, size, id, compatible;
    size_t count;
    Segment* segments;
} Extension;

typedef struct {
    size_t size;
    uint64_t schema;
    const char* name;
} Counter;

static FILE* heard(void) {
    static FILE* file;
    if (!file) {
        file = fopen(getenv("NVTX_HEARD"), "w");
        setvbuf(file, NULL, _IOLBF, 0);
    }
    return file;
}

static void* create_domain(const char* name) { return strdup(name); }

static void* register_string(void* domain, const char* text) { return strdup(text); }

static int push(void* domain, const Attributes* what) {
    return fprintf(heard(), "push %s %lld\n", what->message, (long long)what->payload) > 0;
}

static int pop(void* domain) { return fprintf(heard(), "pop\n") > 0; }

static uint64_t register_counter(void* domain, const Counter* counter) { return (uint64_t)strdup(counter->name); }

static void sample_int64(void* domain, uint64_t counter, int64_t value) {
    fprintf(heard(), "count %s %lld\n", (const char*)counter, (long long)value);
}

int InitializeInjectionNvtx2(const void* (*table)(uint32_t)) {
    const Callbacks* callbacks = table(CALLBACKS);
    void*** functions;
    unsigned count;
    if (!callbacks || !callbacks->module(CORE2, &functions, &count)) return 0;
    *functions[PUSH] = push;
    *functions[POP] = pop;
    *functions[REGISTER_STRING] = register_string;
    *functions[CREATE_DOMAIN] = create_domain;
    return 1;
}

int InitializeInjectionNvtxExtension(Extension* extension) {
    if (extension->id != COUNTERS) return 1;
    extension->segments[0].functions[REGISTER_COUNTER] = (intptr_t)register_counter;
    extension->segments[0].functions[SAMPLE_INT64] = (intptr_t)sample_int64;
    return 1;
}
